"""What passes through while it is looked at is stored as what is looked at first."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry.strategies import nonempty_boxes
from ucpformat.geometry import Box
from ucpformat.storage.reading.slot_form import slot_form
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.writing.chunk_writer import ChunkPiece, SlotPlace, StoredChunk
from ucpformat.storage.writing.packed_chunks import PackedChunkWriter

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
