"""Level *integrity*: every stored byte (SPEC section 18). Memory: `DecodingRoom`, and some MiB of each worker."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from awscrt.checksums import crc32c

from ucpformat.errors import Problem, UcpError, error
from ucpformat.geometry import Box
from ucpformat.jsonio import pointer
from ucpformat.model.dtype import unused_bits_are_zero
from ucpformat.model.table import OBJECT_TRAILER, OWN_OBJECT
from ucpformat.storage.checksum import BLOCK_BYTES, ContentDigest, block_checksums, checksum_run, zero_cuts
from ucpformat.storage.compression import decompress
from ucpformat.storage.host_memory import DecodingRoom, Scratch, selection
from ucpformat.storage.reading.documents import check_object
from ucpformat.storage.reading.layers import fill_of_rows, rows_within
from ucpformat.storage.stores.remote.repetition import is_not_repeated
from ucpformat.storage.workers import task_groups
from ucpformat.validation.findings import SegmentDamage
from ucpformat.validation.passing import (
    ABSENT,
    CODEC_MESSAGE,
    Passed,
    near_slots,
    pass_by,
    passes,
    pieces_of,
    sound_slots,
)
from ucpformat.validation.semantics import pack_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from ucpformat.model.table import Segment
    from ucpformat.storage.reading.part import StoredPart
    from ucpformat.storage.reading.stored_slot import StoredSlot
    from ucpformat.storage.stores.store import Objects
    from ucpformat.validation.findings import Findings
    from ucpformat.validation.semantics import CheckedCheckpoint

__all__ = ["check_integrity"]

ZERO_MESSAGE: Final = "the table says that this chunk is zero and has no object"

_GAP_BYTES = 1 << 20
_WINDOW = 32
_GROUP_BYTES = 1 << 22
_GROUP_CHUNKS = 256

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_OfChunk = tuple["StoredSlot", ContentDigest, int]


def check_integrity(
    store: Objects,
    checked: CheckedCheckpoint,
    findings: Findings,
    passed: Sequence[NDArray[np.int64]],
    *,
    executor: Executor,
    progress: Callable[[int], None],
) -> None:
    """Collect what is wrong with chunks, packs and blobs, but for slots that are ``passed`` over, part by part.

    ``progress`` is told of checked bytes.
    """
    scratch, room = Scratch(), DecodingRoom()
    sound: dict[StoredPart, list[int]] = {
        part: numbers.tolist() for part, numbers in zip(checked.parts, passed, strict=True)
    }
    near = (
        near
        for part, numbers in zip(checked.parts, passed, strict=True)
        for near in near_slots(part, store, numbers)
    )
    for part, slots, nbytes in _in_order(executor, lambda one: sound_slots(store, one, scratch), near):
        sound[part] += slots
        progress(nbytes)
    chunks = _chunks(checked.slots_without(sound.values()), findings)
    groups = task_groups(chunks, _raw_size, nbytes=_GROUP_BYTES, most=_GROUP_CHUNKS)
    for outcomes in _in_order(executor, lambda group: _check_chunks(store, group, scratch, room), groups):
        _collect(outcomes, findings, progress)
    for part, numbers in zip(checked.parts, passed, strict=True):
        for stored in map(part.slot, numbers.tolist()):
            findings.damage.unchecked.append(stored)
            findings.damage.segments += _cut_off(store, stored)
    for number in range(len(checked.packs or ())):
        _check_pack(store, checked, number, findings)
    for name, reference in checked.state.named_objects() if checked.state is not None else ():
        with findings.collecting() as outcome:
            check_object(store, reference)
        if outcome.has_refused:
            findings.damage.blobs.append((name, reference))


def _in_order(
    executor: Executor, work: Callable[[_Task], _Result], tasks: Iterable[_Task]
) -> Iterator[_Result]:
    """Yield what becomes of each task, in their order; a few are under way at a time."""
    pending: deque[Future[_Result]] = deque()
    for task in tasks:
        pending.append(executor.submit(work, task))
        if len(pending) == _WINDOW:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


class _Outcome:
    """What one chunk came to. ``is_unreadable``: for other reasons than its stored bytes."""

    def __init__(self, one: _OfChunk) -> None:
        self.stored, self.content, self.chunk = one
        self.problems: list[Problem] = []
        self.runs: list[tuple[int, int, bytes]] = []
        self.nbytes = 0
        self.damage: list[SegmentDamage] = []
        self.is_unreadable = False

    def passed(self, found: Passed, segments: tuple[Segment, ...]) -> None:
        """Take over what was found of segments."""
        stored, chunk = self.stored, self.chunk
        if not found.is_damaged:
            self.runs += found.runs
            if not found.clean:
                self.problems.append(_unused_bits(stored, chunk))
        for number, blocks in found.damage():
            self.damaged(number, blocks)
            if number in found.bad:
                key = stored.object_key(chunk, segments[number])
                self.problems.append(_differs(stored, chunk, found.bad[number], key))
        # That a pack or an object is not there or too short is said once, and not of each of its segments.
        told = {problem.code for problem in self.problems}
        for refusal in found.refusals:
            is_told = refusal.at.startswith("packs/") or refusal.code in told
            if not (is_told and refusal.code in {*ABSENT, "UCP-E-LENGTH"}):
                self.problems.append(refusal.problem())

    def refused(self, refusal: UcpError) -> None:
        """Note what was raised of the chunk."""
        self.problems.append(refusal.problem())
        if refusal.message == CODEC_MESSAGE:
            self.damaged(0, ())
        elif refusal.message != ZERO_MESSAGE:
            self.is_unreadable = True

    def settle(self) -> None:
        """Leave out what is not reported beside another length of the chunk's own object (UCP-V-005)."""
        if any(problem.code == "UCP-E-LENGTH" for problem in self.problems):
            ruled_out = ("UCP-E-CHECKSUM", "UCP-E-CODEC", "UCP-E-PADDING")
            self.problems = [problem for problem in self.problems if problem.code not in ruled_out]
            self.runs = []

    def damaged(self, number: int, blocks: tuple[tuple[int, int], ...]) -> None:
        """Note ranges of blocks of a segment that are bad; none where it is something else about its object."""
        if blocks or not any(one.number == number for one in self.damage):
            self.damage.append(SegmentDamage(self.stored, self.chunk, number, blocks))


