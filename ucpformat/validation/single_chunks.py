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
from ucpformat.validation.passing import CALL_BYTES, looked_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.storage.host_memory import Scratch
    from ucpformat.storage.reading.part import StoredPart
    from ucpformat.storage.stores.store import Store

__all__ = ["Near", "Sound", "near_slots", "sound_slots"]

_AT_ONCE: Final = 1024


class _Single(NamedTuple):
    """A slot's bytes in a pack, its number, and the checksums that are recorded."""

    start: int
    stop: int
    slot: int
    checksums: bytes


class Near(NamedTuple):
    """Slots of a part whose bytes lie close to one another in one pack, sorted by their place.

    ``calls`` are the first slot, and the one behind the last, that one call reads where all have to be read.
    """

    part: StoredPart
    key: str
    slots: Sequence[_Single]
    calls: Sequence[tuple[int, int]]


class Sound(NamedTuple):
    """Numbers of slots of a part that are sound, and how many bytes they are."""

    part: StoredPart
    slots: list[int]
    nbytes: int


def near_slots(part: StoredPart, store: Store, passed: NDArray[np.int64]) -> Iterator[Near]:
    """Slots of one chunk, in groups that are looked at together; but not those that are ``passed`` over."""
    if not part.packed:
        return
    found, gap = part.single_chunks, store.calls.gap
    order = np.lexsort((found.offsets, found.containers))
    if passed.size:
        order = order[~np.isin(found.slots[order], passed)]
    containers, starts, slots = found.containers[order], found.offsets[order], found.slots[order]
    stops, first = starts + found.lengths[order], found.checksums[order]
    last = first - (-found.lengths[order] // BLOCK_BYTES)
    checksums = part.table.checksums
    together = max(CALL_BYTES, store.glimpse_bytes)
    for edges in call_edges(containers, starts, stops, gap=gap, nbytes=together, most=_AT_ONCE):
        some = slice(*edges)
        recorded = [
            checksums[low:high].tobytes()
            for low, high in zip(first[some].tolist(), last[some].tolist(), strict=True)
        ]
        columns = (column[some].tolist() for column in (starts, stops, slots))
        calls = call_edges(
            containers[some], starts[some], stops[some], gap=gap, nbytes=CALL_BYTES, most=_AT_ONCE
        )
        key = part.packs[containers[edges[0]]].key
        yield Near(part, key, [*map(_Single, *columns, recorded)], [*calls])


def sound_slots(store: Store, near: Near, scratch: Scratch) -> Sound:
    """Tell those whose bytes, content and unused bits are as they have to be."""
    part, key, slots, calls = near
    most = CALL_BYTES
    unsound: set[int] = set()
    origin, end = slots[0].start, slots[-1].stop
    try:
        with store.glimpse(key, origin, end) as found:
            if found is not None:
                calls, most = [(0, len(slots))], end - origin
            for low, high in calls:
                some = slots[low:high]
                # More than one piece has a slot that is longer, and alone.
                for start in range(some[0].start, some[-1].stop, most):
                    stop = min(some[-1].stop, start + most)
                    seen = None if found is None else found[start - origin : stop - origin]
                    data = looked_at(store, key, start, stop - start, seen, scratch)
                    unsound.update(_unsound(part, some, start, data))
    except UcpError:  # which of them cannot be read comes out one by one
        return Sound(part, [], 0)
    sound = [one for one in slots if one.slot not in unsound and _has_content(part, one)]
    return Sound(part, [one.slot for one in sound], sum(one.stop - one.start for one in sound))


def _unsound(
    part: StoredPart, slots: Sequence[_Single], first: int, data: NDArray[np.uint8]
) -> Iterator[int]:
    """Numbers of slots whose part of the bytes that begin at ``first``, which is that of a block, is not sound."""
    for start, stop, number, checksums in slots:
        low = max(start, first)
        piece = data[low - first : stop - first]
        block = 4 * ((low - start) // BLOCK_BYTES)
        found = block_checksums([piece.data])
        if found != checksums[block : block + len(found)] or not unused_bits_are_zero(
            piece, part.dtype_of(number)
        ):
            yield number


def _has_content(part: StoredPart, one: _Single) -> bool:
    """Whether the content digest is that of blocks which, in a slot of one chunk, are those of the chunk table."""
    content = part.contents[one.slot]
    return content is None or content == whole_digest(one.checksums)
