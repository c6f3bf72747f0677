"""Files of torch.save through a checkpoint and back: what torch.load gives is the same."""

from __future__ import annotations

import datetime
import pathlib
import random
import warnings
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ucpformat as ucp
from tests.conversion.damage import damaged, outcome
from tests.conversion.engine.jobs import carry_out
from tests.conversion.jobs import job_of, whole
from ucpformat.conversion.contract.content import Content
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.conversion.formats.torch_save.exporter import export_torch_save
from ucpformat.conversion.formats.torch_save.importer import detect, import_torch_save
from ucpformat.errors import UcpError
from ucpformat.tensor_files.byte_source import open_range
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES
from ucpformat.tensor_files.zip_records import record_start, zip_records

TYPES = [getattr(torch, name) for name in TORCH_DTYPES]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    kind = draw(st.sampled_from(TYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = int(np.prod(shape)) * kind.itemsize
    data = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if kind == torch.bool:
        data = bytearray(byte & 1 for byte in data)
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    found: torch.Tensor = flat.view(kind).reshape(shape)
    return found.transpose(0, -1) if len(shape) > 1 and draw(st.booleans()) else found


KEYS = st.text("abxyz_", min_size=1, max_size=4)
LEAVES = st.one_of(
    tensors(),
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.binary(min_size=1, max_size=5),  # torch refuses the pickle of empty ones, its own too
    st.tuples(st.integers(), st.floats()),
    st.lists(st.integers(), max_size=3),
)
STATES = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            st.dictionaries(KEYS, inner, max_size=3),
            st.dictionaries(st.integers(0, 9), inner, max_size=3),
            st.lists(inner, max_size=3),
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor)
        raw = [t.detach().contiguous().reshape(-1).view(torch.uint8).tolist() for t in (one, other)]
        return (one.dtype, one.shape, raw[0]) == (other.dtype, other.shape, raw[1])
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[k], other[k]) for k in one)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return type(one) is type(other) and (one == other or (one != one and other != other))


def through(state: object, folder: Path) -> Path:
    torch.save(state, folder / "a.pt")
    assert detect_format(folder / "a.pt") == "torch-save"
    convert_checkpoint(
        folder / "a.pt", folder / "c.ucp", source_format="torch-save", destination_format="ucp"
    )
    convert_checkpoint(
        folder / "c.ucp", folder / "b.pt", source_format="ucp", destination_format="torch-save"
    )
    return folder / "b.pt"


@given(STATES)
@settings(max_examples=40)
def test_nested_states_come_back(tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]) -> None:
    back = through(state, tmp_path_factory.mktemp("ts"))
    assert same(state, torch.load(back, weights_only=True))


def training_state() -> tuple[torch.nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 5, bias=False)
    )
    model[2].weight = model[0].weight  # tied
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10)
    model(torch.arange(5)).square().sum().backward()
    optimizer.step()
    schedule.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": schedule.state_dict(),
        "global_step": 1,
        "torch_rng": torch.get_rng_state(),
    }
    return model, optimizer, state


def test_a_training_state_goes_on_from_what_comes_back(tmp_path: Path) -> None:
    model, optimizer, state = training_state()
    back = torch.load(through(state, tmp_path), weights_only=True)
    assert same(state, back)
    assert back["model"]["0.weight"].data_ptr() == back["model"]["2.weight"].data_ptr()
    checkpoint = ucp.open(tmp_path / "c.ucp")
    assert checkpoint["0.weight"].atom.aliases == ("2.weight",)
    assert checkpoint.root.progress is not None
    assert checkpoint.root.progress.step == 1
    model.load_state_dict(back["model"])
    optimizer.load_state_dict(back["optimizer"])


def test_storages_begin_where_they_can_be_mapped(tmp_path: Path) -> None:
    """At multiples of 64 bytes, as torch writes them."""
    path = through({f"w{'x' * number}": torch.ones(number + 1) for number in range(9)}, tmp_path)
    with open_range(path, 0, path.stat().st_size, "archive") as source:
        storages = [record for name, record in zip_records(source).items() if "/data/" in name]
        assert len(storages) == 9
        assert {record_start(source, record) % 64 for record in storages} == {0}