def _differs(stored: StoredSlot, chunk: int, said: dict[int, str], key: str) -> Problem:
    first, words = next(iter(said.items()))
    more = f" and {len(said) - 1} more differ as well;" if len(said) > 1 else ""
    message = (
        f"block {first} of chunk {stored.chunk_key(chunk)} of {stored.label} has {words};{more} "
        "`ucp repair` restores it from a copy"
    )
    return Problem("UCP-E-CHECKSUM", key, message)


def _chunks(slots: Iterable[StoredSlot], findings: Findings) -> Iterator[_OfChunk]:
    """Yield every chunk; slots that have none are done with."""
    for stored in slots:
        content = ContentDigest(stored.nbytes)
        if stored.grid.count == 0:
            _check_content(stored, content, findings)
        for chunk in range(stored.grid.count):
            yield stored, content, chunk


def _raw_size(one: _OfChunk) -> int:
    stored, _, chunk = one
    return stored.raw_bytes(chunk)


def _collect(outcomes: Iterable[_Outcome], findings: Findings, progress: Callable[[int], None]) -> None:
    for outcome in outcomes:
        findings.extend(outcome.problems)
        findings.damage.segments += outcome.damage
        if outcome.is_unreadable:
            findings.damage.chunks.append((outcome.stored, outcome.chunk))
        progress(outcome.nbytes)
        for start, size, cuts in outcome.runs:
            outcome.content.add(start, size, cuts)
        if outcome.chunk == outcome.stored.grid.count - 1:
            _check_content(outcome.stored, outcome.content, findings)


def _check_content(stored: StoredSlot, content: ContentDigest, findings: Findings) -> None:
    """Check the content digest (UCP-D-038); a chunk that was refused has been reported already."""
    recorded, found = stored.content, content.value()
    if recorded is not None and found is not None and recorded != found:
        at = pointer(stored.part.index_key, "atoms")
        message = f"the logical bytes of {stored.label} have the content digest {found}"
        findings.add(Problem("UCP-E-CONTENT", at, message))
        findings.damage.contradicted.append(stored)


