"""Where everything goes that a training script keeps: the table in docs/torch.md names these tests."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import ucpformat
from tests.conversion.composites import Recipe, Rounding, Scaled, Twice, alike, scaled
from tests.processes import launch
from ucpformat import UcpError, validate

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

Job = dict[str, Any]


def saved(tmp_path: Path, state: Job) -> Path:
    path = tmp_path / "s.ucp"
    ucpformat.save(path, state)
    assert list(validate(path)) == []
    return path


def content(value: Any) -> Any:
    """What is compared: objects by their state dicts, tensors by their bytes."""
    if hasattr(value, "state_dict"):
        return content(value.state_dict())
    if isinstance(value, dict):
        return {key: content(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [content(item) for item in value]
    if isinstance(value, Scaled):
        return (value.recipe, content(value.codes), content(value.scale))
    if isinstance(value, torch.Tensor):
        raw = value.detach().contiguous()
        return (
            raw.dtype,
            tuple(raw.shape),
            raw.reshape(-1).view(torch.uint8).tolist() if raw.numel() else [],
        )
    return value.getvalue() if isinstance(value, io.BytesIO) else value


def train(job: Job, steps: int) -> None:
    net, loss = job["model"], None
    optimizers = [value for value in job.values() if isinstance(value, torch.optim.Optimizer)]
    for step in range(steps):
        torch.manual_seed(step)
        loss = net(torch.randn(5, 6)).square().mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if "ema" in job:
            job["ema"].update_parameters(net)
        if "schedule" in job:
            job["schedule"].step()


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))


def with_ema(seed: int) -> Job:
    model = net(seed)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)  # type: ignore[no-untyped-call]
    return {"model": model, "optim": torch.optim.AdamW(model.parameters()), "ema": ema}


def with_two_optimizers(seed: int) -> Job:
    """Both keep states of every parameter: neither may take the other's place."""
    model = net(seed)
    return {
        "model": model,
        "slow": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "fast": torch.optim.SGD(model.parameters(), lr=0.01 * (1 + seed), momentum=0.5),
    }


def with_optimizers_of_parts(seed: int) -> Job:
    model = net(seed)
    return {
        "model": model,
        "first": torch.optim.AdamW(model[0].parameters()),  # type: ignore[index]
        "last": torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9),  # type: ignore[index]
    }


def with_factors(seed: int) -> Job:
    model = net(seed)
    return {"model": model, "optim": torch.optim.Adafactor(model.parameters(), lr=0.1)}


def with_schedules(seed: int) -> Job:
    model = net(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedules: list[Any] = [
        torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9),
    ]
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, schedules, [3])
    return {"model": model, "optim": optimizer, "schedule": schedule}


JOBS = [with_ema, with_two_optimizers, with_optimizers_of_parts, with_factors, with_schedules]


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("make", JOBS)
def test_training_goes_on_where_it_was(tmp_path: Path, make: Callable[[int], Job]) -> None:
    job = make(0)
    train(job, 4)
    other = make(1)
    train(other, 1)
    ucpformat.load(saved(tmp_path, job), other)
    assert content(other) == content(job)
    train(job, 3)
    train(other, 3)
    assert content(other) == content(job)


def test_slots_have_the_names_of_states(tmp_path: Path) -> None:
    job = with_factors(0)
    train(job, 1)
    with ucpformat.open(saved(tmp_path, job)) as checkpoint:
        assert set(checkpoint["0.weight"]) == {"value", "step", "row_var", "col_var"}
        assert checkpoint["0.weight"]["row_var"].shape == (4, 1)
        assert checkpoint["0.weight"]["col_var"].shape == (1, 6)


def test_states_of_two_optimizers_of_one_parameter_are_atoms_of_their_own(tmp_path: Path) -> None:
    job = with_two_optimizers(0)
    train(job, 1)
    with ucpformat.open(saved(tmp_path, job)) as checkpoint:
        assert set(checkpoint["0.weight"]) == {"value"}
        names = {f"{name}.state.0.weight.momentum_buffer" for name in ("slow", "fast")}
        assert names <= set(checkpoint)


