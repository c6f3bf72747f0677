"""Chunks to bytes: one object each, or segments of a pack (SPEC sections 16.2 to 16.4)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from ucpformat.errors import error
from ucpformat.geometry import element_count, runs
from ucpformat.model.table import OBJECT_TRAILER, OWN_OBJECT, Segment
from ucpformat.model.zarr_document import GROUP_DOCUMENT, array_document
from ucpformat.storage.checksum import (
    Run,
    RunChecksums,
    block_checksums,
    checksum_run,
    combine,
    zeros_checksum,
)
from ucpformat.storage.compression import compress
from ucpformat.storage.store import PackFullError

if TYPE_CHECKING:
    from ucpformat.geometry import Box, ChunkGrid
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.dtype import DType
    from ucpformat.storage.store import Look, PackFile, Store

__all__ = [
    "ChunkPiece",
    "ChunkWriter",
    "Create",
    "PackedChunkWriter",
    "PlainChunkWriter",
    "SlotPlace",
    "StoredChunk",
    "segment_alignment",
]

_ZEROS: Final = memoryview(bytes(4096))
_LARGE_BYTES: Final = 1 << 21


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
        """First byte of a chunk within the slot's logical bytes."""
        if chunk == 0:
            return 0
        return self.grid.chunk_start(self.grid.index_of(chunk)) * self.dtype.item_bytes

    def prefix(self) -> str:
        """Key of the Zarr array in storage plain."""
        return f"atoms/{self.key}/{self.slot}"


class ChunkPiece(NamedTuple):
    """Raw bytes of a chunk, clipped to the shape, or of a box of it in the chunk's coordinates."""

    place: SlotPlace
    chunk: int
    box: Box | None
    data: memoryview


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
    """Puts chunks into a store. Safe to use from several threads."""

    def begin(self, places: Sequence[SlotPlace]) -> None:
        """Write what has to stand before chunks: metadata documents, in storage plain."""
        ...

    def write(self, place: SlotPlace, chunk: int, box: Box | None, data: memoryview) -> StoredChunk:
        """Store raw bytes of a chunk (clipped to the shape), or of a box of it in the chunk's coordinates."""
        ...

    def write_many(self, pieces: Sequence[ChunkPiece], *, keep: bool = False) -> list[StoredChunk]:
        """Store small pieces, as `write` would one by one; ``keep``: their data do not change before `settle`."""
        ...

    def settle(self) -> None:
        """Write what was kept back."""
        ...

    def finish(self) -> list[tuple[str, int]]:
        """Close packs; their keys and lengths in bytes, in the order that containers count."""
        ...

    def abort(self) -> None:
        """Give up packs that are not closed."""
        ...


def segment_alignment(length: int) -> int:
    """Alignment in bytes of a segment of ``length`` bytes (SPEC UCP-D-050)."""
    return 4096 if length >= 65536 else 64


def _is_zero(run: Run, data: memoryview) -> bool:
    """Whether all bytes are zero; the checksum rules out nearly everything else without a second look."""
    return run.total == zeros_checksum(data.nbytes) and not np.frombuffer(data, np.uint8).any()


class PlainChunkWriter:
    """Storage plain: every chunk a Zarr object with the ``crc32c`` codec's four bytes at its end."""

    def __init__(self, create: Create) -> None:
        self._create = create

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
        if _is_zero(run, data):
            return StoredChunk(None, start, data.nbytes, run.cuts)
        padding = memoryview(
            bytes(element_count(place.grid.chunk_shape) * place.dtype.item_bytes - data.nbytes)
        )
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
        self._create(f"{place.prefix()}/{place.grid.key(place.grid.index_of(chunk))}", buffers)
        segment = Segment(OWN_OBJECT, 0, length, None, checksums)
        return StoredChunk(segment, start, data.nbytes, run.cuts)

    def write_many(self, pieces: Sequence[ChunkPiece], *, keep: bool = False) -> list[StoredChunk]:
        """Store chunk by chunk: each is an object."""
        return [self.write(*piece) for piece in pieces]

    def settle(self) -> None:
        """Nothing is kept back."""

    def finish(self) -> list[tuple[str, int]]:
        """There are no packs."""
        return []

    def abort(self) -> None:
        """There are no packs."""


_Encoded = tuple[memoryview, bytes, "Box | None", int, int, "bytes | None"]
"""A segment that is ready to be stored: its bytes, none for a zero entry, checksums and box; then as `StoredChunk`."""


def _encoded(place: SlotPlace, chunk: int, box: Box | None, data: memoryview) -> _Encoded:
    start = place.logical_start(chunk) if chunk else 0
    if box is not None:
        return _encoded_box(place, chunk, box, data, start)
    run = checksum_run(data, start)
    if _is_zero(run, data):
        return (data[:0], b"", None, start, data.nbytes, run.cuts)
    if place.compressor is None:
        return (data, run.blocks, None, start, data.nbytes, run.cuts)
    compressed = memoryview(compress(place.compressor, data))
    return (compressed, block_checksums([compressed]), None, start, data.nbytes, run.cuts)


def _encoded_box(place: SlotPlace, chunk: int, box: Box, data: memoryview, start: int) -> _Encoded:
    if place.compressor is not None:
        message = "a compressed slot takes whole chunks only; save it without a compressor"
        raise error("UCP-E-STORE", message, at=place.prefix())
    first = _first_of_run(place, chunk, box)
    if first is None:
        return (data, block_checksums([data]), box, start, data.nbytes, None)
    run = checksum_run(data, start + first)
    return (data, run.blocks, box, start + first, data.nbytes, run.cuts)


