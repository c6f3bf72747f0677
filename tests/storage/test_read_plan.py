"""What is planned to be read is what a reader fetches, range by range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import GZIP, MIB, Array, Tensor, declare, fresh_url, guillotine, region, save, states
from tests.geometry.strategies import layouts
from tests.searches import fewer
from ucpformat.geometry import Box, Flatten, Layout, Mesh, MeshAxis, Shard, Step, View, lower
from ucpformat.model.root import Storage
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.storage.reading.read_plan import planned_reads, storage_pattern
from ucpformat.storage.stores.store import Calls
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

Fetched = list[tuple[str, int, int]]


class Spy:
    """A store that remembers what was fetched; all else is the other store's business."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.fetched: Fetched = []
        self.calls = Calls(at_once=None, window=MIB, gap=-1)  # nothing lies near enough to be joined

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def read(self, key: str, start: int, stop: int) -> bytes:
        self.fetched.append((key, start, stop))
        data: bytes = self.store.read(key, start, stop)
        return data

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        self.fetched.append((key, start, start + sum(buffer.nbytes for buffer in buffers)))
        self.store.read_into(key, start, buffers)


def compare(checkpoint: Checkpoint, name: str, slot: str, layout: Layout) -> None:
    spy = Spy(checkpoint.store)
    spied = Checkpoint(spy, checkpoint.root)
    stored = spied[name][slot].stored
    lowering = lower(layout, stored.slot.shape)
    axes = [axis.name for axis in layout.mesh.axes]
    for coordinate in layout.mesh.coordinates():
        local = lowering.at(coordinate)
        planned = list(planned_reads(stored, lowering.view, () if local is None else local.pieces))
        spy.fetched.clear()
        spied.read(name, slot, layout=layout, coord=dict(zip(axes, coordinate, strict=True)))
        assert sorted((read.key, read.start, read.stop) for read in planned) == sorted(spy.fetched)
        if local is not None:
            assert sum(read.needed for read in planned) <= local.mapped * stored.dtype.item_bytes


