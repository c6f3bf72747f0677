"""Local tensors of layouts that see the slot in another shape, and layouts that say more than places (SPEC 12, 13)."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.builders import Tensor, save
from ucpformat.errors import LayoutError, MismatchError
from ucpformat.geometry import (
    BufferPlace,
    Concat,
    Flatten,
    Layout,
    LocalOnly,
    Mesh,
    MeshAxis,
    Pad,
    Partial,
    Permute,
    Resize,
    Scale,
    Shard,
    Step,
    View,
)
from ucpformat.reader import open_checkpoint
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

TP = Mesh((MeshAxis("tp", 2),))
SHAPE = (24, 5)
DATA = np.arange(120, dtype=np.int16).reshape(SHAPE)


def read(path: Path, *steps: Step, tp: int) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    with open_checkpoint(path) as checkpoint:
        found = checkpoint.read("w", layout=Layout(TP, steps), coord={"tp": tp})
    assert found is not None
    return found


@pytest.fixture(params=["plain", "packed"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    # 32 bytes are 16 elements: chunks that end in the middle of every view below.
    save(tmp_path / "c", {("w", "value"): Tensor(DATA, "int16")}, storage=request.param, chunk_bytes=32)
    return tmp_path / "c"


@pytest.mark.parametrize("tp", [0, 1])
def test_heads_of_a_fused_weight(path: Path, tp: int) -> None:
    """Three matrices interleaved by four heads of two rows: the heads are split, whatever the chunks."""
    found = read(path, View((4, 3, 2, 5)), Shard("tp", 0, "even"), tp=tp)
    assert np.array_equal(found, DATA.reshape(4, 3, 2, 5)[2 * tp : 2 * tp + 2])


@pytest.mark.parametrize("tp", [0, 1])
def test_a_dimension_between(path: Path, tp: int) -> None:
    found = read(path, View((4, 2, 3, 5)), Shard("tp", 1, "even"), tp=tp)
    assert np.array_equal(found, DATA.reshape(4, 2, 3, 5)[:, tp : tp + 1])


@pytest.mark.parametrize("tp", [0, 1])
def test_dimensions_change_places(path: Path, tp: int) -> None:
    found = read(path, View((4, 6, 5)), Permute((2, 0, 1)), Shard("tp", 1, "even"), tp=tp)
    assert np.array_equal(found, DATA.reshape(4, 6, 5).transpose(2, 0, 1)[:, 2 * tp : 2 * tp + 2])


@pytest.mark.parametrize("tp", [0, 1])
def test_padding_is_zero(path: Path, tp: int) -> None:
    found = read(path, Pad(0, multiple=7), Shard("tp", 0, "ceil"), tp=tp)
    padded = np.concatenate((DATA, np.zeros((4, 5), np.int16)))
    assert np.array_equal(found, padded[14 * tp : 14 * tp + 14])


@pytest.mark.parametrize(
    "step", [Partial("tp", "sum"), Scale(Fraction(1, 2)), Scale(Fraction(1, 3)), LocalOnly()]
)
def test_layouts_that_are_not_for_this_slot_are_refused(path: Path, step: Step) -> None:
    """UCP-R-018, UCP-D-084, UCP-D-082."""
    with pytest.raises(LayoutError):
        read(path, step, tp=0)


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    data = np.array([[1.5, -2.0], [2.0**-149, 0.0]], np.float32)
    save(tmp_path / "h", {("w", "value"): Tensor(data, "float32")})
    return tmp_path / "h"


def test_factors_are_applied_where_they_are_exact(halves: Path) -> None:
    """UCP-R-019."""
    assert read(halves, Scale(Fraction(4)), Shard("tp", 0), tp=0).tolist() == [[6.0, -8.0]]
    assert read(halves, Shard("tp", 0), Scale(Fraction(4)), Pad(1, to=3), tp=1).tolist() == [
        [2.0**-147, 0.0, 0.0]
    ]
    with pytest.raises(MismatchError, match="UCP-E-INEXACT at w/value"):
        read(halves, Scale(Fraction(1, 2)), tp=0)
    with pytest.raises(LayoutError, match="power of two"):
        read(halves, Scale(Fraction(1, 3)), tp=0)


@pytest.mark.parametrize("resize", ["refuse", "keep"])
def test_entries_stay_with_their_coordinates(tmp_path: Path, resize: Resize) -> None:
    """UCP-R-020."""
    mesh = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 3)))
    spec = SlotSpec("int16", (6, 2), Layout(mesh, (LocalOnly(resize),)))
    data = np.arange(12, dtype=np.int16).reshape(6, 2)
    with CheckpointWriter(tmp_path / "c", [AtomSpec("rng", {"value": spec})]) as writer:
        writer.write("rng", "value", data)
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert np.array_equal(checkpoint["rng"]["value"].read(), data)

        def entry(layout: Layout, **coord: int) -> object:
            found = checkpoint.read("rng", layout=layout, coord=coord)
            return None if found is None else found.tolist()

        assert entry(Layout(Mesh(mesh.axes, (5, 4, 3, 2, 1, 0)), (LocalOnly(),)), dp=1, tp=1) == [8, 9]
        line = Layout(Mesh((MeshAxis("x", 6),)), (LocalOnly(),))
        refused = [
            Layout(Mesh((MeshAxis("x", 3),)), (LocalOnly(),)),
            Layout(mesh),
            Layout(mesh, (Flatten(),)),
        ]
        if resize == "keep":
            assert entry(line, x=5) == [10, 11]
        else:
            refused.append(line)
        for layout in refused:
            with pytest.raises(MismatchError, match="UCP-E-MISMATCH"):
                entry(layout)


BUFFER = Layout(TP, (Flatten(), Concat("g"), Shard("tp", 0, "even")))


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """Two tensors of 6 and 5 elements in one buffer of 12."""
    specs = [
        AtomSpec(name, {"value": SlotSpec("int16", shape, BUFFER, place=BufferPlace((offset,), (12,)))})
        for name, shape, offset in (("a", (3, 2), 0), ("b", (5,), 6))
    ]
    with CheckpointWriter(tmp_path / "g", specs) as writer:
        writer.write("a", "value", np.arange(1, 7, dtype=np.int16).reshape(3, 2))
        writer.write("b", "value", np.arange(7, 12, dtype=np.int16))
    return tmp_path / "g"


@pytest.mark.parametrize("tp", [0, 1])
def test_the_tensors_of_a_buffer_fill_it_one_by_one(group: Path, tp: int) -> None:
    memory = np.full(6, -1, np.int16)
    with open_checkpoint(group) as checkpoint:
        for name in checkpoint:
            layout = checkpoint[name]["value"].layout
            checkpoint.read(name, layout=layout, coord={"tp": tp}, out=memory)
    assert memory.tolist() == ([1, 2, 3, 4, 5, 6] if tp == 0 else [7, 8, 9, 10, 11, -1])


def test_a_part_of_a_buffer_alone_has_zeros_beside_it(group: Path) -> None:
    with open_checkpoint(group) as checkpoint:
        found = checkpoint.read("b", layout=BUFFER, coord={"tp": 0}, place=BufferPlace((2,), (12,)))
        assert found is not None
        assert found.tolist() == [0, 0, 7, 8, 9, 10]
        other = Layout(TP, (*BUFFER.steps[:2], Shard("tp", 0, "ceil")))
        with pytest.raises(LayoutError, match="say where"):
            checkpoint.read("b", layout=other)


def test_a_buffer_that_no_validator_takes_is_not_written(tmp_path: Path) -> None:
    specs = [
        AtomSpec(name, {"value": SlotSpec("int16", (4,), BUFFER, place=BufferPlace((offset,), (8,)))})
        for name, offset in (("a", 0), ("b", 3))
    ]
    with pytest.raises(LayoutError, match="overlaps") as caught:
        CheckpointWriter(tmp_path / "g", specs)
    assert caught.value.at == "b/value"
    assert list(tmp_path.iterdir()) == []
