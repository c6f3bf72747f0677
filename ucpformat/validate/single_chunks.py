"""Slots of packs that are one chunk each, which are most of them: looked at by columns (SPEC section 18).

What is said here of a slot is only whether it is sound. One that is not is looked at again, the way all others are,
which says what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.errors import UcpError
from ucpformat.model.dtype import unused_bits_are_zero
from ucpformat.storage.checksum import BLOCK_BYTES, block_checksums, whole_digest
from ucpformat.storage.workers import call_edges
from ucpformat.validate.passing import CALL_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.storage.part import StoredPart
    from ucpformat.storage.scratch import Scratch
    from ucpformat.storage.store import Store

__all__ = ["Near", "Sound", "near_slots", "sound_slots"]

_AT_ONCE: Final = 1024


class _Single(NamedTuple):
    """A slot's bytes in a pack, its number, and the checksums that are recorded."""

    start: int
    stop: int
    slot: int
    checksums: bytes


class Near(NamedTuple):
    """Slots of a part whose bytes lie close to one another in one pack, sorted by their place."""

    part: StoredPart
    key: str
    slots: Sequence[_Single]


class Sound(NamedTuple):
    """Numbers of slots of a part that are sound, and how many bytes they are."""

    part: StoredPart
    slots: list[int]
    nbytes: int


def near_slots(part: StoredPart, gap: int) -> Iterator[Near]:
    """Slots of one chunk, in groups that are looked at together: `CALL_BYTES` at most, unless it is one slot."""
    if not part.packed:
        return
    found = part.single_chunks
    order = np.lexsort((found.offsets, found.containers))
    containers, starts, slots = found.containers[order], found.offsets[order], found.slots[order]
    stops, first = starts + found.lengths[order], found.checksums[order]
    last = first - (-found.lengths[order] // BLOCK_BYTES)
    checksums = part.table.checksums
    for edges in call_edges(containers, starts, stops, gap=gap, nbytes=CALL_BYTES, most=_AT_ONCE):
        some = slice(*edges)
        recorded = [
            checksums[low:high].tobytes()
            for low, high in zip(first[some].tolist(), last[some].tolist(), strict=True)
        ]
        columns = (column[some].tolist() for column in (starts, stops, slots))
        yield Near(part, part.packs[containers[edges[0]]].key, [*map(_Single, *columns, recorded)])


def sound_slots(store: Store, near: Near, scratch: Scratch) -> Sound:
    """Tell those whose bytes, content and unused bits are as they have to be."""
    part, key, slots = near
    unsound: set[int] = set()
    start, end = slots[0].start, slots[-1].stop
    try:
        while start < end:
            stop = min(end, start + CALL_BYTES)
            with store.glimpse(key, start, stop, scratch.take) as data:
                unsound.update(_unsound(near, start, np.frombuffer(data, np.uint8)))
            start = stop
    except UcpError:  # which of them cannot be read comes out one by one
        return Sound(part, [], 0)
    sound = [one for one in slots if one.slot not in unsound and _has_content(part, one)]
    return Sound(part, [one.slot for one in sound], sum(one.stop - one.start for one in sound))


def _unsound(near: Near, first: int, memory: NDArray[np.uint8]) -> Iterator[int]:
    """Numbers of slots whose part of the bytes that begin at ``first``, which is that of a block, is not sound."""
    for start, stop, number, checksums in near.slots:
        low = max(start, first)
        piece = memory[low - first : stop - first]
        block = 4 * ((low - start) // BLOCK_BYTES)
        found = block_checksums([piece.data])
        if found != checksums[block : block + len(found)] or not unused_bits_are_zero(
            piece, near.part.dtype_of(number)
        ):
            yield number


def _has_content(part: StoredPart, one: _Single) -> bool:
    """Whether the content digest is that of blocks which, in a slot of one chunk, are those of the chunk table."""
    content = part.contents[one.slot]
    return content is None or content == whole_digest(one.checksums)
