"""`ucpformat.save` and `ucpformat.load` on states of torch tensors, and training that goes on as if uninterrupted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.placement_types import _StridedShard

import ucpformat
from tests.conversion.formats.dcp.make import odd_state
from tests.conversion.formats.dcp.stand_ins import spelled, stand_in
from tests.conversion.stock_torch import fingerprint, loaded
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError
from ucpformat.integrations.torch_dcp import (
    UcpLoadPlanner,
    UcpSavePlanner,
    UcpStorageReader,
    UcpStorageWriter,
)
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES

FORMS = {"nested": StateDictOptions(), "flattened": StateDictOptions(flatten_optimizer_state_dict=True)}


def content(state: Any) -> str:
    """The state bit for bit, whatever the order of its members; numpy arrays count as such."""

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ordered(value[key]) for key in sorted(value, key=lambda key: (str(type(key)), key))}
        return [ordered(item) for item in value] if isinstance(value, list) else stand_in(value)

    return spelled(ordered(state))


def load_torch(path: Path) -> dict[str, Any]:
    return ucpformat.load(path, tensors="torch")


class Net(nn.Module):
    """Tied weights, a 0-d parameter, an integer buffer, a bfloat16 parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 4))
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.narrow = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        self.register_buffer("steps", torch.tensor(0))
        self.steps: torch.Tensor

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        hidden: torch.Tensor = self.head(self.body(self.embed(ids)) * self.scale * self.narrow.float())
        return hidden


def fresh() -> tuple[Net, torch.optim.AdamW, torch.optim.lr_scheduler.LRScheduler]:
    net = Net()
    decayed = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), foreach=False)
    return net, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)


