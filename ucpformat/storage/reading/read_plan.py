"""Which stored bytes a local tensor needs, without reading them (SPEC section 17.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from ucpformat.geometry import decompose_flat_range
from ucpformat.model.table import BLOCK_BYTES, rows_of
from ucpformat.storage.reading.byte_runs import stretches
from ucpformat.storage.reading.layers import row_dim, rows_within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ucpformat.geometry import Box, Piece
    from ucpformat.storage.reading.stored_slot import StoredSlot

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
    """Return what a verifying reader fetches for ``pieces``, boxes of ``view``.

    Each run is widened to checksum blocks, and those that share blocks are one; of a compressed segment all is fetched,
    for each piece. What has a zero entry needs nothing. For pieces in another view than the slot's shape each chunk
    that has any of them is taken whole.

    Raises:
        UcpError: ``UCP-E-SEGMENT``, ``UCP-E-TABLE``: the table is wrong where it is looked at.
    """
    if view != stored.grid.shape:
        yield from _of_view(stored, view, [piece.box for piece in pieces])
        return
    reads = [
        read
        for piece in pieces
        for chunk in stored.grid.chunks_for(piece.box)
        if (wanted := stored.grid.box_at(chunk).intersect(piece.box)) is not None
        for read in _of_chunk(stored, chunk, wanted)
    ]
    yield from reads if len(pieces) < 2 or stored.compressor is not None else _merged(reads)


def _merged(reads: list[StoredRead]) -> Iterator[StoredRead]:
    """Yield reads in order, those that share bytes as one: segments share none, so that these are of one."""
    last: StoredRead | None = None
    for read in sorted(reads, key=attrgetter("key", "start", "stop")):
        if last is not None and read.key == last.key and read.start < last.stop:
            last = replace(last, stop=max(last.stop, read.stop), needed=last.needed + read.needed)
            continue
        if last is not None:
            yield last
        last = read
    if last is not None:
        yield last


def _of_chunk(stored: StoredSlot, chunk: int, wanted: Box) -> Iterator[StoredRead]:
    item = stored.dtype.item_bytes
    for segment, held, part in stored.meeting(chunk, stored.segments(chunk), wanted):
        key = stored.object_key(chunk, segment)
        if segment.row_set is not None:
            origin = stored.grid.box_at(chunk)
            _, first, stop = rows_within(segment, part.relative_to(origin), item)
            if first < stop:
                low = first // BLOCK_BYTES * BLOCK_BYTES
                high = min(-(-stop // BLOCK_BYTES) * BLOCK_BYTES, segment.length)
                needed = (
                    (stop - first)
                    // (held.size // rows_of(held))
                    * (part.size // part.shape[row_dim(held.shape)])
                )
                yield StoredRead(key, segment.offset + low, segment.offset + high, chunk, needed)
            continue
        if stored.compressor is not None:
            stop = segment.offset + segment.covered
            yield StoredRead(key, segment.offset, stop, chunk, part.size * item)
            continue
        for stretch in stretches(part.relative_to(held), held.shape, item):
            start, stop = stretch.in_blocks
            stop = segment.offset + min(stop, segment.covered)
            yield StoredRead(key, segment.offset + start, stop, chunk, stretch.box.size * item)


def _of_view(stored: StoredSlot, view: tuple[int, ...], boxes: Sequence[Box]) -> Iterator[StoredRead]:
    grid, item = stored.grid, stored.dtype.item_bytes
    for chunk in range(grid.count):
        index = grid.index_of(chunk)
        held = grid.chunk_box(index)
        first = grid.chunk_start(index)
        runs = decompose_flat_range(view, first, first + held.size)
        parts = (run.intersect(box) for run in runs for box in boxes)
        needed = sum(part.size for part in parts if part is not None)
        for number, read in enumerate(_of_chunk(stored, chunk, held) if needed else ()):
            # The whole chunk is fetched, in as many reads as it has segments.
            yield StoredRead(read.key, read.start, read.stop, chunk, 0 if number else needed * item)


def storage_pattern(stored: StoredSlot) -> tuple[object, ...]:
    """Return what decides, beside layout, shape and data type, how much a read fetches; equal where storage is."""
    table, first = stored.part.table, stored.first_row
    chunks = range(first, first + stored.grid.count)
    counts = table.counts[chunks.start : chunks.stop].tobytes()
    rows = table.rows[table.first_segment[chunks.start] : table.first_segment[chunks.stop]]
    if stored.compressor is not None:
        return counts, rows["length"].tobytes()
    if not rows["box"].any():
        return (counts,)
    return counts, *(
        (segment.box, segment.row_set)
        for chunk in range(stored.grid.count)
        for segment in stored.segments(chunk)
    )
