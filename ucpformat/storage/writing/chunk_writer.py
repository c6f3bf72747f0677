"""Chunks to bytes: what any storage takes, and storage plain, an object for each (SPEC sections 16.2 and 16.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from ucpformat.errors import error
from ucpformat.geometry import runs
from ucpformat.model.table import OBJECT_TRAILER, OWN_OBJECT, Segment
from ucpformat.model.zarr_document import GROUP_DOCUMENT, array_document
from ucpformat.storage.checksum import (
    Run,
    checksum_run,
    combine,
    zeros_checksum,
)
from ucpformat.storage.compression import compress

if TYPE_CHECKING:
    from ucpformat.geometry import Box, ChunkGrid
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.dtype import DType
    from ucpformat.model.references import Pack

__all__ = [
    "BaseChunks",
    "ChunkPiece",
    "ChunkWriter",
    "Create",
    "Layer",
    "PlainChunkWriter",
    "Room",
    "SharedRun",
    "SlotPlace",
    "StoredChunk",
    "is_zero",
    "segment_alignment",
]


Create = Callable[[str, Sequence[memoryview]], None]
"""How an object is made: `Store.create`, or `Store.replace` where several may be at work on one."""


class SlotPlace(NamedTuple):
    """A slot that is being written: where it goes and how it is cut."""

    key: str
    slot: str
    dtype: DType
    grid: ChunkGrid
    compressor: Compressor | None

    @property
    def nbytes(self) -> int:
        """Logical bytes."""
        return self.grid.whole.size * self.dtype.item_bytes

    def logical_start(self, chunk: int) -> int:
        """Return the first byte of a chunk within the slot's logical bytes."""
        if chunk == 0:
            return 0
        return self.grid.chunk_start(self.grid.index_of(chunk)) * self.dtype.item_bytes

    def start_of_run(self, chunk: int, box: Box | None) -> int | None:
        """Return the first byte of a chunk or box of it in the slot's logical bytes; None for a box that is no run."""
        if box is None:
            return self.logical_start(chunk)
        lines = runs(box, self.grid.box_at(chunk).shape)
        if lines.count != 1:
            return None
        return self.logical_start(chunk) + lines.first * self.dtype.item_bytes

    def prefix(self) -> str:
        """Return key of the Zarr array in storage plain."""
        return f"atoms/{self.key}/{self.slot}"


class Room(NamedTuple):
    """Where a piece of a known length will lie: the number of a pack, and the offset in it."""

    container: int
    offset: int


class SharedRun(NamedTuple):
    """Where a pack of the base of an increment has the bytes of a piece: ``nbytes`` from ``offset`` on.

    ``length`` is that of the pack, which this checkpoint has as ``key``; ``blocks`` and ``cuts`` are those of the bytes
    as `Run` has them, without cuts where they are compressed, or a layer.
    """

    key: str
    length: int
    offset: int
    nbytes: int
    blocks: bytes
    cuts: bytes


class Layer(NamedTuple):
    """What makes a piece a layer of its box: the rows that it has, all where ``row_set`` is None.

    ``start`` is that of the box, as `StoredChunk` has it. The first of a box has ``size``, the bytes of the box, and
    their ``cuts`` as `Run` has them; the others have none.
    """

    row_set: bytes | None
    start: int
    size: int
    cuts: bytes | None


class ChunkPiece(NamedTuple):
    """Raw bytes of a chunk, clipped to the shape, or of a box of it in the chunk's coordinates.

    ``room`` is what was reserved for it, if anything was: it is stored as it is then. ``shared`` is where it lies
    already, if it does. ``is_moved``: the base has it in a pack that is not shared, so that it will hardly change.
    Of a ``layer``, ``data`` are its rows, none where it is shared.
    """

    place: SlotPlace
    chunk: int
    box: Box | None
    data: memoryview
    room: Room | None = None
    shared: SharedRun | None = None
    is_moved: bool = False
    layer: Layer | None = None

    def start_of_run(self) -> int | None:
        """Return the logical byte of the slot where it begins; None where it is no contiguous run of the slot."""
        return self.place.start_of_run(self.chunk, self.box)


class BaseChunks(Protocol):
    """What an earlier checkpoint has of the bytes that are to be stored (`ucpformat.storage.increments.base`).

    Writers ask it, from any of their threads, before they store a piece; it shares what it finds. What it raises ends
    the save.
    """

    shared_bytes: int
    """Bytes of the objects of chunks that are shared (storage plain)."""

    def resolved(self, piece: ChunkPiece) -> list[ChunkPiece]:
        """Cut an uncompressed piece into what is shared and what is to be written."""
        ...

    def begins_alike(self, piece: ChunkPiece) -> bool:
        """Say whether some of a piece may be shared, by its first bytes."""
        ...

    def compressed(
        self, place: SlotPlace, chunk: int, data: memoryview, checksums: bytes
    ) -> SharedRun | None:
        """Return where a whole compressed chunk lies already."""
        ...

    def has_object(
        self, place: SlotPlace, chunk: int, key: str, buffers: Sequence[memoryview], checksums: bytes
    ) -> bool:
        """Share the object of a chunk under ``key`` if it is there already (storage plain)."""
        ...

    def same_object(self, place: SlotPlace, chunk: int, key: str) -> Segment | None:
        """Share the object of a chunk under ``key`` if the chunk is known not to have changed (storage plain)."""
        ...

    def close(self) -> None:
        """Release what is open."""
        ...