def train(net: Net, optimizer: torch.optim.Optimizer, scheduler: Any, steps: range) -> None:
    for step in steps:
        ids = torch.randint(0, 11, (5,), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(net(ids), ids)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


@pytest.mark.parametrize("form", ["raw", "nested", "flattened"])
def test_training_goes_on_as_if_uninterrupted(tmp_path: Path, form: str) -> None:
    torch.manual_seed(0)
    net, optimizer, scheduler = fresh()
    train(net, optimizer, scheduler, range(4))
    if form == "raw":
        model, optim = net.state_dict(), optimizer.state_dict()
    else:
        model, optim = get_state_dict(net, optimizer, options=FORMS[form])
    state = {
        "model": model,
        "optim": optim,
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
        "step": 4,
    }
    ucpformat.save(tmp_path / "s", state, step=4)
    assert ucpformat.validate(tmp_path / "s") == []
    train(net, optimizer, scheduler, range(4, 9))
    uninterrupted = content(net.state_dict())

    torch.manual_seed(99)
    net, optimizer, scheduler = fresh()
    found = load_torch(tmp_path / "s")
    if form == "raw":
        net.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optim"])
    else:
        set_state_dict(
            net,
            optimizer,
            model_state_dict=found["model"],
            optim_state_dict=found["optim"],
            options=FORMS[form],
        )
    scheduler.load_state_dict(found["scheduler"])
    torch.set_rng_state(found["rng"])
    train(net, optimizer, scheduler, range(found["step"], 9))
    assert content(net.state_dict()) == uninterrupted


@pytest.mark.parametrize("form", ["nested", "flattened"])
def test_states_of_get_state_dict_share_atoms_and_come_back(tmp_path: Path, form: str) -> None:
    net, optimizer, scheduler = fresh()
    train(net, optimizer, scheduler, range(2))
    model, optim = get_state_dict(net, optimizer, options=FORMS[form])
    state = {"model": model, "optim": optim}
    ucpformat.save(tmp_path / "s", state)
    assert content(load_torch(tmp_path / "s")) == content(state)
    with ucpformat.open(tmp_path / "s") as checkpoint:
        for name, _ in net.named_parameters():
            assert set(checkpoint[name]) == {"value", "exp_avg", "exp_avg_sq", "step"}
        assert checkpoint["embed.weight"].atom.aliases == ("head.weight",)
        assert set(checkpoint["steps"]) == {"value"}
        decay = {
            atom: group.options["weight_decay"]
            for group in checkpoint.state.optimizers["optim"].groups
            for atom in group.atoms
        }
        assert decay.keys() == {name for name, _ in net.named_parameters()}
        assert decay["embed.weight"] == 0.1
        assert decay["scale"] == {"$float": "0.0"}
        assert checkpoint.state.values == {}


def test_a_raw_optimizer_keeps_its_integer_keys(tmp_path: Path) -> None:
    """Integers say nothing about names: such states keep their own atoms, even beside a parameter called 0."""
    net = nn.ParameterList([torch.ones(2), torch.ones(3)])
    optimizer = torch.optim.Adam(reversed(list(net.parameters())))
    sum(p.sum() for p in net.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    state = {"model": net.state_dict(), "optim": optimizer.state_dict()}
    ucpformat.save(tmp_path / "s", state)
    found = load_torch(tmp_path / "s")
    assert content(found) == content(state)
    assert list(found["optim"]["state"]) == [0, 1]
    optimizer.load_state_dict(found["optim"])
    with ucpformat.open(tmp_path / "s") as checkpoint:
        assert set(checkpoint["0"]) == {"value"}
        assert set(checkpoint["optim.state.0.exp_avg"]) == {"value"}


def test_tied_weights_are_stored_once_and_restored_under_both_names(tmp_path: Path) -> None:
    net = Net()
    ucpformat.save(tmp_path / "s", net.state_dict())
    with ucpformat.open(tmp_path / "s") as checkpoint:
        assert "head.weight" not in list(checkpoint)
        assert checkpoint["head.weight"].atom.name == "embed.weight"
        assert checkpoint["embed.weight"].atom.aliases == ("head.weight",)
    assert content(load_torch(tmp_path / "s")) == content(dict(net.state_dict()))
    convert_checkpoint(tmp_path / "s", tmp_path / "dcp", source_format="ucp", destination_format="dcp")
    assert fingerprint(loaded(tmp_path / "dcp")) == fingerprint(dict(net.state_dict()))


def test_every_data_type_and_every_memory_layout(tmp_path: Path) -> None:
    odd = odd_state()
    state = {
        "dtypes": odd["dtypes"],
        "layouts": {**odd["layouts"], "parameter": torch.ones(2)},
        "scalars": {name: tensor[0, 0] for name, tensor in odd["dtypes"].items()},
        "views": {
            "conjugate": torch.arange(3).to(torch.complex64).mul(1j).conj(),
            "negative": torch.tensor([1 + 2j, 3j]).conj().imag,
            "grad": torch.ones(2, requires_grad=True) * 2,
        },
    }
    assert state["dtypes"].keys() == TORCH_DTYPES.keys()
    assert state["views"]["conjugate"].is_conj()
    assert state["views"]["negative"].is_neg()
    ucpformat.save(tmp_path / "s", {**state, "parameter": nn.Parameter(torch.ones(2))})
    found = load_torch(tmp_path / "s")
    assert type(found.pop("parameter")) is torch.Tensor
    plain = dict(state)
    plain["views"] = {
        name: view.resolve_conj().resolve_neg().clone() for name, view in state["views"].items()
    }
    assert content(found) == content(plain)
    assert ucpformat.load(tmp_path / "s")["dtypes"]["bfloat16"].dtype == ml_dtypes.bfloat16


def test_loading_in_place_keeps_every_tensor_where_it_is(tmp_path: Path) -> None:
    torch.manual_seed(1)
    source = Net()
    odd = odd_state()["dtypes"]
    listed = [torch.ones(2), {"inner": torch.zeros(3)}, 5]
    ucpformat.save(tmp_path / "s", {"net": source.state_dict(), "odd": odd, "listed": listed, "epoch": 3})
    target = Net()
    zeros = {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in odd.items()}
    strided = torch.zeros(4, 4)[::2, 1]
    state: dict[str, Any] = {
        "net": dict(target.state_dict(keep_vars=True)),
        "odd": zeros,
        "listed": [strided, {"inner": torch.ones(3)}, None],
        "epoch": 0,
    }
    places = {name: (id(t), t.data_ptr()) for name, t in [*state["net"].items(), *zeros.items()]}
    assert ucpformat.load(tmp_path / "s", state) is state
    assert content(target.state_dict()) == content(source.state_dict())
    assert content(zeros) == content(odd)
    assert strided.tolist() == [1, 1]
    assert (state["listed"][2], state["epoch"]) == (5, 3)
    assert {name: (id(t), t.data_ptr()) for name, t in [*state["net"].items(), *zeros.items()]} == places
    assert target.head.weight is target.embed.weight
    assert target.embed.weight.requires_grad


def test_a_wrong_model_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    ucpformat.save(tmp_path / "s", nn.Linear(3, 2).state_dict())
    net = nn.Linear(2, 3).to(torch.bfloat16)
    before = content(net.state_dict())
    with pytest.raises(UcpError) as caught:
        ucpformat.load(tmp_path / "s", dict(net.state_dict()))
    assert caught.value.code == "UCP-E-MISMATCH"
    assert caught.value.message.split("\n  ")[1:] == [
        "weight: is bfloat16[3, 2], the checkpoint has float32[2, 3]",
        "bias: is bfloat16[3], the checkpoint has float32[2]",
    ]
    assert content(net.state_dict()) == before
    with pytest.raises(UcpError) as caught:
        ucpformat.load(tmp_path / "s", {"weight": torch.zeros(2, 3, dtype=torch.complex64).conj()})
    assert (caught.value.code, caught.value.at) == ("UCP-E-MISMATCH", "weight")


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_pending_reduction_is_refused_by_name(one_process: None, tmp_path: Path) -> None:
    mesh = init_device_mesh("cpu", (1,))
    whole = DTensor.from_local(torch.arange(2.0), mesh)
    pending = DTensor.from_local(torch.ones(2), mesh, [Partial()])
    with pytest.raises(UcpError) as caught:
        ucpformat.save(tmp_path / "s", {"a": whole, "b": {"c": pending}})
    assert (caught.value.code, caught.value.at) == ("UCP-E-LAYOUT", "b.c/value")
    assert not (tmp_path / "s").exists()
    ucpformat.save(tmp_path / "s", {"a": whole})
    with pytest.raises(UcpError, match="pending reduction"):
        ucpformat.load(tmp_path / "s", {"a": pending})
    whole.to_local().zero_()
    ucpformat.load(tmp_path / "s", {"a": whole})
    assert whole.to_local().tolist() == [0.0, 1.0]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["sparse", "quantised", "meta", "half-complex", "uninitialised", "inside"])
def test_other_tensors_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    leaf: Any = {
        "sparse": lambda: torch.eye(2).to_sparse(),
        "quantised": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),  # type: ignore[no-untyped-call]
        "meta": lambda: torch.empty(2, device="meta"),
        "half-complex": lambda: torch.zeros(2, dtype=torch.complex32),
        "uninitialised": nn.UninitializedParameter,
        "inside": lambda: (1, torch.empty(2, device="meta")),
    }[kind]()
    with pytest.raises(UcpError) as caught:
        ucpformat.save(tmp_path / "s", {"a": torch.ones(1), "b": {"c": leaf}})
    assert caught.value.code == ("UCP-E-DTYPE" if kind in ("quantised", "half-complex") else "UCP-E-MISMATCH")
    assert caught.value.at.partition("#")[0] == "b.c"
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("dtype", ["int4", "float4_e2m1fn", "float8_e3m4"])
def test_types_that_torch_lacks_load_as_numpy_alone(tmp_path: Path, dtype: str) -> None:
    data = np.array([0, 1], dtype=np.uint8).view(getattr(ml_dtypes, dtype))
    ucpformat.save(tmp_path / "s", {"w": data})
    assert ucpformat.load(tmp_path / "s")["w"].dtype == data.dtype
    with pytest.raises(UcpError) as caught:
        load_torch(tmp_path / "s")
    assert caught.value.code == "UCP-E-DTYPE"


