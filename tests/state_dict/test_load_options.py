"""Loading a part, under other names, into other types; buffers and entries that do not fit (one process)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ucpformat
import ucpformat.distributed.group
from tests.distributed.thread_group import ThreadGroup, run_threads
from ucpformat import Flatten, Layout, Mesh, MeshAxis, Shard, TensorLayout, UcpError
from ucpformat.geometry import BufferPlace, Concat, Pad


def zeros(shape: int | tuple[int, ...] = 2, kind: str = "float32") -> np.ndarray[Any, Any]:
    return np.zeros(shape, kind)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    state = {
        "model": {"w": np.array([1, 2], np.float32), "lora": np.array([3, 4], np.float32)},
        "optim": {"m": np.array([5, 6], np.float32)},
        "epoch": 7,
    }
    ucpformat.save(tmp_path / "s", state)
    return tmp_path / "s"


def mismatch(path: Path, state: dict[str, Any], **options: Any) -> str:
    with pytest.raises(UcpError) as caught:
        ucpformat.load(path, state, **options)
    assert caught.value.code == "UCP-E-MISMATCH"
    return caught.value.message


def test_a_part_is_asked_for(path: Path) -> None:
    assert "model.lora: unexpected" in mismatch(path, {"model": {"w": zeros()}})
    state: dict[str, Any] = {"model": {"w": zeros()}}
    assert ucpformat.load(path, state, strict=False) is state
    assert state["model"]["w"].tolist() == [1, 2]
    chosen: tuple[str | list[str] | Callable[[str], bool], ...] = (
        "*.lora",
        ["*.lora", "model.l*"],
        "model.lora",
        lambda name: name.endswith("lora"),
    )
    for only in chosen:
        state = {"model": {"w": zeros(), "lora": zeros(), "absent": zeros()}, "epoch": 0}
        ucpformat.load(path, state, only=only)
        assert (state["model"]["w"].tolist(), state["model"]["lora"].tolist()) == ([0, 0], [3, 4])
        assert state["epoch"] == 0


def test_entries_are_renamed(path: Path) -> None:
    names = {"model.other": "model.lora"}
    given: tuple[dict[str, str] | Callable[[str], str], ...] = (names, lambda name: names.get(name, name))
    for rename in given:
        state: dict[str, Any] = {"model": {"w": zeros(), "other": zeros()}}
        ucpformat.load(path, state, rename=rename)
        assert state["model"]["other"].tolist() == [3, 4]
    message = mismatch(
        path, {"model": {"w": zeros(), "lora": zeros(), "x": zeros()}}, rename={"model.x": "no"}
    )
    assert message == "the state does not fit the checkpoint; nothing was changed: model.x: missing (as 'no')"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"only": "model.lroa*"}, "only= fits no entry: 'model.lroa*'; did you mean 'model.lora'?"),
        ({"only": ["model.w", "modl.*"]}, "only= fits no entry: 'modl.*'; did you mean 'model.*'?"),
        ({"only": "lora"}, "only= fits no entry: 'lora'; did you mean 'model.lora'?"),
        ({"only": "zzz"}, "only= fits no entry: 'zzz'"),
        ({"only": []}, "only= takes no entry of the state"),
        ({"only": lambda _: False}, "only= takes no entry of the state"),
        (
            {"rename": {"model.lroa": "model.lora"}},
            "rename= renames no entry of the state: 'model.lroa'; did you mean 'model.lora'?",
        ),
        (
            {"rename": {"mode": "model"}},
            "rename= renames no entry of the state: 'mode'; did you mean 'model'?",
        ),
        (
            {"rename": {"odel": "model"}},
            "rename= renames no entry of the state: 'odel'; did you mean 'model'?",
        ),
        (
            {"layouts": {"model.ww": TensorLayout(Layout(Mesh((MeshAxis("dp", 1),)), ()), (2,))}},
            "layouts= names no tensor of the state: 'model.ww'; did you mean 'model.w'?",
        ),
        (
            {"per_rank": {"epoch": "keep"}},
            "per_rank= names no value of each rank's own (ucp.PerRank): 'epoch'",
        ),
        ({"per_rank": "kepe"}, "per_rank= takes refuse, keep, resplit, reseed or a function, not 'kepe'"),
        ({"read_once": "yes"}, "read_once= is True, False or \"auto\", not 'yes'"),
        (
            {"tensors": "torch"},
            "tensors= says what to make without a state: the tensors of this one are filled",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_an_option_without_effect_is_an_error(path: Path, options: dict[str, Any], said: str) -> None:
    state: dict[str, Any] = {"model": {"w": zeros(), "lora": zeros()}, "epoch": 0}
    assert mismatch(path, state, **options).removeprefix("nothing was loaded: ") == said
    assert (state["model"]["lora"].tolist(), state["epoch"]) == ([0, 0], 0)


def test_an_empty_state_is_an_error(path: Path) -> None:
    assert "the state is empty" in mismatch(path, {})


@pytest.mark.parametrize(
    "option",
    [
        {"cast": True},
        {"rename": {"a": "b"}},
        {"strict": False},
        {"layouts": {"a": TensorLayout(Layout(Mesh((MeshAxis("dp", 1),)), ()), (2,))}},
        {"per_rank": "keep"},
        {"read_once": True},
        {"report": print},
        {"group": ucpformat.distributed.group.OneProcess()},
    ],
    ids=lambda option: str(next(iter(option))),
)
def test_options_that_need_a_state_are_refused_without_one(path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(UcpError, match=f"{next(iter(option))}= says how to fill a state, and there is none"):
        ucpformat.load(path, **option)


def test_a_part_is_asked_for_without_a_state(path: Path) -> None:
    assert ucpformat.load(path, only="model.w")["model"].keys() == {"w"}
    assert ucpformat.load(path, only=["epoch", "optim"]).keys() == {"optim", "epoch"}
    assert ucpformat.load(path, only=lambda name: name == "epoch") == {"epoch": 7}
    for only, said in (
        ("lor?", "did you mean 'model.lor?'"),
        ([], "takes no entry"),
        ("zz*", "fits no entry"),
    ):
        with pytest.raises(UcpError, match=said.replace("?", r"\?")) as caught:
            ucpformat.load(path, only=only)
        assert caught.value.code == "UCP-E-MISMATCH"
    with pytest.raises(UcpError, match='tensors= is "numpy" or "torch"'):
        ucpformat.load(path, tensors="jax")  # type: ignore[arg-type]


def test_whole_components_are_renamed(path: Path) -> None:
    state: dict[str, Any] = {"net": {"w": zeros(), "adapter": zeros()}, "epoch": 0}
    ucpformat.load(path, state, rename={"net": "model", "net.adapter": "model.lora"})
    assert (state["net"]["w"].tolist(), state["net"]["adapter"].tolist(), state["epoch"]) == (
        [1, 2],
        [3, 4],
        7,
    )
    assert "model.lora: unexpected" in mismatch(path, {"net": {"w": zeros()}}, rename={"net": "model"})
    assert "net_.w: missing" in mismatch(path, {"net_": {"w": zeros()}, "net": 1}, rename={"net": "epoch"})


def test_either_side_may_have_more(path: Path) -> None:
    """As with torch's strict=False: LoRA's new tensors stay as they were, and the report has their names."""
    said: list[Any] = []
    state: dict[str, Any] = {"model": {"w": zeros(), "new": zeros() - 1}, "cfg": {"rank": 8}, "epoch": 0}
    assert "model.new: missing" in mismatch(path, state)
    ucpformat.load(path, state, strict=False, report=said.append)
    assert (state["model"]["w"].tolist(), state["model"]["new"].tolist()) == ([1, 2], [-1, -1])
    assert (state["cfg"], state["epoch"]) == ({"rank": 8}, 7)
    assert (said[0].missing, said[0].unexpected) == (("model.new", "cfg.rank"), ("model.lora",))
    assert "float32[3], the checkpoint has float32[2]" in mismatch(
        path, {"model": {"w": zeros(3), "new": zeros()}}, strict=False
    )
    assert "has nothing that the checkpoint has" in mismatch(path, {"net": {"w": zeros()}}, strict=False)


def test_what_fits_on_another_rank_is_not_without_effect(path: Path) -> None:
    names = {"other.lora": "model.lora", "mine": "model"}

    def load(group: ThreadGroup, only: list[str]) -> list[float]:
        state: dict[str, Any] = {"mine": {"w": zeros()}} if group.rank == 0 else {"other": {"lora": zeros()}}
        ucpformat.load(path, state, group=group, rename=names, only=only)
        found: list[float] = next(iter(next(iter(state.values())).values())).tolist()
        return found

    assert run_threads(2, lambda group: load(group, ["*.w", "other"])) == [[1, 2], [3, 4]]
    found = run_threads(2, lambda group: load(group, ["*.w", "ohter"]))
    assert [str(one) for one in found] == [
        f"UCP-E-MISMATCH in {path}: nothing was loaded: only= fits no entry: 'ohter'; did you mean 'other.*'?"
    ] * 2


def test_types_are_cast(path: Path) -> None:
    state = {"optim": {"m": zeros(2, "float64")}}
    assert mismatch(path, state).endswith(
        "optim.m: is float64[2], the checkpoint has float32[2]; cast=True converts"
    )
    ucpformat.load(path, state, cast=True)
    assert state["optim"]["m"].tolist() == [5, 6]
    assert "float32[2]" in mismatch(path, {"optim": {"m": zeros(3, "float64")}}, cast=True)


def test_memory_with_strides_is_filled(path: Path) -> None:
    room = zeros((2, 2))
    ucpformat.load(path, {"optim": {"m": room[:, 0]}})
    assert room.tolist() == [[5, 0], [6, 0]]


FLAT = Layout(Mesh((MeshAxis("dp", 2),)), (Flatten(), Concat("flat"), Shard("dp", 0, "even")))
PLACES = {"a": BufferPlace((0,), (8,)), "b": BufferPlace((3,), (8,))}


def buffers(
    group: ThreadGroup, parts: list[np.ndarray[Any, Any]]
) -> tuple[dict[str, Any], dict[str, TensorLayout]]:
    """Tensors of 3 and 4 elements in a buffer of 8, of which each rank has a half."""
    part = parts[group.rank]
    return {"a": part, "b": part}, {
        "a": TensorLayout(FLAT, (3,), PLACES["a"]),
        "b": TensorLayout(FLAT, (2, 2), PLACES["b"]),
    }


@pytest.mark.parametrize("strided", [False, True])
def test_tensors_of_one_buffer_keep_to_their_places(tmp_path: Path, strided: bool) -> None:
    flat = np.arange(1, 9, dtype=np.float32)

    def save(group: ThreadGroup) -> str:
        state, layouts = buffers(group, [flat[:4], flat[4:]])
        return ucpformat.save(tmp_path / "s", state, group=group, layouts=layouts).digest

    assert len(set(run_threads(2, save))) == 1
    with ucpformat.open(tmp_path / "s") as checkpoint:
        assert checkpoint["a"]["value"].read().tolist() == [1, 2, 3]
        assert checkpoint["b"]["value"].read().tolist() == [[4, 5], [6, 7]]
    room = np.full((8, 2), -1, np.float32)
    target = room[:, 0] if strided else np.ascontiguousarray(room[:, 0])

    def load(group: ThreadGroup) -> None:
        state, layouts = buffers(group, [target[:4], target[4:]])
        ucpformat.load(tmp_path / "s", state, group=group, layouts=layouts)

    assert run_threads(2, load) == [None, None]
    assert target.tolist() == [1, 2, 3, 4, 5, 6, 7, -1]

    def cast(group: ThreadGroup) -> None:
        state, layouts = buffers(group, [zeros(4, "float64"), zeros(4, "float64")])
        ucpformat.load(tmp_path / "s", state, group=group, layouts=layouts, cast=True)

    assert all(isinstance(one, UcpError) and "cannot be cast" in one.message for one in run_threads(2, cast))


def test_padding_is_zero(tmp_path: Path) -> None:
    padded = Layout(Mesh((MeshAxis("dp", 1),)), (Pad(0, to=4),))
    ucpformat.save(tmp_path / "s", {"a": np.array([1, 2, 3, 9])}, layouts={"a": TensorLayout(padded, (3,))})
    assert ucpformat.load(tmp_path / "s")["a"].tolist() == [1, 2, 3]
    into = np.full(4, 5)
    ucpformat.load(tmp_path / "s", {"a": into}, layouts={"a": TensorLayout(padded, (3,))})
    assert into.tolist() == [1, 2, 3, 0]


def test_layouts_have_to_fit(tmp_path: Path) -> None:
    layout = Layout(Mesh((MeshAxis("dp", 1),)), (Shard("dp", 0),))
    for layouts, code in (
        ({"a": TensorLayout(layout, (5,))}, "UCP-E-MISMATCH"),
        ({"b": TensorLayout(layout, (4,))}, "UCP-E-NAME"),
    ):
        with pytest.raises(UcpError) as caught:
            ucpformat.save(tmp_path / "s", {"a": np.zeros(4), "n": 1}, layouts=layouts)
        assert caught.value.code == code


def test_all_ranks_hear_that_one_does_not_fit(path: Path) -> None:
    def load(group: ThreadGroup) -> None:
        ucpformat.load(path, {"optim": {"m": zeros(2 + group.rank)}}, group=group)

    found = run_threads(2, load)
    assert [one.message.partition("changed: ")[2] for one in found if isinstance(one, UcpError)] == [
        "optim.m: is float32[3], the checkpoint has float32[2] (on rank 1)",
        "optim.m: is float32[3], the checkpoint has float32[2]",
    ]


def test_what_another_rank_has_is_not_unexpected(path: Path) -> None:
    """Stages of a pipeline: each loads what it has."""

    def load(group: ThreadGroup) -> list[float]:
        name = "w" if group.rank == 0 else "lora"
        state: dict[str, Any] = {"model": {name: zeros()}}
        ucpformat.load(path, state, group=group)
        found: list[float] = state["model"][name].tolist()
        return found

    assert run_threads(2, load) == [[1, 2], [3, 4]]