class StoredChunk(NamedTuple):
    """What became of the bytes of one chunk, or of a box of it.

    ``segment`` None is a zero entry. ``cuts`` are the part that the ``size`` bytes from the logical byte ``start`` of
    the slot on have in its content digest (`Run.cuts`); None for a box that is not one run of the slot.
    """

    segment: Segment | None
    start: int
    size: int
    cuts: bytes | None

    @property
    def fills_chunk(self) -> bool:
        """Whether this is the whole chunk."""
        return self.segment is None or self.segment.box is None


class ChunkWriter(Protocol):
    """Writes chunks to a store. Safe to use from several threads.

    Threads of `SlotWriter` call `reserve`, `write` and `write_many`, and it calls `settle` when they are done; then
    `finish` is called once, or `abort` after an error. All but `abort` raise `StoreError` where the store fails.
    """

    lanes: int
    """How many files are written at once: threads of different lanes do not wait for one another."""

    def lane(self) -> int:
        """Return the lane of this thread, which it keeps; those of several threads are spread evenly."""
        ...

    def reserve(self, lane: int, lengths: Sequence[int]) -> list[Room] | None:
        """Keep room for pieces of these lengths, one behind the other; None where each goes where it is written."""
        ...

    def write(self, place: SlotPlace, chunk: int, box: Box | None, data: memoryview) -> StoredChunk:
        """Store raw bytes of a chunk (clipped to the shape), or of a box of it in the chunk's coordinates."""
        ...

    def write_many(self, pieces: Sequence[ChunkPiece], *, keep: bool = False) -> list[StoredChunk]:
        """Store small pieces, as `write` would one by one, or one that has room.

        ``keep``: their data do not change before `settle`.
        """
        ...

    def settle(self) -> None:
        """Write what was kept back."""
        ...

    def finish(self) -> list[Pack]:
        """Close packs, and return them in the order that containers count."""
        ...

    def abort(self) -> None:
        """Give up packs that are not closed."""
        ...


def segment_alignment(length: int) -> int:
    """Return alignment in bytes of a segment of ``length`` bytes (SPEC UCP-D-107)."""
    return 4096 if length >= 65536 else 64


def is_zero(run: Run, data: memoryview) -> bool:
    """Return whether all bytes are zero; the checksum rules out nearly everything else without a second look."""
    return run.total == zeros_checksum(data.nbytes) and not np.frombuffer(data, np.uint8).any()


class PlainChunkWriter:
    """Storage plain: every chunk a Zarr object with the ``crc32c`` codec's four bytes at its end."""

    lanes = 1

    def __init__(self, create: Create, base: BaseChunks | None = None) -> None:
        self._create = create
        self._base = base

    def lane(self) -> int:
        """Return 0: all threads share the one lane, since each chunk is an object."""
        return 0

    def reserve(self, lane: int, lengths: Sequence[int]) -> list[Room] | None:
        """Return none: each chunk is an object."""
        return None

    def begin(self, places: Sequence[SlotPlace]) -> None:
        """Write the hierarchy's metadata documents."""
        group = [memoryview(GROUP_DOCUMENT)]
        self._create("atoms/zarr.json", group)
        for key in dict.fromkeys(place.key for place in places):
            self._create(f"atoms/{key}/zarr.json", group)
        for place in places:
            document = array_document(place.dtype, place.grid.shape, place.grid.chunk_shape, place.compressor)
            self._create(f"{place.prefix()}/zarr.json", [memoryview(document)])

    def write(self, place: SlotPlace, chunk: int, box: Box | None, data: memoryview) -> StoredChunk:
        """Store a whole chunk, padded to its full extent.

        Raises:
            StoreError: ``UCP-E-STORE`` for a box: two writers may not touch one object; save packed instead.
        """
        if box is not None:
            raise error(
                "UCP-E-STORE",
                "storage plain takes whole chunks only; write whole chunks, or choose storage packed",
                at=place.prefix(),
            )
        start = place.logical_start(chunk)
        run = checksum_run(data, start)
        if is_zero(run, data):
            return StoredChunk(None, start, data.nbytes, run.cuts)
        key = f"{place.prefix()}/{place.grid.key(place.grid.index_of(chunk))}"
        known = None if self._base is None else self._base.same_object(place, chunk, key)
        if known is not None:
            return StoredChunk(known, start, data.nbytes, run.cuts)
        padding = memoryview(bytes(math.prod(place.grid.chunk_shape) * place.dtype.item_bytes - data.nbytes))
        if place.compressor is not None:
            encoded = memoryview(compress(place.compressor, memoryview(b"".join((data, padding)))))
            stored = checksum_run(encoded, 0)
            buffers, total, checksums = [encoded], stored.total, stored.blocks
        elif padding.nbytes:
            total = combine(run.total, zeros_checksum(padding.nbytes), padding.nbytes)
            buffers, checksums = [data, padding], run.extended([padding], data.nbytes)
        else:
            buffers, total, checksums = [data], run.total, run.blocks
        buffers.append(memoryview(total.to_bytes(OBJECT_TRAILER, "little")))
        length = sum(buffer.nbytes for buffer in buffers)
        if self._base is None or not self._base.has_object(place, chunk, key, buffers, checksums):
            self._create(key, buffers)
        segment = Segment(OWN_OBJECT, 0, length, None, checksums)
        return StoredChunk(segment, start, data.nbytes, run.cuts)

    def write_many(self, pieces: Sequence[ChunkPiece], *, keep: bool = False) -> list[StoredChunk]:
        """Store chunk by chunk: each is an object."""
        return [self.write(piece.place, piece.chunk, piece.box, piece.data) for piece in pieces]

    def settle(self) -> None:
        """Do nothing: nothing is kept back."""

    def finish(self) -> list[Pack]:
        """Return nothing: there are no packs."""
        return []

    def abort(self) -> None:
        """Do nothing: there are no packs."""