def test_tensors_in_tuples_and_torchs_objects(tmp_path: Path) -> None:
    state = {
        "t": (torch.arange(3), {"b": torch.ones(1, dtype=torch.bfloat16)}),
        "o": [torch.Size([1]), torch.float16, torch.device("cpu"), torch.strided],
    }
    ucpformat.save(tmp_path / "s", state)
    assert content(load_torch(tmp_path / "s")) == content(state)
    array = ucpformat.load(tmp_path / "s")["t"][0]
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [0, 1, 2]


def test_without_torch_nothing_asks_for_it(tmp_path: Path) -> None:
    """What torch saved is read where torch is not: tensors as numpy arrays, its objects by name."""
    ucpformat.save(tmp_path / "s", {"w": torch.ones(2), "o": (torch.float16, torch.zeros(1)), "n": 1})
    program = (
        "import sys, numpy, ucpformat; state = {'w': numpy.zeros(2, 'float32'), 'o': None, 'n': 0};"
        "ucpformat.load(sys.argv[1], state); new = ucpformat.load(sys.argv[1]);"
        "assert 'torch' not in sys.modules;"
        "print(state['w'].tolist(), state['n'], new['o'][0].type, new['o'][1].tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s")], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["[1.0,", "1.0]", "1", "torch.dtype", "[0.0]"]


