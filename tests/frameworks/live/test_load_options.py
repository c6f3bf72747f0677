"""Loading a part, under other names, into other types; buffers and entries that do not fit (one process)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ucpformat
from ucpformat import Flatten, Held, Layout, Mesh, MeshAxis, Shard, UcpError
from ucpformat.distributed.thread_group import ThreadGroup, run_threads
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
        ["*.lora", "none"],
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


def buffers(group: ThreadGroup, parts: list[np.ndarray[Any, Any]]) -> tuple[dict[str, Any], dict[str, Held]]:
    """Tensors of 3 and 4 elements in a buffer of 8, of which each rank has a half."""
    part = parts[group.rank]
    return {"a": part, "b": part}, {"a": Held(FLAT, (3,), PLACES["a"]), "b": Held(FLAT, (2, 2), PLACES["b"])}


@pytest.mark.parametrize("strided", [False, True])
def test_tensors_of_one_buffer_keep_to_their_places(tmp_path: Path, strided: bool) -> None:
    flat = np.arange(1, 9, dtype=np.float32)

    def save(group: ThreadGroup) -> str:
        state, layouts = buffers(group, [flat[:4], flat[4:]])
        return ucpformat.save(tmp_path / "s", state, group=group, layouts=layouts)

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
    ucpformat.save(tmp_path / "s", {"a": np.array([1, 2, 3, 9])}, layouts={"a": Held(padded, (3,))})
    assert ucpformat.load(tmp_path / "s")["a"].tolist() == [1, 2, 3]
    into = np.full(4, 5)
    ucpformat.load(tmp_path / "s", {"a": into}, layouts={"a": Held(padded, (3,))})
    assert into.tolist() == [1, 2, 3, 0]


def test_layouts_have_to_fit(tmp_path: Path) -> None:
    layout = Layout(Mesh((MeshAxis("dp", 1),)), (Shard("dp", 0),))
    for layouts, code in (
        ({"a": Held(layout, (5,))}, "UCP-E-MISMATCH"),
        ({"b": Held(layout, (4,))}, "UCP-E-NAME"),
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