def test_what_is_no_plain_data_to_torch_but_is_to_us(tmp_path: Path) -> None:
    """Such as random states; torch reads the way back as it reads the original, without weights_only."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.default_rng(0).bit_generator.state,
        "array": np.arange(3),
        "number": np.float32(1.5),
        "size": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "layout": torch.strided,
        "path": pathlib.PurePosixPath("/a/b"),
        "when": datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC),
        "default": defaultdict(list, a=[1]),
        "ordered": OrderedDict(a=1),
        "set": {1, 2},
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    back = torch.load(through(state, tmp_path), weights_only=False)
    assert state.keys() == back.keys()
    for name, value in state.items():
        if name != "parameter":
            assert same(value, back[name]), name
    assert back["parameter"].tolist() == [1, 1]


RAN: list[int] = []


def run() -> None:
    RAN.append(1)


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return run, ()


class Unknown:
    def __init__(self) -> None:
        self.x = 1


@pytest.mark.parametrize(
    "what", [Malicious(), Unknown(), torch.nn.Linear(1, 1), run], ids=lambda w: type(w).__name__
)
def test_what_is_code_is_refused_and_not_run(tmp_path: Path, what: object) -> None:
    for number, state in enumerate(
        [{"model": {"w": torch.ones(1)}, "x": what}, {"x": [torch.ones(1), what]}, what]
    ):
        path = tmp_path / f"{number}.pt"
        torch.save(state, path)
        found = outcome(lambda path=path: import_torch_save(path))  # type: ignore[misc]
        assert found is not None
        assert (found.code, found.at) == ("UCP-E-PICKLE", path.name)
    assert RAN == []


def test_other_files_are_refused(tmp_path: Path) -> None:
    torch.save(torch.ones(1), tmp_path / "tensor.pt")
    torch.save([torch.ones(1)], tmp_path / "list.pt")
    torch.save({torch.float32: torch.ones(1)}, tmp_path / "keys.pt")
    torch.save({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}, tmp_path / "twice.pt")
    with warnings.catch_warnings(action="ignore"):
        script: Any = torch.jit.script(torch.nn.Linear(1, 1))
        script.save(str(tmp_path / "script.pt"))
    for name, code in {
        "tensor": "UCP-E-SOURCE",
        "list": "UCP-E-SOURCE",
        "keys": "UCP-E-OBJECT",
        "twice": "UCP-E-NAME",
        "script": "UCP-E-SOURCE",
    }.items():
        assert detect(tmp_path / f"{name}.pt")
        found = outcome(lambda name=name: import_torch_save(tmp_path / f"{name}.pt"))  # type: ignore[misc]
        assert found is not None
        assert (found.code, found.at) == (code, f"{name}.pt")


@given(st.data())
def test_a_damaged_file_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    torch.save(
        {"model": {"w": torch.arange(9.0)}, "step": 1, "o": [{"a": torch.ones(2)}]}, folder / "real.pt"
    )
    (folder / "x.pt").write_bytes(data.draw(damaged((folder / "real.pt").read_bytes())))
    found = outcome(lambda: import_torch_save(folder / "x.pt"))
    assert found is None or found.at == "x.pt"
    detect(folder / "x.pt")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    found = outcome(lambda: import_torch_save(tmp_path / "none.pt"))
    assert found is not None
    assert (found.code, found.at) == ("UCP-E-SOURCE", "none.pt")
    assert not detect(tmp_path / "none.pt")
    assert not detect(tmp_path)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    import ml_dtypes

    four = job_of({"w": {"value": np.zeros(2, ml_dtypes.float4_e2m1fn)}})
    with pytest.raises(UcpError) as refusal:
        export_torch_save(Content(four), tmp_path / "x.pt")
    assert refusal.value.code == "UCP-E-DTYPE"
    fine = job_of({"w": {"value": np.zeros(2, np.float32)}}, blobs={"model/w": ("text/plain", b"")})
    plan = export_torch_save(Content(fine), tmp_path / "x.pt")
    carry_out(plan, tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt", weights_only=False)["model"]["w"].tolist() == [0, 0]
    with pytest.raises(UcpError) as refusal:
        carry_out(plan, tmp_path / "x.pt")
    assert refusal.value.code == "UCP-E-EXISTS"
    assert whole(import_torch_save(tmp_path / "x.pt"))["w", "value"].tolist() == [0, 0]
    opaque = job_of({}, blobs={"o": ("application/x-pytorch-dcp-object", b"")})
    assert [lost.what for lost in export_torch_save(Content(opaque), tmp_path / "y.pt").dropped] == [
        "blobs/o"
    ]