@fewer(2)  # a checkpoint, and a layout of each of its tensors
@given(
    data=st.data(),
    state=states(),
    storage=st.sampled_from(["plain", "packed"]),
    chunk_bytes=st.sampled_from([16, 64, 512]),
)
def test_planned_reads_are_what_a_reader_fetches(
    data: st.DataObject,
    state: dict[tuple[str, str], Tensor],
    storage: Storage,
    chunk_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    url = fresh_url("memory", tmp_path_factory.getbasetemp())
    with CheckpointWriter(url, declare(state), storage=storage, chunk_bytes=chunk_bytes, workers=1) as writer:
        for (name, slot), tensor in state.items():
            # In packed storage every box becomes a segment of its own in each chunk that it meets.
            cuts = data.draw(st.integers(0, 4)) if storage == "packed" and not tensor.compressor else 0
            for box in data.draw(guillotine(Box.whole(tensor.data.shape), cuts)):
                writer.write(name, slot, tensor.data[region(box)], offset=box.offset)
    with open_checkpoint(url) as checkpoint:
        for (name, slot), tensor in state.items():
            layout = data.draw(layouts(tensor.data.shape).filter(lambda layout: not scaled(layout)))
            compare(checkpoint, name, slot, layout)


def scaled(layout: Layout) -> bool:
    return any(type(step).__name__ == "Scale" for step in layout.steps)


def weights(nbytes: int) -> Array:
    return np.arange(1, 1 + nbytes, dtype=np.uint32).astype(np.uint8) | np.uint8(1)


def test_runs_are_widened_to_checksum_blocks(tmp_path: Path) -> None:
    rows = 5 * MIB // 2
    save(tmp_path / "c", {("w", "value"): Tensor(weights(rows), "uint8")}, chunk_bytes=8 * MIB)
    with open_checkpoint(tmp_path / "c") as checkpoint:
        stored = checkpoint["w"]["value"].stored
        lowering = lower(Layout(Mesh((MeshAxis("dp", 5),)), (Shard("dp", 0),)), (rows,))
        found = []
        for rank in range(5):
            local = lowering.at((rank,))
            assert local is not None
            (read,) = planned_reads(stored, lowering.view, local.pieces)
            found.append((read.start // MIB, math.ceil(read.stop / MIB), read.needed))
        part = MIB // 2
        assert found == [(0, 1, part), (0, 1, part), (1, 2, part), (1, 2, part), (2, 3, part)]


def test_slots_stored_alike_have_one_pattern(tmp_path: Path) -> None:
    data = weights(64)
    holed = data.copy()
    holed[16:32] = 0
    state = {
        ("a", "value"): Tensor(data, "uint8"),
        ("b", "value"): Tensor(data[::-1].copy(), "uint8"),
        ("c", "value"): Tensor(holed, "uint8"),
        ("d", "value"): Tensor(data, "uint8", GZIP),
    }
    save(tmp_path / "c", state, chunk_bytes=16)
    with open_checkpoint(tmp_path / "c") as checkpoint:
        a, b, c, d = (storage_pattern(checkpoint[name]["value"].stored) for name in "abcd")
    assert a == b
    assert len({a, c, d}) == 3


def test_segments_of_boxes_are_fetched_one_by_one(tmp_path: Path) -> None:
    """Two writers stored the halves of each column of chunks; a rank that needs one half fetches that alone."""
    data = weights(64).reshape(8, 8)
    slots = {"value": SlotSpec("uint8", (8, 8)), "other": SlotSpec("uint8", (8, 8))}
    with CheckpointWriter(tmp_path / "c", [AtomSpec("w", slots)], chunk_bytes=32, workers=1) as writer:
        for half in (Box((0, 0), (8, 4)), Box((0, 4), (8, 4))):
            writer.write("w", "value", data[region(half)], offset=half.offset)
        writer.write("w", "other", data)
    with open_checkpoint(tmp_path / "c") as checkpoint:
        stored = checkpoint["w"]["value"].stored
        assert storage_pattern(stored) != storage_pattern(checkpoint["w"]["other"].stored)
        layout = Layout(Mesh((MeshAxis("tp", 2),)), (Shard("tp", 1),))
        compare(checkpoint, "w", "value", layout)
        local = lower(layout, (8, 8)).at((1,))
        assert local is not None
        reads = list(planned_reads(stored, (8, 8), local.pieces))
        assert [(read.stop - read.start, read.needed, read.chunk) for read in reads] == [
            (16, 16, 0),
            (16, 16, 1),
        ]


@pytest.mark.parametrize(
    "steps", [(Flatten(), Shard("dp", 0)), (View((2, 3, 10)), Shard("dp", 1, "balanced"))], ids=str
)
def test_pieces_of_a_tensor_are_fetched_together(tmp_path: Path, steps: tuple[Step, ...]) -> None:
    """A flat range begins and ends within a row; its pieces are of one block. Another view takes the whole chunk."""
    save(tmp_path / "c", {("w", "value"): Tensor(weights(60).reshape(6, 10), "uint8")})
    layout = Layout(Mesh((MeshAxis("dp", 4),)), steps)
    with open_checkpoint(tmp_path / "c") as checkpoint:
        compare(checkpoint, "w", "value", layout)
        stored = checkpoint["w"]["value"].stored
        lowering = lower(layout, stored.grid.shape)
        pieces = [local.pieces for at in layout.mesh.coordinates() if (local := lowering.at(at)) is not None]
        for held in pieces:
            reads = list(planned_reads(stored, lowering.view, held))
            assert [read.needed for read in reads] == (
                [sum(piece.box.size for piece in held)] if held else []
            )
    assert max(map(len, pieces)) > 1 or lowering.view != stored.grid.shape
