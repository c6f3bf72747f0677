"""Local tensors of layouts that see the slot in another shape, and layouts that say more than places (SPEC 12, 13)."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.builders import Tensor, save
from ucpformat.errors import LayoutError
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


@pytest.mark.parametrize("step", [Partial("tp", "sum"), Scale(Fraction(1, 2)), LocalOnly()])
def test_layouts_that_say_more_than_places_are_refused(path: Path, step: Step) -> None:
    with pytest.raises(LayoutError) as caught:
        read(path, step, tp=0)
    assert (caught.value.code, caught.value.at) == ("UCP-E-LAYOUT", "w/value")


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
