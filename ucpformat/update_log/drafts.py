"""Steps that were captured, and the batches that they become (SPEC-UPDATE-LOGS section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.jsonio import pointer
from ucpformat.model.dtype import dtype
from ucpformat.model.fields import raise_first
from ucpformat.model.values import decode
from ucpformat.storage.checksum import crc32c
from ucpformat.storage.host_memory import flat_bytes
from ucpformat.update_log.batch import BatchHeader, Entry, StepRecord, framed
from ucpformat.update_log.forms import blocks_of, entry_bytes, packed_places

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ucpformat.jsonio import JsonValue
    from ucpformat.update_log.batch import Options, Sum
    from ucpformat.update_log.documents import Epoch

__all__ = ["BatchDraft", "Captured", "StepDraft", "batch_bytes", "encoded", "sound_batch_bytes"]

_COPIED_BYTES: Final = 1 << 18
"""Up to so many bytes of a step are sooner copied together than looked at one buffer after another."""


@dataclass(slots=True)
class Captured:
    """What a step has of a piece, in memory of its own: all elements, or those at ``places``, or rows.

    ``places`` ascend; with ``are_rows`` they are row numbers.
    """

    piece: int
    values: NDArray[np.generic]
    places: NDArray[np.int64] | None = None
    are_rows: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.values.nbytes + (0 if self.places is None else self.places.nbytes)


@dataclass(slots=True)
class StepDraft:
    """A step that was captured."""

    captured: list[Captured] = field(default_factory=list)
    options: Options | None = None
    skipped: bool = False
    elsewhere: list[int] = field(default_factory=list)
    """Tensors that have a gradient, of which other ranks have all elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(one.nbytes for one in self.captured)


@dataclass(slots=True)
class BatchDraft:
    """Steps that become a batch. With ``is_end`` a batch ends with them, whatever waits to be written."""

    first_step: int
    steps: list[StepDraft]
    values: Mapping[str, JsonValue]
    sums: Sequence[Sum]
    options: Options | None = None
    is_end: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(step.nbytes for step in self.steps)


def batch_bytes(batch: BatchDraft, epoch: Epoch, rank: int, previous: str) -> tuple[list[memoryview], str]:
    """Return the bytes of a batch, and the digest that the next one of the rank names as ``previous``."""
    return framed(*_drafted(batch, epoch, rank, previous))


def sound_batch_bytes(
    batch: BatchDraft, epoch: Epoch, rank: int, previous: str, *, at: str
) -> tuple[list[memoryview], str]:
    """Return the same, and refuse what no reader would take (SPEC UCP-W-041).

    Raises:
        UcpError: ``UCP-E-MISMATCH`` for elements, places or rows that do not fit their piece; ``UCP-E-LOG`` and
            ``UCP-E-VALUE`` as readers do.
    """
    for number, step in enumerate(batch.steps):
        place = pointer(at, "steps", number)
        for one in step.captured:
            if one.piece >= len(epoch.pieces):
                raise error("UCP-E-LOG", f"there is no piece {one.piece}", at=place)
            _require_fit(one, epoch.pieces[one.piece].shape, place)
    header, payload = _drafted(batch, epoch, rank, previous)
    for place, value in header.tagged_values(at):
        decode(value, at=place)
    raise_first(header.problems(epoch, at))
    return framed(header, payload)


def _require_fit(one: Captured, shape: tuple[int, ...], at: str) -> None:
    size, places, told = math.prod(shape), one.places, "elements"
    stop, each = size, 1
    if one.are_rows:
        if not shape:
            raise error("UCP-E-LOG", "a tensor without dimensions has no rows", at=at)
        stop, told = shape[0], "rows"
        each = size // stop
    wanted = size if places is None else each * places.size
    if one.values.size != wanted:
        message = f"{one.values.size} elements of piece {one.piece}, where there are {wanted}"
        raise error("UCP-E-MISMATCH", message, at=at)
    if places is None or not places.size:
        return
    ascending = np.count_nonzero(places[1:] > places[:-1])  # which takes a third of the time of `all`
    if places.item(0) < 0 or places.item(-1) >= stop or ascending < places.size - 1:
        message = f"{told} of piece {one.piece}, which has {stop}, that do not ascend or lie outside of it"
        raise error("UCP-E-MISMATCH", message, at=at)


def _drafted(
    batch: BatchDraft, epoch: Epoch, rank: int, previous: str
) -> tuple[BatchHeader, list[memoryview]]:
    payload: list[memoryview] = []
    records = tuple(_record(step, epoch, payload) for step in batch.steps)
    header = BatchHeader(
        epoch.log,
        epoch.epoch,
        rank,
        batch.first_step,
        previous,
        records,
        batch.values,
        tuple(batch.sums),
        batch.options,
    )
    return header, payload


def _record(step: StepDraft, epoch: Epoch, payload: list[memoryview]) -> StepRecord:
    """Return the record of a step, whose bytes are appended to the payload."""
    entries: list[Entry] = []
    found: list[memoryview] = []
    length = checksum = 0
    for one in step.captured:
        piece = epoch.pieces[one.piece]
        tensor = epoch.tensors[piece.tensor]
        entry, buffers = encoded(one, piece.shape, is_value=tensor.role != "gradient")
        length += entry_bytes(entry, piece.shape, dtype(tensor.dtype).item_bytes)
        entries.append(entry)
        found += buffers
    if 0 < length <= _COPIED_BYTES:
        found = [memoryview(b"".join(found))]
    for buffer in found:
        checksum = crc32c(buffer, checksum)
    payload += found
    return StepRecord(tuple(entries), length, checksum, step.options, step.skipped)


def encoded(one: Captured, shape: tuple[int, ...], *, is_value: bool) -> tuple[Entry, list[memoryview]]:
    """Return the entry of a piece, in the form that takes fewest bytes, and its bytes; a value is dense."""
    values, places = np.ascontiguousarray(one.values), one.places
    if one.are_rows and places is not None:
        entry = Entry(one.piece, "rows", places.size)
        return entry, [flat_bytes(places.astype("<u4")), flat_bytes(values)]
    size = math.prod(shape)
    if places is None and not is_value:
        bits = values.reshape(-1).view(np.dtype(f"<u{min(values.itemsize, 8)}"))
        if values.itemsize <= 8:
            count = int(np.count_nonzero(bits))
            if 4 * blocks_of(size) + count * (2 + values.itemsize) < values.nbytes:
                places = np.flatnonzero(bits)
                values = values.reshape(-1)[places]
    if places is None:
        return Entry(one.piece, "dense"), [flat_bytes(values)]
    counts, within = packed_places(places, size)
    return Entry(one.piece, "sparse", places.size), [counts, within, flat_bytes(values)]
