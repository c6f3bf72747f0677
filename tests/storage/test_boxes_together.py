"""Boxes of several slots at once: values as numpy has them, and no more bytes or calls than they take (SPEC 17.3)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ucpformat
from tests.builders import GZIP, MIB, Array, Tensor, declare, region, save
from ucpformat.errors import UcpError
from ucpformat.geometry import Box
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.storage.checksum import BLOCK_BYTES
from ucpformat.storage.reading.box_reader import BoxReader
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.store import Calls
from ucpformat.writer import CheckpointWriter

LOCAL = Calls(at_once=None, window=MIB, gap=4096)
REMOTE = Calls(at_once=4, window=4 * MIB, gap=MIB // 2)
APART = Calls(at_once=None, window=2 * MIB, gap=-1)


class Counted(LocalStore):
    """A store with other `Calls` that remembers what was read."""

    def __init__(self, path: Path, calls: Calls) -> None:
        super().__init__(path)
        self.calls = calls
        self.ranges: list[tuple[str, int, int]] = []

    def read(self, key: str, start: int, stop: int) -> bytes:
        self.ranges.append((key, start, stop))
        return super().read(key, start, stop)

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        self.ranges.append((key, start, start + sum(buffer.nbytes for buffer in buffers)))
        super().read_into(key, start, buffers)


def numbers(shape: tuple[int, ...], kind: str, seed: int) -> Array:
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.random.default_rng(seed).integers(1, 256, size, np.uint8).view(kind).reshape(shape)


STATE = {
    ("rows", "value"): Tensor(numbers((7, 3, 65537), "<f4", 1), "float32"),
    ("columns", "value"): Tensor(numbers((900, 1501), "<i4", 2), "int32"),
    ("long", "value"): Tensor(numbers((3, 5 * MIB // 4), "u1", 3), "uint8"),
    ("small", "value"): Tensor(numbers((9, 11), "<c16", 4), "complex128"),
    ("smaller", "value"): Tensor(numbers((5,), "<i2", 5), "int16"),
    ("scalar", "value"): Tensor(numbers((), "<i2", 6), "int16"),
    ("squeezed", "value"): Tensor(numbers((40, 50), "<i4", 7), "int32", GZIP),
    ("zero", "value"): Tensor(np.zeros((30, 40), np.float32), "float32"),
}


class Written(NamedTuple):
    path: Path
    checkpoint: Checkpoint


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Written]]:
    """The state in chunks of several sizes, in either storage, and in segments that are boxes of chunks."""
    found = []
    root = tmp_path_factory.mktemp("together")
    for storage, chunk_bytes in (("packed", 16 * MIB), ("packed", 5 * MIB // 2), ("plain", 3 * MIB)):
        path = root / f"{storage}-{chunk_bytes}.ucp"
        save(path, STATE, storage=storage, chunk_bytes=chunk_bytes, workers=1)
        found.append(Written(path, open_checkpoint(path)))
    path = root / "boxes.ucp"
    with CheckpointWriter(path, declare(STATE), chunk_bytes=4 * MIB, workers=1) as writer:
        for (name, slot), tensor in STATE.items():
            shape = tensor.data.shape
            half = shape[-1] // 2 if shape and tensor.compressor is None else 0
            for first, last in ((0, half), (half, shape[-1])) if half else ((0, 0),):
                low = (*(0,) * (len(shape) - 1), first) if half else (0,) * len(shape)
                part = tensor.data[..., first:last] if half else tensor.data
                writer.write(name, slot, part, offset=low)
    found.append(Written(path, open_checkpoint(path)))
    yield found
    for one in found:
        one.checkpoint.close()


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """Rows, columns, everything, or any corner."""
    if draw(st.booleans()):
        return Box.whole(shape)
    offset, extent = [], []
    for held in shape:
        first, last = sorted(draw(st.tuples(*(st.integers(0, held),) * 2)))
        if draw(st.booleans()):
            first, last = 0, held
        offset.append(first)
        extent.append(last - first)
    return Box(tuple(offset), tuple(extent))


@cache
def blocks_of_elements(shape: tuple[int, ...], item_bytes: int) -> Array:
    """The block in which each element of a box lies; it lies in one, whatever its size."""
    places = np.arange(math.prod(shape), dtype=np.int64) * item_bytes // BLOCK_BYTES
    return places.astype(np.uint16).reshape(shape)


def needed_blocks(checkpoint: Checkpoint, wanted: Sequence[tuple[str, Box]]) -> set[tuple[str, int, int]]:
    """The blocks of uncompressed segments that have a byte of what is wanted, found element by element."""
    found = set()
    for name, box in wanted:
        stored = checkpoint[name]["value"].stored
        if stored.compressor is not None:
            continue
        for chunk in stored.grid.chunks_for(box):
            segments = stored.segments(chunk)
            for segment, held, part in stored.meeting(chunk, segments, box):
                blocks = blocks_of_elements(held.shape, stored.dtype.item_bytes)
                is_needed = np.zeros(blocks.max(initial=0) + 1, bool)
                is_needed[blocks[region(part.relative_to(held))]] = True
                for block in np.flatnonzero(is_needed).tolist():
                    start = segment.offset + block * BLOCK_BYTES
                    stop = min(start + BLOCK_BYTES, segment.offset + segment.covered)
                    found.add((stored.object_key(chunk, segment), start, stop))
    return found


@given(data=st.data(), calls=st.sampled_from([LOCAL, REMOTE, APART]), verify=st.booleans())
def test_boxes_of_many_slots(data: st.DataObject, written: list[Written], calls: Calls, verify: bool) -> None:
    """Any boxes, the same one twice, and those that share blocks; destinations with and without strides."""
    path, checkpoint = data.draw(st.sampled_from(written))
    names = data.draw(st.lists(st.sampled_from([name for name, _ in STATE]), min_size=1, max_size=6))
    wanted = [(name, data.draw(boxes(STATE[name, "value"].data.shape))) for name in names]
    targets, rooms = [], []
    for name, box in wanted:
        kind = STATE[name, "value"].data.dtype
        room = np.zeros((*box.shape, 2), kind)
        dense = data.draw(st.booleans())
        out = np.zeros(box.shape, kind) if dense else room[..., 0]
        targets.append((checkpoint[name]["value"].stored, box, out))
        rooms.append(room[..., 1])
    with ThreadPoolExecutor(2) as executor:
        store = Counted(path, calls)
        reader = BoxReader(store, executor, verify=verify)
        reader.read(targets)
    assert reader.fetched == sum(stop - start for _, start, stop in store.ranges)
    for (name, box), (_, _, out), room in zip(wanted, targets, rooms, strict=True):
        assert out.tobytes() == STATE[name, "value"].data[region(box)].tobytes()
        assert not room.tobytes().strip(b"\0")
    if "squeezed" in names:  # chunks that are compressed are fetched for each box
        return
    fetched = sorted(store.ranges)
    needed = needed_blocks(checkpoint, wanted)
    for (key, _, end), (other, start, _) in pairwise(fetched):
        assert key != other or end <= start, "nothing is fetched twice"
    for key, start, stop in fetched:
        assert stop - start <= 4 * MIB, "memory is bounded"
        assert any(key == of and start < last and first < stop for of, first, last in needed)
    apart = [
        0 <= start - end <= calls.gap and stop - first <= calls.window
        for (key, first, end), (other, start, stop) in pairwise(fetched)
        if key == other
    ]
    # Calls that copy are parts of longer ones, which end where they end.
    assert sum(apart) <= sum(stop - start for _, start, stop in fetched) // (2 * MIB), "fetched together"
    if verify and calls is APART:
        total = sum(stop - start for _, start, stop in needed)
        assert sum(stop - start for _, start, stop in fetched) == total, (
            "blocks that are needed, and no others"
        )


@pytest.mark.parametrize("calls", [LOCAL, REMOTE])
def test_small_parts_of_many_slots_are_one_call(tmp_path: Path, calls: Calls) -> None:
    """Rows, columns and flat ranges of 200 matrices that follow one another in a pack."""
    state = {
        (f"{number:03}", "value"): Tensor(numbers((16, 16), "<i2", number), "int16") for number in range(200)
    }
    with CheckpointWriter(tmp_path / "c", declare(state), workers=1) as writer:
        for (name, slot), tensor in state.items():
            writer.submit(name, slot, tensor.data)
    parts = [Box((3, 0), (5, 16)), Box((0, 4), (16, 4)), Box((2, 0), (1, 16))]
    with open_checkpoint(tmp_path / "c") as checkpoint, ThreadPoolExecutor(2) as executor:
        targets = [
            (checkpoint[name][slot].stored, box, np.zeros(box.shape, np.int16))
            for number, (name, slot) in enumerate(state)
            for box in [parts[number % 3]]
        ]
        store = Counted(tmp_path / "c", calls)
        BoxReader(store, executor).read(targets)
    assert len(store.ranges) == 1
    for (stored, box, out), tensor in zip(targets, state.values(), strict=True):
        assert (out == tensor.data[region(box)]).all(), stored.label


@given(data=st.data(), calls=st.sampled_from([LOCAL, REMOTE]))
def test_damage_is_found_where_it_lies(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, calls: Calls
) -> None:
    """UCP-R-029: one bit of a block that is needed, among parts of many slots; one in other blocks stays unseen."""
    path = tmp_path_factory.mktemp("damaged") / "c"
    tensors = [Tensor(numbers((3 * MIB // 256, 256), "u1", number), "uint8") for number in range(2)]
    state = {(f"{number}", "value"): tensor for number, tensor in enumerate(tensors)}
    save(path, state, storage="packed", workers=1)
    wanted = [(name, data.draw(boxes((3 * MIB // 256, 256)))) for name, _ in state]
    with open_checkpoint(path) as checkpoint:
        needed = needed_blocks(checkpoint, wanted)
        (segment,) = checkpoint["0"]["value"].stored.segments(0)
        position = data.draw(st.integers(0, segment.length - 1))
        (pack,) = path.glob("packs/*")
        with pack.open("r+b") as file:
            file.seek(segment.offset + position)
            (byte,) = file.read(1)
            file.seek(segment.offset + position)
            file.write(bytes([byte ^ 1 << data.draw(st.integers(0, 7))]))
        block = position // BLOCK_BYTES
        met = any(start == segment.offset + block * BLOCK_BYTES for _, start, _ in needed)
        targets = [
            (checkpoint[name]["value"].stored, box, np.zeros(box.shape, np.uint8)) for name, box in wanted
        ]
        with ThreadPoolExecutor(2) as executor:
            reader = BoxReader(Counted(path, calls), executor)
            if not met:
                reader.read(targets)
                return
            with pytest.raises(UcpError) as refusal:
                reader.read(targets)
    assert refusal.value.code == "UCP-E-CHECKSUM"
    assert refusal.value.at == f"packs/{pack.name}"
    assert f"block {block} " in refusal.value.message


def test_damage_of_one_small_slot_of_many_is_found(tmp_path: Path) -> None:
    state = {f"w{number}": np.full(100, number, np.int32) for number in range(50)}
    ucpformat.save(tmp_path / "c.ucp", state)
    (pack,) = (tmp_path / "c.ucp" / "packs").iterdir()
    data = pack.read_bytes()
    whole = state["w31"].tobytes()
    pack.write_bytes(data.replace(whole, bytes([1]) + whole[1:]))
    filled = {name: np.zeros(100, np.int32) for name in state}
    with pytest.raises(UcpError) as caught:
        ucpformat.load(tmp_path / "c.ucp", filled)
    assert caught.value.code == "UCP-E-CHECKSUM"
