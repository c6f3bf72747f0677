"""Which stored bytes a local tensor needs, without reading them (SPEC section 17.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ucpformat.geometry import decompose_flat_range
from ucpformat.storage.stretch import stretches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ucpformat.geometry import Box, Piece
    from ucpformat.storage.part import StoredSlot

__all__ = ["StoredRead", "planned_reads", "storage_pattern"]


@dataclass(frozen=True, slots=True)
class StoredRead:
    """Bytes ``[start, stop)`` of the object ``key``, fetched for ``needed`` logical bytes of one chunk."""

    key: str
    start: int
    stop: int
    chunk: int
    needed: int


def planned_reads(stored: StoredSlot, view: tuple[int, ...], pieces: Sequence[Piece]) -> Iterator[StoredRead]:
    """Return what a verifying reader fetches for ``pieces``, boxes of ``view``, in the order in which it does.

    Each run is widened to checksum blocks; of a compressed segment all is fetched. What has a zero entry
    needs nothing. Pieces in another view than the slot's shape take whole chunks, each piece its own.

    Raises:
        UcpError: ``UCP-E-SEGMENT``, ``UCP-E-TABLE``: the table is wrong where it is looked at.
    """
    for piece in pieces:
        if view == stored.grid.shape:
            for chunk in stored.grid.chunks_for(piece.box):
                wanted = stored.chunk_box(chunk).intersect(piece.box)
                if wanted is not None:
                    yield from _of_chunk(stored, chunk, wanted)
        else:
            yield from _of_view(stored, view, piece.box)


def _of_chunk(stored: StoredSlot, chunk: int, wanted: Box) -> Iterator[StoredRead]:
    item = stored.dtype.item_bytes
    for segment, held, part in stored.meeting(chunk, stored.segments(chunk), wanted):
        key = stored.object_key(chunk, segment)
        if stored.compressor is not None:
            stop = segment.offset + segment.covered
            yield StoredRead(key, segment.offset, stop, chunk, part.size * item)
            continue
        for stretch in stretches(part.relative_to(held), held.shape, item):
            start, stop = stretch.in_blocks
            stop = segment.offset + min(stop, segment.covered)
            yield StoredRead(key, segment.offset + start, stop, chunk, stretch.box.size * item)


def _of_view(stored: StoredSlot, view: tuple[int, ...], box: Box) -> Iterator[StoredRead]:
    grid, item = stored.grid, stored.dtype.item_bytes
    for chunk in range(grid.count):
        index = grid.index_of(chunk)
        held = grid.chunk_box(index)
        first = grid.chunk_start(index)
        parts = (run.intersect(box) for run in decompose_flat_range(view, first, first + held.size))
        needed = sum(part.size for part in parts if part is not None)
        for number, read in enumerate(_of_chunk(stored, chunk, held) if needed else ()):
            # The whole chunk is fetched, in as many reads as it has segments.
            yield StoredRead(read.key, read.start, read.stop, chunk, 0 if number else needed * item)


def storage_pattern(stored: StoredSlot) -> tuple[object, ...]:
    """What decides, beside layout, shape and data type, how much a read fetches: alike for slots stored alike."""
    table, first = stored.part.table, stored.first_row
    chunks = range(first, first + stored.grid.count)
    counts = table.counts[chunks.start : chunks.stop].tobytes()
    rows = table.rows[table.first_segment[chunks.start] : table.first_segment[chunks.stop]]
    if stored.compressor is not None:
        return counts, rows["length"].tobytes()
    if not rows["box"].any():
        return (counts,)
    return counts, *(segment.box for chunk in range(stored.grid.count) for segment in stored.segments(chunk))
