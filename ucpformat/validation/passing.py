"""Uncompressed bytes that lie in the store as they do in the chunk: looked at once, as they pass (SPEC section 18).

They are read some at a time into memory that is kept, and one checksum of each byte serves the chunk table, the
content digest and Zarr's codec: the values of parts are combined. Slots of packs that are one chunk each,
which are most of them, are looked at by columns: what is said of one is only whether it is sound; one that is not is
looked at again, the way all others are, which says what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.errors import UcpError, error
from ucpformat.model.dtype import unused_bits_are_zero
from ucpformat.model.table import OBJECT_TRAILER, OWN_OBJECT
from ucpformat.storage.checksum import (
    BLOCK_BYTES,
    Run,
    block_checksums,
    checksum_run,
    combine,
    differing_blocks,
    whole_digest,
)
from ucpformat.storage.host_memory import Scratch
from ucpformat.storage.reading.byte_runs import stretches
from ucpformat.storage.stores.remote.repetition import is_not_repeated
from ucpformat.storage.workers import call_edges
from ucpformat.validation.findings import as_runs, joined_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.model.table import Segment
    from ucpformat.storage.reading.part import StoredPart
    from ucpformat.storage.reading.stored_slot import StoredSlot
    from ucpformat.storage.stores.store import Objects

__all__ = [
    "ABSENT",
    "CALL_BYTES",
    "CODEC_MESSAGE",
    "Near",
    "Passed",
    "Sound",
    "looked_at",
    "near_slots",
    "pass_by",
    "passes",
    "pieces_of",
    "sound_slots",
]

CALL_BYTES: Final = 1 << 22
"""Read by one call: what comes back from the system has to wait for other threads of Python."""

_FAILURES: Final = 4
"""Blocks one behind the other that cannot be read, behind which no other of their segment is tried."""

ABSENT: Final = frozenset({"UCP-E-MISSING", "UCP-E-LINK"})
"""What is said of an object of which nothing can be read."""

CODEC_MESSAGE = "the checksum of Zarr's crc32c codec is wrong"


@dataclass(slots=True)
class Passed:
    """What was found of a chunk: runs with their cuts, as `ContentDigest.add` takes them, and blocks that are bad.

    ``bad`` are those of each segment, by its number, that were read, with what is said of each; ``gone`` are half-open
    ranges of those that could not be.
    """

    runs: list[tuple[int, int, bytes]] = field(default_factory=list)
    nbytes: int = 0
    clean: bool = True
    """Whether unused bits of elements are zero."""
    bad: dict[int, dict[int, str]] = field(default_factory=dict)
    gone: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    refusals: list[UcpError] = field(default_factory=list)
    """What reading raised, each once."""

    def look(
        self,
        piece: NDArray[np.uint8],
        stored: StoredSlot,
        segment: Segment,
        number: int,
        start: int,
        logical: int,
    ) -> Run:
        """Check bytes that begin at byte ``start`` of a segment, and ``logical`` of their slot; one pass over them."""
        run = checksum_run(piece.data, logical)
        if not self.differ(number, run.blocks, segment, start):
            self.runs.append((logical, piece.nbytes, run.cuts))
            self.clean = self.clean and unused_bits_are_zero(piece, stored.dtype)
        return run

    def differ(self, number: int, found: bytes, segment: Segment, start: int) -> bool:
        """Compare checksums of blocks from byte ``start`` of a segment on; return whether any is not as recorded."""
        bad = differing_blocks(found, segment.checksums, start // BLOCK_BYTES)
        if bad:
            self.bad.setdefault(number, {}).update(bad)
        return bool(bad)

    @property
    def is_damaged(self) -> bool:
        """Whether any block is bad or gone."""
        return bool(self.bad or self.gone)

    def damage(self) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
        """Yield the number of each segment that is damaged, with ranges of its blocks."""
        for number in sorted({*self.bad, *self.gone}):
            yield (
                number,
                joined_runs([*self.gone.get(number, ()), *as_runs(sorted(self.bad.get(number, ())))]),
            )

    def unread(self, number: int, first: int, stop: int, refusal: UcpError) -> None:
        """Note blocks of a segment that could not be read."""
        self.gone.setdefault(number, []).append((first, stop))
        if not any((one.code, one.message) == (refusal.code, refusal.message) for one in self.refusals):
            self.refusals.append(refusal)


def passes(stored: StoredSlot, chunk: int, segments: tuple[Segment, ...]) -> bool:
    """Return whether the stored bytes of a chunk, segment after segment, are its logical bytes and nothing else."""
    if stored.compressor is not None:
        return False
    if segments[0].box is None:
        return segments[0].covered == stored.raw_bytes(chunk)
    shape, item = stored.grid.box_at(chunk).shape, stored.dtype.item_bytes
    position = 0
    for segment in segments:
        if segment.box is None:  # pragma: no cover - `StoredSlot.segments` has refused it
            return False
        first = next(stretches(segment.box, shape, item))
        if first.start != position or first.stop - position != segment.length:
            return False
        position = first.stop
    return True


class Seen(NamedTuple):
    """How bytes are come by: where they lie, if that is known, or ``most`` at a time into memory that is kept."""

    found: memoryview | None
    most: int
    scratch: Scratch


def looked_at(
    store: Objects, key: str, start: int, nbytes: int, seen: memoryview | None, scratch: Scratch
) -> NDArray[np.uint8]:
    """Return ``nbytes`` bytes of an object from ``start`` on: ``seen`` mapped (`Objects.glimpse`), or else read.

    Raises:
        UcpError: what reading raises.
    """
    if seen is not None:
        return np.frombuffer(seen, np.uint8)
    data = scratch.take(nbytes)[:nbytes]
    store.read_into(key, start, [data.data])
    return data


def pass_by(
    store: Objects, stored: StoredSlot, chunk: int, segments: tuple[Segment, ...], scratch: Scratch
) -> Passed:
    """Check a chunk for which `passes` holds, byte by byte; goes on behind what is wrong.

    Raises:
        IntegrityError: ``UCP-E-CODEC`` where nothing else is wrong.
    """
    passed = Passed()
    logical = stored.logical_start(chunk)
    for number, segment in enumerate(segments):
        key = stored.object_key(chunk, segment)
        trailer_bytes = OBJECT_TRAILER if segment.container == OWN_OBJECT else 0
        total, trailer = 0, b""
        with store.glimpse(key, segment.offset, segment.offset + segment.length) as found:
            most = CALL_BYTES if found is None else segment.covered
            seen = Seen(found, most, scratch)
            for start, stop, read in pieces_of(store, key, segment, number, passed, seen):
                size = min(stop, segment.covered) - start
                run = passed.look(read[:size], stored, segment, number, start, logical + start)
                if trailer_bytes:
                    total = combine(total, run.total, size)
                trailer = read[size:].tobytes()
        logical += segment.covered
        passed.nbytes += segment.length
        if (
            len(trailer) == OBJECT_TRAILER
            and not passed.is_damaged
            and total != int.from_bytes(trailer, "little")
        ):
            raise error("UCP-E-CODEC", CODEC_MESSAGE, at=key)
    return passed


def pieces_of(
    store: Objects, key: str, segment: Segment, number: int, passed: Passed, way: Seen | None = None
) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
    """Yield the bytes of a segment in pieces, the last with what follows the covered ones, and where each lies in it.

    Of a piece that cannot be read, as many blocks are tried one by one as can be there; ``passed`` is told of others.
    """
    found, most, scratch = way or Seen(None, BLOCK_BYTES, Scratch())
    position, apart, failures = 0, 0, 0
    while position < segment.covered:
        start = position
        # Behind a piece that could not be read, its blocks are tried one by one.
        stop = min(start + (BLOCK_BYTES if start < apart else most), segment.covered)
        behind = segment.length if stop == segment.covered else stop
        is_block = stop - start <= BLOCK_BYTES
        # What is cut off may be no more than the bytes of Zarr's codec.
        for end in (behind, stop) if is_block and behind > stop else (behind,):
            seen = None if found is None else found[start:end]
            try:
                data = looked_at(store, key, segment.offset + start, end - start, seen, scratch)
            except UcpError as reason:
                if is_not_repeated(reason):
                    raise
                refusal = reason
            else:
                yield start, end, data
                position, failures = stop, 0
                break
        else:
            first = start // BLOCK_BYTES
            failures += is_block
            is_end = is_block and refusal.code == "UCP-E-LENGTH"
            if refusal.code in ABSENT or is_end or failures == _FAILURES:
                passed.unread(number, first, -(-segment.covered // BLOCK_BYTES), refusal)
                return
            if is_block:
                passed.unread(number, first, first + 1, refusal)
                position = stop
            else:
                apart = stop


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


def near_slots(part: StoredPart, store: Objects, passed: NDArray[np.int64]) -> Iterator[Near]:
    """Yield slots of one chunk, in groups that are looked at together; but not those that are ``passed`` over."""
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


def sound_slots(store: Objects, near: Near, scratch: Scratch) -> Sound:
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
    """Yield the numbers of slots whose part of the bytes from ``first`` on, the start of a block, is damaged."""
    for start, stop, number, checksums in slots:
        low = max(start, first)
        piece = data[low - first : stop - first]
        block = 4 * ((low - start) // BLOCK_BYTES)
        found = block_checksums([piece.data])
        if found != checksums[block : block + len(found)] or not unused_bits_are_zero(
            piece, part.forms[number][0]
        ):
            yield number


def _has_content(part: StoredPart, one: _Single) -> bool:
    """Return whether the content digest is that of blocks; in a slot of one chunk, these are the chunk table's."""
    content = part.contents[one.slot]
    return content is None or content == whole_digest(one.checksums)