def test_gradient_scaler(tmp_path: Path) -> None:
    def scaler(scale: float) -> Any:
        made = torch.amp.GradScaler("cpu", init_scale=scale)
        made.scale(torch.ones(1))
        return made

    job, other = {"scaler": scaler(8.0)}, {"scaler": scaler(2.0)}
    ucpformat.load(saved(tmp_path, job), other)
    assert content(other) == content(job)
    assert other["scaler"].get_scale() == 8.0


class Engine(nn.Module):
    """Keeps bytes that nobody else understands, as fused layers of fp8 do."""

    def __init__(self, extra: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.extra = extra

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


PICKLE = b"\x80\x04cos\nsystem\n(S'echo executed'\ntR."


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (lambda: PICKLE, lambda: b""),
        (lambda: io.BytesIO(PICKLE), io.BytesIO),
        (
            lambda: torch.frombuffer(bytearray(PICKLE), dtype=torch.uint8),
            lambda: torch.empty(3, dtype=torch.uint8),
        ),
    ],
    ids=["bytes", "stream", "tensor"],
)
def test_extra_states_are_bytes_and_stay_so(
    tmp_path: Path, mine: Callable[[], Any], theirs: Callable[[], Any]
) -> None:
    """Also where a fresh module has fewer of them."""
    state = {"model": Engine(mine())}
    path = saved(tmp_path, state)
    other: Any = {"model": Engine(theirs())}
    ucpformat.load(path, other)
    assert content(other["model"].extra) == content(state["model"].extra)
    again = ucpformat.load(path, tensors="torch")
    assert content(again["model"]["_extra_state"]) == content(state["model"].extra)


def test_a_stream_is_a_blob(tmp_path: Path) -> None:
    path = saved(tmp_path, {"model": Engine(io.BytesIO(PICKLE))})
    with ucpformat.open(path) as checkpoint:
        assert checkpoint.blobs["model._extra_state"] == PICKLE
        assert checkpoint.state.values == {}


@pytest.mark.parametrize("kind", [Scaled, Twice])
def test_subclasses_are_taken_apart_and_filled(tmp_path: Path, kind: type[Scaled]) -> None:
    state: Any = {
        "model": {"w": scaled(1, kind), "b": torch.ones(3)},
        "optim": {"state": {"w": {"m": scaled(2)}}},
    }
    path = saved(tmp_path, state)
    part = "value.whole" if kind is Twice else "value"
    with ucpformat.open(path) as checkpoint:
        assert set(checkpoint["w"]) == {f"{part}.codes", f"{part}.scale", "m.codes", "m.scale"}
        assert checkpoint["w"]["m.codes"].dtype.name == "int8"
    w, m = scaled(3, kind), scaled(4)
    other: Any = {"model": {"w": w, "b": torch.zeros(3)}, "optim": {"state": {"w": {"m": m}}}}
    ucpformat.load(path, other)
    assert alike(w, state["model"]["w"])
    assert alike(m, state["optim"]["state"]["w"]["m"])
    assert other["model"]["w"] is w


