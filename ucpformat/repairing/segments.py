"""Bringing back the bytes of one segment, block by block, from wherever they are (SPEC sections 8.4 and 16.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from awscrt.checksums import crc32c

from ucpformat.errors import UcpError
from ucpformat.geometry import decompose_flat_range
from ucpformat.storage.checksum import BLOCK_BYTES
from ucpformat.validation.findings import SegmentDamage, as_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ucpformat.model.table import Segment
    from ucpformat.repairing.sources import Source
    from ucpformat.storage.stores.store import Objects

__all__ = ["Mended", "mended"]


class Mended(NamedTuple):
    """The covered bytes of a segment: which blocks were brought back, and which are still not as recorded.

    ``taken`` counts the bytes that each source has given, by its place among them.
    """

    data: bytearray
    taken: dict[int, int]
    lost: tuple[int, ...]


def mended(
    store: Objects, key: str, segment: Segment, damage: Sequence[SegmentDamage], sources: Sequence[Source]
) -> Mended:
    """Return the bytes of a segment, with what is not as recorded taken from ``sources`` where any has it.

    ``damage`` are the chunks that the segment holds, which are several where equal chunks share their bytes. Blocks
    that are nowhere stay what they are, or zeros where nothing is.
    """
    data = bytearray(segment.covered)
    work = _Work(data, segment)
    work.take_own(store, key)
    for number, source in enumerate(sources):
        if not work.missing:
            break
        before = work.found
        work.take_raw(source, key)
        for one in damage:
            if work.missing:
                work.take_by_name(source, one)
        if work.found > before:
            work.taken[number] = work.found - before
    return Mended(data, work.taken, tuple(sorted(work.missing)))


class _Work:
    """One segment under way."""

    def __init__(self, data: bytearray, segment: Segment) -> None:
        self.data = data
        self.segment = segment
        self.missing = set(range(-(-segment.covered // BLOCK_BYTES)))
        self.taken: dict[int, int] = {}
        self.found = 0

    def _runs(self) -> Iterable[tuple[int, int]]:
        """Yield byte ranges of blocks that are missing."""
        for first, stop in as_runs(sorted(self.missing)):
            yield first * BLOCK_BYTES, min(stop * BLOCK_BYTES, self.segment.covered)

    def _offer(self, start: int, found: bytes | memoryview) -> None:
        """Take those blocks, from byte ``start`` on, that are as recorded."""
        view = memoryview(found)
        for first in range(0, view.nbytes, BLOCK_BYTES):
            block = (start + first) // BLOCK_BYTES
            piece = view[first : first + BLOCK_BYTES]
            recorded = int.from_bytes(self.segment.checksums[4 * block : 4 * block + 4], "little")
            if block in self.missing and crc32c(piece) == recorded:
                self.data[start + first : start + first + piece.nbytes] = piece
                self.missing.discard(block)
                self.found += piece.nbytes

    def take_own(self, store: Objects, key: str) -> None:
        """Take what is good where it lies, and keep what is not."""
        segment = self.segment
        try:
            whole = store.read(key, segment.offset, segment.offset + segment.covered)
        except UcpError:
            for start in range(0, segment.covered, BLOCK_BYTES):
                stop = min(start + BLOCK_BYTES, segment.covered)
                try:
                    piece = store.read(key, segment.offset + start, segment.offset + stop)
                except UcpError as refusal:
                    if refusal.code == "UCP-E-MISSING":
                        return
                    continue
                self.data[start:stop] = piece
                self._offer(start, piece)
        else:
            self.data[:] = whole
            self._offer(0, whole)
        self.found = 0

    def take_raw(self, source: Source, key: str) -> None:
        """Take what another store has at the same place."""
        for start, stop in [*self._runs()]:
            offset = self.segment.offset
            found = source.raw(key, offset + start, offset + stop)
            if found is not None:
                self._offer(start, found)
            elif stop - start > BLOCK_BYTES:
                for first in range(start, stop, BLOCK_BYTES):
                    last = min(first + BLOCK_BYTES, stop)
                    piece = source.raw(key, offset + first, offset + last)
                    if piece is not None:
                        self._offer(first, piece)

    def take_by_name(self, source: Source, one: SegmentDamage) -> None:
        """Take the elements of the same tensor, however they are stored there."""
        stored, chunk, segment = one.stored, one.chunk, self.segment
        if segment.row_set is not None:
            return  # others need not have the rows that later layers have written over
        if stored.compressor is not None:
            for found in source.encoded(stored, chunk, segment.covered):
                if len(found) == segment.covered:
                    self._offer(0, found)
            return
        for low, high in as_runs(sorted(self.missing)):
            # What the other lacks as well may be one block of many.
            for first, stop in ((low, high), *((block, block + 1) for block in range(low, high))):
                if not self.missing.isdisjoint(range(first, stop)) and self._take_blocks(
                    source, one, first, stop
                ):
                    break

    def _take_blocks(self, source: Source, one: SegmentDamage, low: int, high: int) -> bool:
        """Take blocks of elements that are stored as they are; return whether the other could be read there."""
        stored, segment = one.stored, self.segment
        item = stored.dtype.item_bytes
        held = stored.grid.box_at(one.chunk)
        if segment.box is not None:
            held = segment.box.translate(held.offset)
        # Blocks are a whole number of elements, since those have 1 to 16 bytes, a power of 2.
        start, stop = low * BLOCK_BYTES, min(high * BLOCK_BYTES, segment.covered)
        last = min(stop // item, held.size)
        boxes = decompose_flat_range(held.shape, min(start // item, last), last)
        found = source.elements(stored, [box.translate(held.offset) for box in boxes])
        if found is not None:
            # Beyond the shape a chunk's own object is zero.
            self._offer(start, found.ljust(stop - start, b"\0"))
        return found is not None and high - low > 1
