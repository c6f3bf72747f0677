"""What passes through while it is looked at is stored as what is looked at first."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import STORAGES
from tests.geometry.strategies import nonempty_boxes
from ucpformat.geometry import Box
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.storage.checksum import checksum_run, zeros_checksum
from ucpformat.storage.reading.stored_slot import slot_form
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.writing.chunk_writer import ChunkPiece, SlotPlace, StoredChunk
from ucpformat.storage.writing.packed_chunks import PackedChunkWriter
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)


@st.composite
def pieces(draw: st.DrawFn) -> list[ChunkPiece]:
    found = []
    for number in range(draw(st.integers(0, 5))):
        shape = draw(SHAPES)
        dtype, grid = slot_form("uint8", shape, 1 << 20)
        place = SlotPlace(f"k{number}", "value", dtype, grid, None)
        box = draw(st.none() | nonempty_boxes(shape))
        size = (Box.whole(shape) if box is None else box).size
        data = draw(st.just(bytes(size)) | st.binary(min_size=size, max_size=size))
        found.append(ChunkPiece(place, 0, box, memoryview(data)))
    return found


def stored(
    directory: Path, found: list[ChunkPiece], least: int
) -> tuple[list[StoredChunk], dict[str, bytes]]:
    with patch("ucpformat.storage.writing.packed_chunks._LARGE_BYTES", least):
        store = LocalStore(directory, durability="none")
        store.prepare()
        writer = PackedChunkWriter(store, name="a-0")
        chunks = [writer.write_many([piece])[0] for piece in found]
        writer.finish()
        store.close()
    return chunks, {path.name: path.read_bytes() for path in directory.rglob("*.pack")}


@given(pieces())
def test_large_pieces_are_stored_as_small_ones_are(found: list[ChunkPiece]) -> None:
    """Zeros are left out by both, and a box has its place in the content digest by both."""
    with TemporaryDirectory() as directory:
        assert stored(Path(directory, "a"), found, 1) == stored(Path(directory, "b"), found, 1 << 30)


def test_a_large_chunk_that_only_begins_with_zeros_is_stored(tmp_path: Path) -> None:
    data = np.zeros(10_000, np.uint8)
    data[-1] = 1
    dtype, grid = slot_form("uint8", (10_000,), 1 << 20)
    piece = ChunkPiece(SlotPlace("k", "value", dtype, grid, None), 0, None, data.data)
    chunks, packs = stored(tmp_path / "c", [piece], 1)
    assert chunks[0].segment is not None
    assert packs == {"a-0-0.pack": data.tobytes()}


@pytest.mark.parametrize("least", [1, 1 << 30])
def test_a_chunk_with_the_checksum_of_zeros_is_stored(tmp_path: Path, least: int) -> None:
    polynomial = [1, *map(int, f"{0x1EDC6F41:032b}")]  # of CRC-32C, whose multiples change no checksum
    data = np.zeros(100, np.uint8)
    data[:5] = np.packbits(polynomial, bitorder="little")
    assert checksum_run(data.data, 0).total == zeros_checksum(data.size)
    dtype, grid = slot_form("uint8", (100,), 1 << 20)
    piece = ChunkPiece(SlotPlace("k", "value", dtype, grid, None), 0, None, data.data)
    chunks, packs = stored(tmp_path / "c", [piece], least)
    assert chunks[0].segment is not None
    assert packs == {"a-0-0.pack": data.tobytes()}


def test_segments_of_several_slots_lie_as_close_as_their_alignment_lets_them(tmp_path: Path) -> None:
    """UCP-D-107: 64 bytes, and 4096 from 64 KiB on."""
    sizes = [64, 65_535, 100, 65_536, 64]
    found = []
    for number, size in enumerate(sizes):
        dtype, grid = slot_form("uint8", (size,), 1 << 20)
        place = SlotPlace(f"k{number}", "value", dtype, grid, None)
        found.append(ChunkPiece(place, 0, None, np.ones(size, np.uint8).data))
    store = LocalStore(tmp_path / "c", durability="none")
    store.prepare()
    writer = PackedChunkWriter(store, name="a-0")
    chunks = writer.write_many(found)
    writer.finish()
    store.close()
    offsets = [chunk.segment.offset for chunk in chunks if chunk.segment is not None]
    assert offsets == [0, 64, 65_600, 69_632, 135_168]


@pytest.mark.parametrize("storage", STORAGES)
def test_a_content_digest_does_not_depend_on_chunks(tmp_path: Path, storage: Storage) -> None:
    """UCP-D-038."""
    tensor = np.arange(1000, dtype=np.uint16)
    found = []
    for chunk_bytes in (64, 512, 1 << 20):
        path = tmp_path / str(chunk_bytes)
        slots = {"value": SlotSpec("uint16", (1000,))}
        with CheckpointWriter(
            path, [AtomSpec("a", slots)], storage=storage, chunk_bytes=chunk_bytes
        ) as writer:
            writer.write("a", "value", tensor)
        with open_checkpoint(path) as checkpoint:
            found.append(checkpoint["a"]["value"].stored.content)
    assert found[0] is not None
    assert len(set(found)) == 1
