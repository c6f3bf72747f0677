"""Slots and boxes of slots to chunks, in several threads (SPEC section 17.4).

Slots that are small are gathered, because a system call and a task for each would cost more than their bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.model.dtype import clear_unused_bits
from ucpformat.storage.chunk_writer import ChunkPiece
from ucpformat.storage.selection import selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.model.dtype import DType
    from ucpformat.storage.chunk_writer import ChunkWriter, StoredChunk
    from ucpformat.storage.written import WrittenSlot

__all__ = ["SlotWriter", "raw_bytes"]

_BATCH_BYTES: Final = 1 << 22
_BATCH_SLOTS: Final = 256


class SlotWriter:
    """Cuts data into chunks and hands them on. ``progress`` is told raw bytes, from any thread."""

    def __init__(
        self, chunks: ChunkWriter, executor: Executor, progress: Callable[[int], None] | None
    ) -> None:
        self._chunks = chunks
        self._executor = executor
        self._progress = progress
        self._pending: list[Future[None]] = []
        self._batch: list[tuple[WrittenSlot, Box, NDArray[np.generic]]] = []
        self._batch_bytes = 0

    def write(self, slot: WrittenSlot, box: Box, data: NDArray[np.generic]) -> None:
        """Write a box of a slot; returns when the bytes are handed to the store. Several threads may call this.

        Raises:
            StoreError: as `ChunkWriter.write`.
        """
        chunks = list(slot.place.grid.chunks_for(box))
        if data.nbytes < _BATCH_BYTES or len(chunks) == 1:
            for chunk in chunks:
                self._write_chunk(slot, chunk, box, data)
            return
        futures = [self._executor.submit(self._write_chunk, slot, chunk, box, data) for chunk in chunks]
        for future in futures:
            future.result()

    def submit(self, slot: WrittenSlot, box: Box, data: NDArray[np.generic]) -> None:
        """Write a box of a slot in the background: ``data`` must not change before `drain` returns."""
        if data.nbytes >= _BATCH_BYTES:
            self._pending.extend(
                self._executor.submit(self._write_chunk, slot, chunk, box, data)
                for chunk in slot.place.grid.chunks_for(box)
            )
            return
        self._batch.append((slot, box, data))
        self._batch_bytes += data.nbytes
        if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_SLOTS:
            self._send_batch()

    def drain(self) -> None:
        """Wait for everything submitted; raises the first error of a background write."""
        self._send_batch()
        for future in self._pending:
            future.result()
        self._pending.clear()

    def _send_batch(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if batch:
            self._pending.append(self._executor.submit(self._write_batch, batch))

    def _write_batch(self, batch: Sequence[tuple[WrittenSlot, Box, NDArray[np.generic]]]) -> None:
        slots, pieces = [], []
        for slot, box, data in batch:
            for piece in _pieces(slot, box, data):
                slots.append(slot)
                pieces.append(piece)
        for slot, piece, stored in zip(slots, pieces, self._chunks.write_many(pieces), strict=True):
            self._written(slot, piece, stored)

    def _write_chunk(self, slot: WrittenSlot, chunk: int, box: Box, data: NDArray[np.generic]) -> None:
        piece = _piece(slot, chunk, box, data)
        self._written(slot, piece, self._chunks.write(*piece))

    def _written(self, slot: WrittenSlot, piece: ChunkPiece, stored: StoredChunk) -> None:
        slot.add(piece.chunk, stored)
        if self._progress is not None:
            self._progress(piece.data.nbytes)


def _pieces(slot: WrittenSlot, box: Box, data: NDArray[np.generic]) -> Iterable[ChunkPiece]:
    place = slot.place
    if place.grid.count == 1 and data.shape == place.grid.shape:
        return (ChunkPiece(place, 0, None, raw_bytes(data, place.dtype)),)
    return (_piece(slot, chunk, box, data) for chunk in place.grid.chunks_for(box))


def _piece(slot: WrittenSlot, chunk: int, box: Box, data: NDArray[np.generic]) -> ChunkPiece:
    """What ``data``, which is ``box`` of the slot, holds of a chunk."""
    place = slot.place
    chunk_box = place.grid.box_at(chunk)
    part = chunk_box.intersect(box)
    if part is None:  # pragma: no cover - chunks_for yields intersecting chunks
        raise AssertionError(f"chunk {chunk} has nothing of {box}")
    inner = None if part == chunk_box else part.relative_to(chunk_box)
    return ChunkPiece(place, chunk, inner, raw_bytes(data[selection(part, box)], place.dtype))


def raw_bytes(data: NDArray[np.generic], kind: DType) -> memoryview:
    """The bytes in C order, with unused bits zero; a chunk in C order already is not copied."""
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    if kind.used_mask is not None and kind.kind != "bool":
        raw = raw.copy()
        clear_unused_bits(raw, kind)
    return raw.data