def test_a_subclass_is_made_anew_only_where_its_class_is_allowed(tmp_path: Path) -> None:
    whole = scaled(1, Twice)
    path = saved(tmp_path, {"w": whole})
    apart = ucpformat.load(path, tensors="torch")["w"]
    assert set(apart) == {"whole", "__tensor_flatten__"}
    assert torch.equal(apart["whole"]["codes"], whole.codes)
    for allowed in ([], [Twice, Scaled], [Twice, Scaled, Recipe]):
        with torch.serialization.safe_globals([*allowed]):
            assert isinstance(ucpformat.load(path, tensors="torch")["w"], dict)
    with torch.serialization.safe_globals([Twice, Scaled, Recipe, Rounding]):
        made = ucpformat.load(path, tensors="torch")["w"]
    assert alike(made, whole)


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (lambda: scaled(1, rounding=Rounding.STOCHASTIC), "STOCHASTIC"),
        (lambda: scaled(1, Twice), "composites.Twice"),
        (lambda: torch.zeros(6, 4), "is a tensor, the checkpoint has a tests.conversion.composites.Scaled"),
        (lambda: 1, "is no tensor, the checkpoint has a tests.conversion.composites.Scaled"),
    ],
    ids=["context", "class", "plain", "value"],
)
def test_another_kind_of_tensor_is_refused_by_name(
    tmp_path: Path, leaf: Callable[[], Any], said: str
) -> None:
    path = saved(tmp_path, {"w": scaled(1)})
    with pytest.raises(UcpError, match=r"w: .*Scaled") as caught:
        ucpformat.load(path, {"w": leaf()})
    assert said in caught.value.message


def test_a_subclass_is_refused_where_a_plain_tensor_is(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.zeros(6, 4)})
    with pytest.raises(UcpError, match=r"w: is a .*Scaled.*the checkpoint has a tensor float32\[6, 4\]"):
        ucpformat.load(path, {"w": scaled(1)})


def test_what_cannot_be_described_is_refused_by_name(tmp_path: Path) -> None:
    whole = scaled(1)
    whole.recipe = Recipe(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(UcpError) as caught:
        ucpformat.save(tmp_path / "s.ucp", {"w": whole})
    assert (caught.value.code, caught.value.at) == ("UCP-E-OBJECT", "w#/context/recipe/rounding")
    clash = {"w": scaled(1), "w.codes": torch.ones(1)}
    with pytest.raises(UcpError, match="a part of a tensor has the name"):
        ucpformat.save(tmp_path / "s.ucp", clash)


DTYPES = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


@pytest.mark.parametrize("name", [*DTYPES, "complex64", "complex128", "bfloat16", "uint16", "uint64"])
def test_types_that_are_kept(tmp_path: Path, name: str) -> None:
    kind = getattr(torch, name)
    whole = (
        torch.arange(4, dtype=torch.float32).to(kind)
        if not name.startswith("u")
        else torch.ones(4, dtype=kind)
    )
    other = {"w": torch.empty(4, dtype=kind)}
    ucpformat.load(saved(tmp_path, {"w": whole}), other)
    assert content(other["w"]) == content(whole)


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "uint4", "int2", "complex32"])
@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_types_that_pack_or_that_numpy_lacks_are_refused_by_name(tmp_path: Path, name: str) -> None:
    whole = torch.empty(4, dtype=torch.uint8).view(getattr(torch, name)) if name != "complex32" else None
    with pytest.raises(UcpError) as caught:
        ucpformat.save(
            tmp_path / "s", {"w": torch.zeros(2, dtype=torch.complex32) if whole is None else whole}
        )
    assert (caught.value.code, caught.value.at) == ("UCP-E-DTYPE", "w")


def test_tied_parameters_are_one_atom(tmp_path: Path) -> None:
    def tied(seed: int) -> nn.Module:
        model = net(seed)
        model.tied = nn.Linear(6, 4)
        model.tied.weight = model[0].weight  # type: ignore[index]
        return model

    state, other = {"model": tied(1)}, {"model": tied(2)}
    path = saved(tmp_path, state)
    with ucpformat.open(path) as checkpoint:
        assert checkpoint["0.weight"].atom.aliases == ("tied.weight",)
    ucpformat.load(path, other)
    assert content(other) == content(state)


@pytest.mark.distributed
def test_shards_of_fsdp1_divided_subclasses_and_data_parallelism(tmp_path: Path) -> None:
    launch("tests.conversion.homes_worker", [str(tmp_path)], 2)
    checkpoints = sorted(path.parent for path in tmp_path.glob("*.ucp/ucp.json"))
    assert len(checkpoints) == 4
    for path in checkpoints:
        assert list(validate(path)) == []
