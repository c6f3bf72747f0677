"""Small slots of packs, which are most of them: read together, and looked at by columns (SPEC section 18).

What is said here of a slot is only whether it is sound. One that is not is looked at again, the way all others are,
which says what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from awscrt.checksums import crc32c

from ucpformat.errors import UcpError
from ucpformat.model.dtype import unused_bits_are_zero
from ucpformat.storage.checksum import BLOCK_BYTES, packed, whole_digest
from ucpformat.storage.workers import call_edges
from ucpformat.validate.passing import CALL_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ucpformat.storage.part import StoredPart
    from ucpformat.storage.scratch import Scratch
    from ucpformat.storage.store import Store

__all__ = ["Near", "Sound", "near_slots", "sound_slots"]

_AT_ONCE: Final = 1024


class _Small(NamedTuple):
    """A slot's bytes in a pack, its number, and the checksum that is recorded."""

    start: int
    stop: int
    slot: int
    checksum: int


class Near(NamedTuple):
    """Small slots of a part whose bytes lie close to one another in one pack, sorted by their place."""

    part: StoredPart
    key: str
    slots: Sequence[_Small]


class Sound(NamedTuple):
    """Numbers of slots of a part that are sound, and how many bytes they are."""

    part: StoredPart
    slots: list[int]
    nbytes: int


def near_slots(part: StoredPart, gap: int) -> Iterator[Near]:
    """Slots of one chunk that are one block or less, in the groups that one call each reads.

    The checksum of the chunk table is then that of the slot's content as well.
    """
    if not part.packed:
        return
    found = part.single_chunks
    small = np.flatnonzero(found.lengths <= BLOCK_BYTES)
    small = small[np.lexsort((found.offsets[small], found.containers[small]))]
    containers, starts = found.containers[small], found.offsets[small]
    stops, slots = starts + found.lengths[small], found.slots[small]
    checksums = part.table.checksums[found.checksums[small]]
    for edges in call_edges(containers, starts, stops, gap=gap, nbytes=CALL_BYTES, most=_AT_ONCE):
        some = slice(*edges)
        columns = (column[some].tolist() for column in (starts, stops, slots, checksums))
        yield Near(part, part.packs[containers[edges[0]]].key, [*map(_Small, *columns)])


def sound_slots(store: Store, near: Near, scratch: Scratch) -> Sound:
    """Read slots by one call, and tell those whose bytes, content and unused bits are as they have to be."""
    part, key, slots = near
    first = slots[0].start
    size = slots[-1].stop - first
    memory = scratch.take(size)[:size]
    try:
        store.read_into(key, first, [memory.data])
    except UcpError:  # which of them it is comes out one by one
        return Sound(part, [], 0)
    sound: list[int] = []
    nbytes = 0
    for start, stop, number, checksum in slots:
        piece = memory[start - first : stop - first]
        content = part.contents[number]
        if (
            crc32c(piece.data) == checksum
            and (content is None or content == whole_digest(packed([checksum])))
            and unused_bits_are_zero(piece, part.dtype_of(number))
        ):
            sound.append(number)
            nbytes += piece.nbytes
    return Sound(part, sound, nbytes)