def _check_chunks(
    store: Objects, group: list[_OfChunk], scratch: Scratch, room: DecodingRoom
) -> list[_Outcome]:
    """Look at each chunk."""
    outcomes = [_Outcome(one) for one in group]
    for outcome in outcomes:
        stored, chunk = outcome.stored, outcome.chunk
        try:
            segments = stored.segments(chunk)
        except UcpError as refusal:
            outcome.refused(refusal)
            continue
        try:
            if not segments:
                outcome.runs.append(_absent(store, stored, chunk))
            elif not _is_there(store, stored, chunk, segments[0], outcome):
                continue
            elif passes(stored, chunk, segments):
                found = pass_by(store, stored, chunk, segments, scratch)
                outcome.nbytes += found.nbytes
                outcome.passed(found, segments)
            else:
                with room.take(2 * stored.whole_bytes()):
                    _check_apart(store, stored, chunk, segments, outcome)
        except UcpError as refusal:
            if is_not_repeated(refusal):
                raise
            outcome.refused(refusal)
        outcome.settle()
    return outcomes


def _absent(store: Objects, stored: StoredSlot, chunk: int) -> tuple[int, int, bytes]:
    """Return the run of a chunk that the table says is zero."""
    if not stored.part.packed and store.size(key := f"{stored.prefix}/{stored.chunk_key(chunk)}") is not None:
        raise error("UCP-E-LENGTH", ZERO_MESSAGE, at=key)
    start, size = stored.logical_start(chunk), stored.raw_bytes(chunk)
    return start, size, zero_cuts(size, start)


def _check_apart(
    store: Objects, stored: StoredSlot, chunk: int, segments: tuple[Segment, ...], outcome: _Outcome
) -> None:
    """Look at a chunk that has to be put together or decoded first."""
    # All are read before memory is taken for a whole that may not be there.
    found = Passed()
    read = [_segment_bytes(store, stored, chunk, number, one, found) for number, one in enumerate(segments)]
    outcome.nbytes += sum(map(len, read))
    outcome.passed(found, segments)
    if found.is_damaged:
        return
    raw = _raw_bytes(stored, chunk, segments, read, outcome)
    if not unused_bits_are_zero(np.frombuffer(raw, np.uint8), stored.dtype):
        outcome.problems.append(_unused_bits(stored, chunk))
    start = stored.logical_start(chunk)
    outcome.runs.append((start, raw.nbytes, checksum_run(raw, start).cuts))


def _unused_bits(stored: StoredSlot, chunk: int) -> Problem:
    return Problem("UCP-E-PADDING", stored.chunk_at(chunk), "unused bits of elements are not zero")


def _raw_bytes(
    stored: StoredSlot, chunk: int, segments: tuple[Segment, ...], read: list[bytes], outcome: _Outcome
) -> memoryview:
    """Return the logical bytes of a chunk, of whose segments these were ``read`` and are as recorded."""
    if segments[0].box is None:
        data = read[0]
        if segments[0].container == OWN_OBJECT:
            return _from_object(stored, chunk, data, outcome)
        if stored.compressor is not None:
            return decompress(stored.compressor, data, stored.raw_bytes(chunk), at=stored.chunk_at(chunk))
        return memoryview(data)
    whole = Box.whole(stored.grid.box_at(chunk).shape)
    assembled = np.empty(whole.shape, stored.dtype.numpy)
    for segment, data in zip(segments, read, strict=True):
        if segment.row_set is not None and segment.box is not None:
            found = rows_within(segment, segment.box, stored.dtype.item_bytes)
            target = assembled[selection(segment.box, whole)]
            fill_of_rows(found, segment, segment.box, target, 0).fill(memoryview(data), 0)
        elif segment.box is not None:
            part = np.frombuffer(data, stored.dtype.numpy).reshape(segment.box.shape)
            assembled[selection(segment.box, whole)] = part
    return assembled.reshape(-1).view(np.uint8).data


