"""Chunks of several ranks, put together by their owners while everything else is written (SPEC sections 16.3 and 16.4).

`chunk_owners` says who owns what, and which chunks are put together at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ucpformat.distributed.transport import Moved, transport
from ucpformat.errors import error
from ucpformat.geometry import (
    Box,
    Copy,
    Exchange,
    ExplicitHoldings,
    LocalMap,
    Piece,
    Strided,
    row_major_strides,
)
from ucpformat.storage.host_memory import selection

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ucpformat.distributed.chunk_owners import SharedChunk, Wave
    from ucpformat.distributed.group import Group
    from ucpformat.distributed.local_state import SlotName
    from ucpformat.distributed.share import Part, SlotToShare
    from ucpformat.geometry import ChunkGrid
    from ucpformat.storage.writing.piece_writer import PieceWriter

__all__ = ["ChunkAssembly"]


class ChunkAssembly:
    """Takes the parts that this rank has to write, in the order of slots, and writes whole chunks of those slots.

    ``whole`` are the slots of which whole chunks are written. ``lasting`` says that the memory of parts stays as it
    is; else those that wait are copied. ``written`` counts logical bytes that were handed on, ``moved`` what was sent.
    """

    def __init__(
        self,
        target: PieceWriter,
        group: Group,
        waves: Sequence[Wave],
        whole: Mapping[SlotName, SlotToShare],
        *,
        lasting: bool,
    ) -> None:
        self._target = target
        self._group = group
        self._waves = list(waves)
        self._whole = whole
        self._lasting = lasting
        self._shared = {(one.slot.name, one.chunk) for wave in waves for one in wave.chunks}
        self._waiting: dict[tuple[SlotName, int], list[tuple[Box, NDArray[np.generic]]]] = {}
        self._failure: Exception | None = None
        self.moved = Moved()
        self.written = 0

    def write(self, batches: Iterator[Sequence[Part]]) -> None:
        """Take the parts of all batches; each batch is written before the next one is asked for.

        Raises:
            What fails here, and whatever the group raises where a rank is gone.
        """
        while (batch := self._next(batches)) is not None:
            for part in batch:
                self.pass_by(part.name)
                self.guard(self.add, *part)
            self.guard(self._target.drain)
        self.finish()
        self._target.drain()

    def _next(self, batches: Iterator[Sequence[Part]]) -> Sequence[Part] | None:
        found: list[Sequence[Part] | None] = [None]
        self.guard(lambda: found.append(next(batches, None)))
        return found[-1]

    def add(self, name: SlotName, offset: tuple[int, ...], data: NDArray[np.generic]) -> None:
        """Take a part: write it, or the chunks that it completes, and keep the rest."""
        slot = self._whole.get(name)
        if slot is None:
            self._submit(name, offset, data)
            return
        box = Box(offset, data.shape)
        for chunk in slot.grid.chunks_for(box):
            chunk_box = slot.grid.box_at(chunk)
            part = box.intersect(chunk_box)
            if part is None:  # pragma: no cover - chunks_for yields intersecting chunks
                continue
            found = data[selection(part, box)]
            if part == chunk_box:
                self._submit(name, part.offset, found)
                continue
            waiting = self._waiting.setdefault((name, chunk), [])
            waiting.append((part, found if self._lasting else found.copy()))
            if (name, chunk) not in self._shared and sum(one.size for one, _ in waiting) == chunk_box.size:
                self._submit(name, chunk_box.offset, _assembled(chunk_box, waiting))
                del self._waiting[name, chunk]

    def guard(self, step: Callable[..., object], *arguments: object) -> None:
        """Do a step, unless one has failed: where others wait for parts of chunks, a failure is kept for `finish`.

        Raises:
            What fails, where nobody waits.
        """
        if self._failure is None:
            try:
                step(*arguments)
            except Exception as failure:
                if not self._shared:
                    raise
                self.fail(failure)

    def fail(self, failure: Exception) -> None:
        """Take no more parts, and raise this at last."""
        self._failure = self._failure or failure

    def pass_by(self, name: SlotName) -> None:
        """Exchange the chunks of all slots before ``name``: their parts are all there.

        Raises:
            Whatever the group raises where a rank is gone.
        """
        while self._waves and self._waves[0].last_slot < name:
            self._exchange(self._waves.pop(0).chunks)

    def finish(self) -> None:
        """Exchange all that is left.

        Raises:
            What failed here; and what the group raises where a rank is gone.
        """
        while self._waves:
            self._exchange(self._waves.pop(0).chunks)
        if self._failure is not None:
            raise self._failure

    def _submit(self, name: SlotName, offset: tuple[int, ...], data: NDArray[np.generic]) -> None:
        self._target.submit(*name, data, offset)
        self.written += data.nbytes

    def _exchange(self, wave: Sequence[SharedChunk]) -> None:
        by_slot: dict[SlotName, list[SharedChunk]] = {}
        for one in wave:
            by_slot.setdefault(one.slot.name, []).append(one)
        parcels = [
            _ChunkParcel(chunks, self._group.rank, self._take, self.fail) for chunks in by_slot.values()
        ]
        transport(parcels, self._group, self.moved)
        try:
            for parcel in parcels:
                for offset, data in parcel.owned if self._failure is None else ():
                    kind = self._target.places[parcel.name].dtype
                    self._submit(parcel.name, offset, data.view(kind.numpy))
            if self._failure is None:
                self._target.drain()
        except Exception as failure:
            self.fail(failure)

    def _take(self, name: SlotName, chunk: int) -> list[tuple[Box, NDArray[np.generic]]]:
        return self._waiting.pop((name, chunk), [])


class _ChunkParcel:
    """Shared chunks of one slot as a `transport.Parcel`.

    Places in plans are those in a dense logical tensor, of which there is none: they only say which box is meant.
    """

    def __init__(
        self,
        chunks: Sequence[SharedChunk],
        rank: int,
        take: Callable[[SlotName, int], list[tuple[Box, NDArray[np.generic]]]],
        fail: Callable[[Exception], None],
    ) -> None:
        slot = chunks[0].slot
        self.name = slot.name
        self.item_bytes = slot.item_bytes
        self._raw = np.dtype(f"V{slot.item_bytes}")
        self._grid: ChunkGrid = slot.grid
        self._strides = row_major_strides(slot.grid.shape)
        self._fail = fail
        self._waiting = {one.chunk: take(self.name, one.chunk) for one in chunks}
        self._owned: dict[int, NDArray[np.void]] = {}
        for one in chunks:
            if one.owner == rank:
                self._owned[one.chunk] = np.empty(one.box.shape, self._raw)
                missing = sum(_size(part.box, one.box) for part in one.parts if part.rank == rank)
                for box, data in self._waiting[one.chunk]:
                    self._owned[one.chunk][selection(box, one.box)] = _raw(data, self._raw)
                    missing -= box.size
                if missing:
                    self._miss()
        plan = self._exchange(chunks).rank(rank)
        self.sends: Sequence[Copy] = plan.sends
        self.receives: Sequence[Copy] = plan.receives

    @property
    def owned(self) -> list[tuple[tuple[int, ...], NDArray[np.void]]]:
        """Where the chunks lie that this rank owns, and their elements."""
        return [(self._grid.box_at(chunk).offset, data) for chunk, data in self._owned.items()]

    def _miss(self) -> None:
        at = "/".join(self.name)
        self._fail(error("UCP-E-COVER", "a part of a chunk was not there when it was to be written", at=at))

    def _exchange(self, chunks: Sequence[SharedChunk]) -> Exchange:
        given: dict[int, list[Piece]] = {}
        wanted: dict[int, list[Piece]] = {}
        for one in chunks:
            wanted.setdefault(one.owner, []).append(self._piece(one.box))
            for part in one.parts:
                box = part.box.intersect(one.box)
                if box is not None:
                    given.setdefault(part.rank, []).append(self._piece(box))
        return Exchange(*(self._holdings(side) for side in (given, wanted)))

    def _holdings(self, pieces: Mapping[int, list[Piece]]) -> ExplicitHoldings:
        shape = self._grid.shape
        maps = ((rank, LocalMap(shape, tuple(found))) for rank, found in sorted(pieces.items()))
        return ExplicitHoldings(shape, tuple(maps))

    def _piece(self, box: Box) -> Piece:
        return Piece(box, Strided(0, self._strides).shifted(box.offset))

    def _box(self, copy: Copy) -> Box:
        offset = []
        rest = copy.source.offset
        for stride in self._strides:
            place, rest = divmod(rest, stride)
            offset.append(place)
        return Box(tuple(offset), copy.shape)

    def _chunk(self, box: Box) -> int:
        index = tuple(
            first // extent for first, extent in zip(box.offset, self._grid.chunk_shape, strict=True)
        )
        return self._grid.position_of(index)

    def outgoing(self, copy: Copy) -> NDArray[np.void]:
        """Return the elements of a part of a chunk; zeros where this rank was not given them."""
        box = self._box(copy)
        for held, data in self._waiting[self._chunk(box)]:
            if held.contains(box):
                return _raw(data[selection(box, held)], self._raw)
        found = np.zeros(copy.shape, self._raw)
        missing = box.size
        for held, data in self._waiting[self._chunk(box)]:
            part = held.intersect(box)
            if part is not None:
                found[selection(part, box)] = _raw(data[selection(part, held)], self._raw)
                missing -= part.size
        if missing:
            self._miss()
        return found

    def incoming(self, copy: Copy) -> NDArray[np.void]:
        """Return the room for a part of a chunk that this rank owns."""
        box = self._box(copy)
        chunk = self._chunk(box)
        chunk_box = self._grid.box_at(chunk)
        return self._owned[chunk][selection(box, chunk_box)]


def _raw(data: NDArray[np.generic], raw: np.dtype[np.void]) -> NDArray[np.void]:
    return data.view(raw)


def _size(box: Box, other: Box) -> int:
    part = box.intersect(other)
    return 0 if part is None else part.size


def _assembled(box: Box, parts: Sequence[tuple[Box, NDArray[np.generic]]]) -> NDArray[np.generic]:
    whole = np.empty(box.shape, parts[0][1].dtype)
    for part, data in parts:
        whole[selection(part, box)] = data
    return whole
