"""Uncompressed bytes that lie in the store as they do in the chunk: looked at once, as they pass (SPEC section 18).

They are read some at a time into memory that is kept, and one checksum of each byte serves the chunk table, the
content digest and Zarr's codec: the values of parts are combined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.errors import UcpError, error
from ucpformat.model.dtype import unused_bits_are_zero
from ucpformat.model.table import OBJECT_TRAILER, OWN_OBJECT
from ucpformat.storage.checksum import BLOCK_BYTES, Run, checksum_run, combine, differing_blocks
from ucpformat.storage.host_memory import Scratch
from ucpformat.storage.reading.byte_runs import stretches
from ucpformat.storage.stores.repetition import is_not_repeated
from ucpformat.validation.damage import as_runs, joined_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ucpformat.model.table import Segment
    from ucpformat.storage.reading.part import StoredSlot
    from ucpformat.storage.stores.store import Store

__all__ = ["ABSENT", "CALL_BYTES", "CODEC_MESSAGE", "Passed", "looked_at", "pass_by", "passes", "pieces_of"]

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
        """Compare checksums of the blocks from byte ``start`` of a segment on; whether any is not as recorded."""
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
    """Whether the stored bytes of a chunk, segment after segment, are its logical bytes and nothing else."""
    if stored.compressor is not None:
        return False
    if segments[0].box is None:
        return segments[0].covered == stored.raw_bytes(chunk)
    shape, item = stored.chunk_shape(chunk), stored.dtype.item_bytes
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
    store: Store, key: str, start: int, nbytes: int, seen: memoryview | None, scratch: Scratch
) -> NDArray[np.uint8]:
    """``nbytes`` bytes of an object from ``start`` on: those ``seen`` where they lie (`Store.glimpse`), or else read.

    Raises:
        UcpError: what reading raises.
    """
    if seen is not None:
        return np.frombuffer(seen, np.uint8)
    data = scratch.take(nbytes)[:nbytes]
    store.read_into(key, start, [data.data])
    return data


def pass_by(
    store: Store, stored: StoredSlot, chunk: int, segments: tuple[Segment, ...], scratch: Scratch
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
    store: Store, key: str, segment: Segment, number: int, passed: Passed, way: Seen | None = None
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