def _is_there(store: Objects, stored: StoredSlot, chunk: int, segment: Segment, outcome: _Outcome) -> bool:
    """Return whether there is anything to look at; a chunk's own object is as long as is recorded."""
    if segment.container != OWN_OBJECT:
        return True
    key = stored.object_key(chunk, segment)
    size = store.size(key)
    if size is None:
        outcome.problems.append(Problem("UCP-E-MISSING", key, "the chunk's object is missing"))
        outcome.damaged(0, ((0, -(-segment.covered // BLOCK_BYTES)),))
        return False
    if size != segment.length:
        message = f"the object has {size} bytes, recorded are {segment.length}"
        outcome.problems.append(Problem("UCP-E-LENGTH", key, message))
        outcome.damaged(0, ())
    return True


def _segment_bytes(
    store: Objects, stored: StoredSlot, chunk: int, number: int, segment: Segment, found: Passed
) -> bytes:
    """Return the bytes of a segment; nothing where they cannot be read. ``found`` is told of bad blocks."""
    key = stored.object_key(chunk, segment)
    try:
        data = store.read(key, segment.offset, segment.offset + segment.length)
    except UcpError:
        for start, stop, piece in pieces_of(store, key, segment, number, found):
            covered = piece[: min(stop, segment.covered) - start]
            found.differ(number, block_checksums([covered.data]), segment, start)
        return b""
    found.differ(number, block_checksums([memoryview(data)[: segment.covered]]), segment, 0)
    return data


def _from_object(stored: StoredSlot, chunk: int, data: bytes, outcome: _Outcome) -> memoryview:
    """Return logical bytes of a Zarr chunk: the codec's own checksum, the compressor, the padding."""
    at = f"{stored.prefix}/{stored.chunk_key(chunk)}"
    body, trailer = memoryview(data)[:-OBJECT_TRAILER], data[-OBJECT_TRAILER:]
    if crc32c(body) != int.from_bytes(trailer, "little"):
        raise error("UCP-E-CODEC", CODEC_MESSAGE, at=at)
    size = stored.raw_bytes(chunk)
    if stored.compressor is not None:
        body = decompress(stored.compressor, bytes(body), stored.whole_bytes(), at=at)
    # Only the outermost cut axis is clipped, so that padding is the tail of the chunk.
    if np.frombuffer(body[size:], np.uint8).any():
        outcome.problems.append(Problem("UCP-E-PADDING", at, "elements beyond the shape are not zero"))
    return body[:size]


def _cut_off(store: Objects, stored: StoredSlot) -> Iterator[SegmentDamage]:
    """Yield what of a slot that is passed over lies behind the end of a pack, which takes no look at it."""
    for chunk in range(stored.grid.count) if stored.part.packed else ():
        try:
            segments = stored.segments(chunk)
            sizes = [store.size(stored.object_key(chunk, segment)) or 0 for segment in segments]
        except UcpError:
            continue  # which is reported of the table, or of the pack
        for number, (segment, size) in enumerate(zip(segments, sizes, strict=True)):
            first = max(0, size - segment.offset) // BLOCK_BYTES
            blocks = -(-segment.covered // BLOCK_BYTES)
            if size < segment.offset + segment.length:
                yield SegmentDamage(stored, chunk, number, ((min(first, blocks - 1), blocks),))


def _check_pack(store: Objects, checked: CheckedCheckpoint, number: int, findings: Findings) -> None:
    """Check a pack's length, and that its other bytes than segments are zero (UCP-D-099, UCP-D-108)."""
    pack = (checked.packs or ())[number]
    with findings.collecting() as outcome:
        size = store.size(pack.key)
        if size is None:
            raise error("UCP-E-MISSING", "the pack is missing", at=pack.key)
        if size != pack.length:
            raise error("UCP-E-LENGTH", f"the pack has {size} bytes, recorded are {pack.length}", at=pack.key)
        if pack.shared or not checked.complete:
            return
        for start, stop in _gaps(checked, number, pack.length):
            for first in range(start, stop, _GAP_BYTES):
                if any(store.read(pack.key, first, min(stop, first + _GAP_BYTES))):
                    message = f"bytes {start} to {stop} belong to no segment and are not zero"
                    findings.add(Problem("UCP-E-PADDING", pack.key, message))
                    findings.damage.packs[number] = None
                    break
    if outcome.has_refused:
        findings.damage.packs[number] = None


def _gaps(checked: CheckedCheckpoint, number: int, length: int) -> Iterator[tuple[int, int]]:
    position = 0
    for start, stop in pack_ranges(checked, number).tolist():
        if start > position:
            yield position, start
        position = max(position, stop)
    if position < length:
        yield position, length
