"""Chunks to segments of packs (SPEC section 16.4)."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error
from ucpformat.model.references import Pack
from ucpformat.model.table import Segment
from ucpformat.storage.checksum import RunChecksums, block_checksums, checksum_run
from ucpformat.storage.compression import compress
from ucpformat.storage.stores.store import PackFullError
from ucpformat.storage.writing.chunk_writer import ChunkPiece, Room, StoredChunk, is_zero, segment_alignment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.geometry import Box
    from ucpformat.storage.stores.store import Look, PackFile, Store
    from ucpformat.storage.writing.chunk_writer import BaseChunks, Layer, SharedRun, SlotPlace

__all__ = ["PackedChunkWriter"]

_ZEROS: Final = memoryview(bytes(4096))
_LARGE_BYTES: Final = 1 << 21
_LARGE_RUN: Final = 1 << 26
_LARGEST_PAGE: Final = 1 << 16
"""Some systems map files by pages of 16 or 64 KiB; in much data a gap of that size is nothing."""


_Encoded = tuple[memoryview, bytes, "Box | None", int, int, "bytes | None"]
"""A segment that is ready to be stored: its bytes, none for a zero entry, checksums and box; then as `StoredChunk`."""


def _encoded(place: SlotPlace, chunk: int, box: Box | None, data: memoryview) -> _Encoded:
    start = place.logical_start(chunk) if chunk else 0
    if box is not None:
        return _encoded_box(place, chunk, box, data, start)
    run = checksum_run(data, start)
    if is_zero(run, data):
        return (data[:0], b"", None, start, data.nbytes, run.cuts)
    if place.compressor is None:
        return (data, run.blocks, None, start, data.nbytes, run.cuts)
    compressed = memoryview(compress(place.compressor, data))
    return (compressed, block_checksums([compressed]), None, start, data.nbytes, run.cuts)


def _encoded_box(place: SlotPlace, chunk: int, box: Box, data: memoryview, start: int) -> _Encoded:
    if place.compressor is not None:
        message = "a compressed slot takes whole chunks only; save it without a compressor"
        raise error("UCP-E-STORE", message, at=place.prefix())
    first = place.start_of_run(chunk, box)
    if first is None:
        return (data, block_checksums([data]), box, start, data.nbytes, None)
    run = checksum_run(data, first)
    return (data, run.blocks, box, first, data.nbytes, run.cuts)


def _goes_through(piece: ChunkPiece) -> bool:
    """Return whether a piece is worth looking at as it is written, and certainly written: a chunk of zeros is not."""
    data = piece.data
    return (
        data.nbytes >= _LARGE_BYTES
        and piece.place.compressor is None
        and (piece.box is not None or data[: _ZEROS.nbytes] != _ZEROS[: data.nbytes])
    )


def _compressed(base: BaseChunks, piece: ChunkPiece, encoded: _Encoded) -> SharedRun | None:
    """Return where the base has a chunk that was compressed."""
    data, checksums, *_ = encoded
    if piece.place.compressor is None or not data.nbytes:
        return None
    return base.compressed(piece.place, piece.chunk, data, checksums)


class PackedChunkWriter:
    """Storage packed: segments appended to the packs of this writer.

    Each lane has one of ``packs`` files, so that threads do not wait for one file's lock; files are made when first
    used, and others begun where one is full.
    """

    def __init__(self, store: Store, *, name: str, packs: int = 1, base: BaseChunks | None = None) -> None:
        self.lanes = packs
        self._base = base
        self._store = store
        self._name = name
        self._threads = 0
        self._packs: list[tuple[str, PackFile | int]] = []
        """Keys, and files or, of packs that are shared, lengths."""
        self._shared: dict[str, int] = {}
        self._current: dict[tuple[int, bool], int] = {}
        """The pack of each lane, and another for what was only moved: it is shared for longer than what changes."""
        self._lock = threading.Lock()
        self._thread = threading.local()

    def lane(self) -> int:
        """Return the lane of this thread, to whose pack it appends."""
        lane: int | None = getattr(self._thread, "lane", None)
        if lane is None:
            with self._lock:
                lane = self._thread.lane = self._threads % self.lanes
                self._threads += 1
        return lane

    def reserve(self, lane: int, lengths: Sequence[int]) -> list[Room] | None:
        """Keep room in the pack of a lane; None where the store takes the bytes of a pack in order alone."""
        if not self._store.packs_have_rooms:
            return None
        container = self._pack_of(lane)
        alignment = max(map(segment_alignment, lengths))
        if sum(lengths) >= _LARGE_RUN:
            alignment = _LARGEST_PAGE
        offsets = self._file(container).reserve(lengths, alignment)
        return [Room(container, offset) for offset in offsets]

    def _file(self, container: int) -> PackFile:
        """Return the file of a pack that is not shared."""
        file = self._packs[container][1]
        if isinstance(file, int):  # pragma: no cover - what is shared is nobody's to write
            raise TypeError("a shared pack is not written")
        return file

    def _pack_of(self, lane: int, *, full: int | None = None, is_moved: bool = False) -> int:
        """Return the pack that a lane appends to: not ``full``, of which its thread has heard that it takes no more."""
        with self._lock:
            container = self._current.get((lane, is_moved))
            if container is None or container == full:
                container = self._current[lane, is_moved] = len(self._packs)
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
        is_moved: bool = False,
        lane: int | None = None,
    ) -> tuple[int, int]:
        """Append to a pack that takes it, of this thread's lane or that one; return its number, and where in it."""
        lane = self.lane() if lane is None else lane
        container = self._pack_of(lane, is_moved=is_moved)
        while True:
            try:
                return container, self._file(container).append(buffers, alignment, look, keep=keep)
            except PackFullError:
                container = self._pack_of(lane, full=container, is_moved=is_moved)

    def _share(self, piece: ChunkPiece, shared: SharedRun) -> StoredChunk:
        """Return what became of an uncompressed piece that lies in a pack of the base."""
        start = piece.start_of_run()
        segment = Segment(self._linked(shared), shared.offset, shared.nbytes, piece.box, shared.blocks)
        if start is None:
            return StoredChunk(segment, piece.place.logical_start(piece.chunk), piece.data.nbytes, None)
        return StoredChunk(segment, start, piece.data.nbytes, shared.cuts)

    def _linked(self, shared: SharedRun) -> int:
        """Return the number of a pack that is shared."""
        with self._lock:
            container = self._shared.get(shared.key)
            if container is None:
                container = self._shared[shared.key] = len(self._packs)
                self._packs.append((shared.key, shared.length))
            return container

    def write(self, place: SlotPlace, chunk: int, box: Box | None, data: memoryview) -> StoredChunk:
        """Append the bytes of a chunk or of a box of it.

        Raises:
            StoreError: ``UCP-E-STORE`` for a box of a slot with a compressor (SPEC UCP-D-102).
        """
        return self.write_many([ChunkPiece(place, chunk, box, data)])[0]

    def write_many(self, pieces: Sequence[ChunkPiece], *, keep: bool = False) -> list[StoredChunk]:
        """Append them all at once, but for what is shared."""
        if any(piece.shared is not None or piece.is_moved or piece.layer is not None for piece in pieces):
            return [self._write_one(piece, keep=keep) for piece in pieces]
        if len(pieces) == 1 and (pieces[0].room is not None or _goes_through(pieces[0])):
            return [self._pass_through(pieces[0], keep=keep)]
        encoded = [_encoded(piece.place, piece.chunk, piece.box, piece.data) for piece in pieces]
        return self._append(pieces, encoded, keep=keep)

    def _write_one(self, piece: ChunkPiece, *, keep: bool) -> StoredChunk:
        """Write a piece that the base may have."""
        if piece.layer is not None:
            return self._write_layer(piece, piece.layer)
        if piece.shared is not None:
            return self._share(piece, piece.shared)
        if piece.is_moved:
            return self._append([piece], [_encoded(*piece[:4])], keep=keep)[0]
        return self.write_many([piece], keep=keep)[0]

    def _write_layer(self, piece: ChunkPiece, layer: Layer) -> StoredChunk:
        """Write a layer of a box, or share it."""
        shared = piece.shared
        if shared is None:
            data = piece.data
            # One pack for all layers: each increment shares those of many before, and links and syncs every one.
            place = self._stored([data], segment_alignment(data.nbytes), keep=False, lane=0)
            segment = Segment(*place, data.nbytes, piece.box, block_checksums([data]), layer.row_set)
        else:
            where = (self._linked(shared), shared.offset, shared.nbytes)
            segment = Segment(*where, piece.box, shared.blocks, layer.row_set)
        return StoredChunk(segment, layer.start, layer.size, layer.cuts)

    def _pass_through(self, piece: ChunkPiece, *, keep: bool) -> StoredChunk:
        """Append much that is stored as it is: its checksums are made as it is written."""
        place, chunk, box, data, room, *_ = piece
        start = place.start_of_run(chunk, box)
        checks = RunChecksums(start or 0)
        if room is None:
            container, offset = self._stored([data], segment_alignment(data.nbytes), checks.add, keep=keep)
        else:
            container, offset = room
            self._file(container).write_at(offset, [data], checks.add, keep=keep)
        run = checks.run()
        segment = Segment(container, offset, data.nbytes, box, run.blocks)
        if start is None:
            return StoredChunk(segment, place.logical_start(chunk), data.nbytes, None)
        return StoredChunk(segment, start, data.nbytes, run.cuts)

    def _append(
        self, pieces: Sequence[ChunkPiece], encoded: Sequence[_Encoded], *, keep: bool
    ) -> list[StoredChunk]:
        """Append segments in one go, with zeros between them where their alignment wants it.

        Those of one slot need none between them, but where they are compressed nobody would map them together.
        """
        known = (
            [None] * len(pieces)
            if self._base is None
            else [_compressed(self._base, *one) for one in zip(pieces, encoded, strict=True)]
        )
        buffers: list[memoryview] = []
        offsets: list[int] = []
        length, widest = 0, 1
        before: SlotPlace | None = None
        for piece, (data, *_), shared in zip(pieces, encoded, known, strict=True):
            if shared is not None:
                offsets.append(0)
                continue
            nbytes = data.nbytes
            alignment = segment_alignment(nbytes)
            follows = piece.place is before and piece.place.compressor is None
            gap = 0 if follows or not nbytes else -length % alignment
            if nbytes:
                before = piece.place
            if gap:
                buffers.append(_ZEROS[:gap])
            buffers.append(data)
            offsets.append(length + gap)
            length += gap + nbytes
            widest = max(widest, alignment)
        container, base = 0, 0
        if length:
            container, base = self._stored(buffers, widest, keep=keep, is_moved=pieces[0].is_moved)
        found: list[StoredChunk] = []
        for (data, checksums, box, start, size, cuts), offset, shared in zip(
            encoded, offsets, known, strict=True
        ):
            segment = None
            if shared is not None:
                segment = Segment(self._linked(shared), shared.offset, data.nbytes, box, checksums)
            elif data.nbytes:
                segment = Segment(container, base + offset, data.nbytes, box, checksums)
            found.append(StoredChunk(segment, start, size, cuts))
        return found

    def settle(self) -> None:
        """Have packs write what they kept back."""
        for _, pack in [*self._packs]:
            if not isinstance(pack, int):
                pack.settle()

    def finish(self) -> list[Pack]:
        """Close the packs."""
        return [
            Pack(key, pack, shared=True) if isinstance(pack, int) else Pack(key, pack.close())
            for key, pack in self._packs
        ]

    def abort(self) -> None:
        """Give up packs that are not closed."""
        for _, pack in self._packs:
            if not isinstance(pack, int):
                with suppress(Exception):
                    pack.abort()
