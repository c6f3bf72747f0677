"""Objects put together anew of what is good of them and what others have: packs, and chunks' own (SPEC section 8.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from awscrt.checksums import crc32c

from ucpformat.errors import UcpError
from ucpformat.model.table import BLOCK_BYTES, OBJECT_TRAILER, Segment
from ucpformat.repairing.segments import mended
from ucpformat.validation.findings import SegmentDamage, as_runs

if TYPE_CHECKING:
    from ucpformat.repairing.sources import Source
    from ucpformat.storage.reading.part import StoredPart
    from ucpformat.storage.stores.store import Objects
    from ucpformat.validation.semantics import CheckedCheckpoint

__all__ = ["ChunkObject", "PackObject", "Rebuilt"]

_PIECE_BYTES: Final = 1 << 22


class Rebuilt:
    """What becomes of one object while its bytes are taken: ``taken`` from each source, and damage that stays."""

    def __init__(self, key: str, store: Objects, sources: Sequence[Source]) -> None:
        self.key = key
        self._store = store
        self._sources = sources
        self.taken: dict[int, int] = defaultdict(int)
        self.left: list[SegmentDamage] = []
        self.is_other = False
        """Whether anything but segments is put right: the length, zeros between segments, the codec's checksum."""

    @property
    def is_wanted(self) -> bool:
        """Whether the object is better than the one that is there."""
        return bool(self.taken) or (self.is_other and not self.left)

    def _mend(self, segment: Segment, damage: Sequence[SegmentDamage]) -> bytearray:
        found = mended(self._store, self.key, segment, damage, self._sources)
        for number, nbytes in found.taken.items():
            self.taken[number] += nbytes
        if found.lost:
            self.left += [one._replace(blocks=as_runs(found.lost)) for one in damage]
        return found.data


class ChunkObject(Rebuilt):
    """A chunk's own object, of storage plain."""

    def __init__(self, damage: SegmentDamage, store: Objects, sources: Sequence[Source]) -> None:
        segment = damage.stored.segments(damage.chunk)[damage.number]
        super().__init__(damage.stored.object_key(damage.chunk, segment), store, sources)
        self._segment = segment
        self._damage = damage
        self.is_other = not damage.blocks

    def look(self) -> None:
        """Find out what can be brought back."""
        self._mend(self._segment, [self._damage])

    def pieces(self) -> Iterator[memoryview]:
        """Yield all bytes; nothing is put in the place of an object of which no more was found."""
        data = self._mend(self._segment, [self._damage])
        yield memoryview(data)
        yield memoryview(crc32c(data).to_bytes(OBJECT_TRAILER, "little"))


class PackObject(Rebuilt):
    """A pack. Bytes of unknown segments, whose table is lost, stay as they are."""

    def __init__(
        self,
        checked: CheckedCheckpoint,
        number: int,
        damage: Sequence[SegmentDamage],
        store: Objects,
        sources: Sequence[Source],
    ) -> None:
        assert checked.packs is not None  # noqa: S101
        pack = checked.packs[number]
        super().__init__(pack.key, store, sources)
        self._length = pack.length
        self._is_complete = checked.complete
        self._damage: dict[tuple[int, int], list[SegmentDamage]] = defaultdict(list)
        for one in damage:
            segment = one.stored.segments(one.chunk)[one.number]
            self._damage[segment.offset, segment.length].append(one)
        self._segments = dict(sorted(row for part in checked.parts for row in _rows(part, number)))
        self.is_other = True

    @property
    def nbytes(self) -> int:
        """The length that is recorded."""
        return self._length

    def look(self) -> None:
        """Find out what can be brought back, without the rest of the pack."""
        for where, damage in self._damage.items():
            self._mend(_segment(where, self._segments[where]), damage)

    def pieces(self) -> Iterator[memoryview]:
        """Yield all bytes, segment by segment."""
        position = 0
        for (offset, length), checksums in self._segments.items():
            if offset < position:  # segments that overlap without being equal: the document is wrong
                continue
            yield from self._between(position, offset)
            where = offset, length
            if where in self._damage:
                yield memoryview(self._mend(_segment(where, checksums), self._damage[where]))
            else:
                yield from self._good(offset, length, checksums)
            position = offset + length
        yield from self._between(position, self._length)

    def _good(self, offset: int, length: int, checksums: bytes) -> Iterator[memoryview]:
        """Yield what was found to be as recorded, which is looked at once more as it is copied."""
        for start in range(0, length, _PIECE_BYTES):
            stop = min(start + _PIECE_BYTES, length)
            segment = Segment(0, offset + start, stop - start, None, checksums[4 * (start // BLOCK_BYTES) :])
            found = mended(self._store, self.key, segment, (), self._sources)
            for number, nbytes in found.taken.items():
                self.taken[number] += nbytes
            if found.lost:
                raise _changed(self.key)
            yield memoryview(found.data)

    def _between(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield what lies between segments: zeros."""
        for first in range(start, stop, _PIECE_BYTES):
            last = min(first + _PIECE_BYTES, stop)
            kept = None if self._is_complete else self._kept(first, last)
            yield memoryview(bytes(last - first) if kept is None else kept)

    def _kept(self, start: int, stop: int) -> bytes | None:
        try:
            return self._store.read(self.key, start, stop)
        except UcpError:
            return None


def _changed(key: str) -> UcpError:
    from ucpformat.errors import error

    message = (
        "bytes that were good a moment ago are not any more; the medium fails: copy what is left elsewhere"
    )
    return error("UCP-E-STORE", message, at=key)


def _segment(where: tuple[int, int], checksums: bytes) -> Segment:
    return Segment(0, *where, None, checksums)


def _rows(part: StoredPart, pack: int) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Yield where the segments of a part lie in a pack, with their checksums."""
    table = part.table
    (numbers,) = np.nonzero(table.rows["container"] == pack)
    rows = table.rows[numbers]
    first, last = table.first_checksum[numbers].tolist(), table.first_checksum[numbers + 1].tolist()
    for offset, length, low, high in zip(
        rows["offset"].tolist(), rows["length"].tolist(), first, last, strict=True
    ):
        yield (offset, length), table.checksums[low:high].tobytes()