class Counter:
    """As data loaders and schedulers are."""

    def __init__(self, at: int) -> None:
        self.at = at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_objects_themselves_are_saved_and_filled(tmp_path: Path) -> None:
    def job(seed: int, steps: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1 * (1 + seed))
        for _ in range(steps):
            net(torch.randn(4, 3)).square().sum().backward()
            optimizer.step()
        return {"model": net, "optim": optimizer, "data": Counter(seed), "epoch": seed}

    made = job(1, 2)
    ucpformat.save(tmp_path / "s", made)
    with ucpformat.open(tmp_path / "s") as checkpoint:
        assert set(checkpoint["0.weight"]) == {"value", "exp_avg", "exp_avg_sq", "step"}
    for steps in (0, 1):
        other = job(2, steps)
        ucpformat.load(tmp_path / "s", other)
        assert content(other["model"].state_dict()) == content(made["model"].state_dict())
        assert content(other["optim"].state_dict()["state"]) == content(made["optim"].state_dict()["state"])
        assert other["optim"].param_groups[0]["lr"] == made["optim"].param_groups[0]["lr"]
        assert (other["data"].at, other["epoch"]) == (1, 1)
    with pytest.raises(UcpError) as caught:
        ucpformat.save(tmp_path / "t", {"optim": made["optim"]})
    assert (caught.value.code, caught.value.at) == ("UCP-E-OBJECT", "optim")


def test_planners_take_strided_shards_apart(one_process: None, tmp_path: Path) -> None:
    mesh = init_device_mesh("cpu", (1,))
    whole = torch.arange(12.0).reshape(4, 3)

    def state() -> dict[str, Any]:
        shard = DTensor.from_local(whole.clone(), mesh, [_StridedShard(0, split_factor=2)])
        return {"model": {"s": shard, "p": torch.ones(2)}, "epoch": 4}

    dcp_save(state(), storage_writer=UcpStorageWriter(tmp_path / "s"), planner=UcpSavePlanner())
    into = state()
    into["model"]["s"].to_local().zero_()
    into["model"]["p"].zero_()
    dcp_load(into, storage_reader=UcpStorageReader(tmp_path / "s"), planner=UcpLoadPlanner())
    assert torch.equal(into["model"]["s"].to_local(), whole)
    assert into["model"]["p"].tolist() == [1, 1]
    into["model"]["absent"] = state()["model"]["s"]
    with pytest.raises(CheckpointException, match="absent"):
        dcp_load(into, storage_reader=UcpStorageReader(tmp_path / "s"), planner=UcpLoadPlanner())
    partial = UcpLoadPlanner(allow_partial_load=True)
    dcp_load(into, storage_reader=UcpStorageReader(tmp_path / "s"), planner=partial)
