"""Stock DCP on this format, in one process: objects, partial loads, refusals, other planners."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys, load
from torch.distributed.checkpoint.state_dict_saver import save

import ucpformat
from ucpformat.integrations.torch_dcp import UcpStorageReader, UcpStorageWriter

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is:UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)


def trained(seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1 + seed)
    net(torch.randn(5, 6)).sum().backward()
    optimizer.step()
    model, optim = get_state_dict(net, optimizer)
    return {"model": model, "optim": optim, "step": seed, "notes": {"text": f"s{seed}", "pair": (1, 2.5)}}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


@pytest.mark.parametrize("storage", ["packed", "plain"])
def test_a_state_comes_back_by_either_way(tmp_path: Path, storage: Any) -> None:
    state, other = trained(1), trained(2)
    save(copy.deepcopy(state), storage_writer=UcpStorageWriter(tmp_path / "a.ucp", storage=storage, step=7))
    assert list(ucpformat.validate(tmp_path / "a.ucp")) == []
    with ucpformat.open(tmp_path / "a.ucp") as checkpoint:
        assert checkpoint.root.storage == storage
        assert checkpoint.root.progress is not None
        assert checkpoint.root.progress.step == 7
        assert set(checkpoint["0.weight"]) == {"value", "exp_avg", "exp_avg_sq", "step"}
        assert list(checkpoint.state.optimizers) == ["optim"]
    load(other, storage_reader=UcpStorageReader(tmp_path / "a.ucp"))
    assert same(state, other)
    again = trained(3)
    ucpformat.load(tmp_path / "a.ucp", again)
    assert same(state, again)
    ucpformat.save(tmp_path / "b.ucp", state)
    load(fresh := trained(4), storage_reader=UcpStorageReader(tmp_path / "b.ucp"))
    assert same(state, fresh)


def test_a_writer_and_a_reader_serve_many_checkpoints(tmp_path: Path) -> None:
    writer, reader = UcpStorageWriter(), UcpStorageReader()
    for number in range(2):
        state = {"w": torch.full((3,), float(number))}
        save(state, checkpoint_id=tmp_path / f"{number}.ucp", storage_writer=writer)
    for number in range(2):
        state = {"w": torch.zeros(3)}
        load(state, checkpoint_id=tmp_path / f"{number}.ucp", storage_reader=reader)
        assert state["w"].tolist() == [number] * 3


def test_part_of_a_checkpoint(tmp_path: Path) -> None:
    state = trained(1)
    save(copy.deepcopy(state), storage_writer=UcpStorageWriter(tmp_path / "a.ucp"))
    model = {"model": {"0.weight": torch.zeros(4, 6), "absent": torch.ones(2)}}
    with pytest.raises(CheckpointException, match="absent"):
        load(model, storage_reader=UcpStorageReader(tmp_path / "a.ucp"))
    planner = DefaultLoadPlanner(allow_partial_load=True)
    load(model, storage_reader=UcpStorageReader(tmp_path / "a.ucp"), planner=planner)
    assert torch.equal(model["model"]["0.weight"], state["model"]["0.weight"])
    assert model["model"]["absent"].tolist() == [1, 1]
    found = _load_state_dict_from_keys({"notes", "step"}, storage_reader=UcpStorageReader(tmp_path / "a.ucp"))
    assert found == {"notes": state["notes"], "step": 1}


def test_keys_without_paths(tmp_path: Path) -> None:
    planner = DefaultSavePlanner(flatten_state_dict=False)
    state = {"a.b": torch.arange(3), "c": OrderedDict(x=1)}
    save(state, storage_writer=UcpStorageWriter(tmp_path / "a.ucp"), planner=planner)
    into = {"a.b": torch.zeros(3, dtype=torch.int64), "c": None}
    load_planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    load(into, storage_reader=UcpStorageReader(tmp_path / "a.ucp"), planner=load_planner)
    assert torch.equal(torch.as_tensor(into["a.b"]), state["a.b"])  # type: ignore[arg-type]
    assert into["c"] == OrderedDict(x=1)


def test_types_are_cast_on_request(tmp_path: Path) -> None:
    save({"w": torch.tensor([1.5, 2.0])}, storage_writer=UcpStorageWriter(tmp_path / "a.ucp"))
    half = {"w": torch.zeros(2, dtype=torch.bfloat16)}
    with pytest.raises(CheckpointException, match="UCP-E-MISMATCH"):
        load(half, storage_reader=UcpStorageReader(tmp_path / "a.ucp"))
    load(half, storage_reader=UcpStorageReader(tmp_path / "a.ucp", cast=True))
    assert half["w"].tolist() == [1.5, 2.0]


class Foreign:
    """No plain data."""


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (lambda: {"w": torch.ones(2), "x": Foreign()}, "UCP-E-PICKLE"),
        (lambda: {"w": torch.zeros(2, dtype=torch.complex32)}, "UCP-E-DTYPE"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_kept_is_refused(
    tmp_path: Path, state: Callable[[], dict[str, Any]], code: str
) -> None:
    with pytest.raises(CheckpointException, match=code):
        save(state(), storage_writer=UcpStorageWriter(tmp_path / "a.ucp"))
    assert not (tmp_path / "a.ucp" / "ucp.json").exists()
    save({"w": torch.ones(2)}, storage_writer=UcpStorageWriter(tmp_path / "a.ucp"))
    assert list(ucpformat.validate(tmp_path / "a.ucp")) == []


def test_a_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    save({"w": torch.ones(2)}, storage_writer=UcpStorageWriter(tmp_path / "a.ucp"))
    with pytest.raises(CheckpointException, match="UCP-E-EXISTS"):
        save({"w": torch.zeros(2)}, storage_writer=UcpStorageWriter(tmp_path / "a.ucp"))
    load(state := {"w": torch.zeros(2)}, storage_reader=UcpStorageReader(tmp_path / "a.ucp"))
    assert state["w"].tolist() == [1, 1]


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    save({"w": torch.ones(2)}, storage_writer=UcpStorageWriter(tmp_path / "a.ucp"))
    with pytest.raises(CheckpointException, match=r"Size mismatch .* for w"):
        load({"w": torch.zeros(3)}, storage_reader=UcpStorageReader(tmp_path / "a.ucp"))
    with pytest.raises(CheckpointException, match="UCP-E-NOT-FOUND"):
        load({"w": torch.zeros(3)}, storage_reader=UcpStorageReader(tmp_path / "none.ucp"))
    with pytest.raises(ucpformat.UcpError, match="use_collectives"):
        save({"w": torch.ones(2)}, storage_writer=UcpStorageWriter(tmp_path / "b.ucp"), use_collectives=False)