def _first_of_run(place: SlotPlace, chunk: int, box: Box) -> int | None:
    """First byte, in the chunk, of a box that is one run of it, as rows and parts of flat buffers are; else None."""
    lines = runs(box, place.grid.box_at(chunk).shape)
    return lines.first * place.dtype.item_bytes if lines.count == 1 else None


def _goes_through(piece: ChunkPiece) -> bool:
    """Whether a piece is worth looking at as it is written, and certainly written: a chunk of zeros is not."""
    data = piece.data
    return (
        data.nbytes >= _LARGE_BYTES
        and piece.place.compressor is None
        and (piece.box is not None or data[: _ZEROS.nbytes] != _ZEROS[: data.nbytes])
    )


class PackedChunkWriter:
    """Storage packed: segments appended to the packs of this writer.

    Each thread keeps to one of ``packs`` files, so that threads do not wait for one file's lock; files are
    made when first used, and others begun where one is full.
    """

    def __init__(self, store: Store, *, name: str, packs: int = 1) -> None:
        self._store = store
        self._name = name
        self._limit = packs
        self._threads = 0
        self._packs: list[tuple[str, PackFile]] = []
        self._current: list[int] = []
        self._lock = threading.Lock()
        self._thread = threading.local()

    def begin(self, places: Sequence[SlotPlace]) -> None:
        """Nothing stands before segments."""

    def _place(self) -> int:
        """Which of the files this thread keeps to."""
        place: int | None = getattr(self._thread, "place", None)
        if place is None:
            with self._lock:
                place = self._thread.place = self._threads % self._limit
                self._threads += 1
                if place == len(self._current):
                    self._current.append(self._begin())
        return place

    def _begin(self) -> int:
        container = len(self._packs)
        key = f"packs/{self._name}-{container}.pack"
        self._packs.append((key, self._store.create_pack(key)))
        return container

    def _stored(
        self,
        buffers: Sequence[memoryview],
        alignment: int,
        look: Look | None = None,
        *,
        keep: bool,
    ) -> tuple[int, int]:
        """Append to a pack that takes it; its number, and where in it."""
        place = self._place()
        while True:
            container = self._current[place]
            try:
                return container, self._packs[container][1].append(buffers, alignment, look, keep=keep)
            except PackFullError:
                with self._lock:
                    if self._current[place] == container:
                        self._current[place] = self._begin()

    def write(self, place: SlotPlace, chunk: int, box: Box | None, data: memoryview) -> StoredChunk:
        """Append the bytes of a chunk or of a box of it.

        Raises:
            StoreError: ``UCP-E-STORE`` for a box of a slot with a compressor (SPEC UCP-D-045).
        """
        return self.write_many([ChunkPiece(place, chunk, box, data)])[0]

    def write_many(self, pieces: Sequence[ChunkPiece], *, keep: bool = False) -> list[StoredChunk]:
        """Append them all at once."""
        if len(pieces) == 1 and _goes_through(pieces[0]):
            return [self._pass_through(pieces[0], keep=keep)]
        return self._append([_encoded(*piece) for piece in pieces], keep=keep)

    def _pass_through(self, piece: ChunkPiece, *, keep: bool) -> StoredChunk:
        """Append much that is stored as it is: its checksums are made as it is written."""
        place, chunk, box, data = piece
        start = place.logical_start(chunk)
        first = 0 if box is None else _first_of_run(place, chunk, box)
        checks = RunChecksums(0 if first is None else start + first)
        container, offset = self._stored([data], segment_alignment(data.nbytes), checks.add, keep=keep)
        run = checks.run()
        segment = Segment(container, offset, data.nbytes, box, run.blocks)
        if first is None:
            return StoredChunk(segment, start, data.nbytes, None)
        return StoredChunk(segment, start + first, data.nbytes, run.cuts)

    def _append(self, pieces: Sequence[_Encoded], *, keep: bool) -> list[StoredChunk]:
        """Append segments in one go, with zeros between them where their alignment wants it."""
        buffers: list[memoryview] = []
        offsets: list[int] = []
        length, widest = 0, 1
        for data, *_ in pieces:
            nbytes = data.nbytes
            alignment = segment_alignment(nbytes)
            gap = -length % alignment if nbytes else 0
            if gap:
                buffers.append(_ZEROS[:gap])
            buffers.append(data)
            offsets.append(length + gap)
            length += gap + nbytes
            widest = max(widest, alignment)
        container, base = 0, 0
        if length:
            container, base = self._stored(buffers, widest, keep=keep)
        return [
            StoredChunk(
                Segment(container, base + offset, data.nbytes, box, checksums) if data.nbytes else None,
                start,
                size,
                cuts,
            )
            for (data, checksums, box, start, size, cuts), offset in zip(pieces, offsets, strict=True)
        ]

    def settle(self) -> None:
        """Have packs write what they kept back."""
        for _, pack in [*self._packs]:
            pack.settle()

    def finish(self) -> list[tuple[str, int]]:
        """Close the packs."""
        return [(key, pack.close()) for key, pack in self._packs]

    def abort(self) -> None:
        """Give up packs that are not closed."""
        for _, pack in self._packs:
            with suppress(Exception):
                pack.abort()
