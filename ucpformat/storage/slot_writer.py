"""Slots and boxes of slots to chunks, in several threads (SPEC section 17.4).

Slots that are small are gathered, because a system call and a task for each would cost more than their bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, wait
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.collector import paused
from ucpformat.model.dtype import clear_unused_bits
from ucpformat.storage.chunk_writer import ChunkPiece
from ucpformat.storage.host_memory import flat_bytes
from ucpformat.storage.selection import selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.model.dtype import DType
    from ucpformat.storage.chunk_writer import ChunkWriter, SlotPlace
    from ucpformat.storage.ledger import Ledger

__all__ = ["SlotBox", "SlotWriter", "raw_bytes"]

_BATCH_BYTES: Final = 1 << 22
_BATCH_SLOTS: Final = 1024


class SlotBox(NamedTuple):
    """A box of a slot, given by its name and its place, and the elements of the box."""

    name: tuple[str, str]
    place: SlotPlace
    box: Box
    data: NDArray[np.generic]


class SlotWriter:
    """Cuts data into chunks, hands them on, and enters into ``ledger`` what became of them.

    ``progress`` is told raw bytes, from any thread.
    """

    def __init__(
        self,
        chunks: ChunkWriter,
        ledger: Ledger,
        executor: Executor,
        workers: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._chunks = chunks
        self._ledger = ledger
        self._executor = executor
        self._workers = workers
        self._progress = progress
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._working = 0
        self._pending: list[Future[None]] = []
        self._batch: list[SlotBox] = []
        self._batch_bytes = 0

    def write(self, one: SlotBox) -> None:
        """Write a box of a slot; returns when the bytes are handed to the store. Several threads may call this.

        Raises:
            StoreError: as `ChunkWriter.write`.
        """
        chunks = list(one.place.grid.chunks_for(one.box))
        if one.data.nbytes < _BATCH_BYTES or len(chunks) == 1:
            for chunk in chunks:
                self._write_chunk(one, chunk)
            return
        _await([self._executor.submit(self._write_chunk, one, chunk) for chunk in chunks])

    def submit(self, one: SlotBox) -> None:
        """Write a box of a slot in the background: its data must not change before `drain` returns."""
        nbytes = one.data.nbytes
        if nbytes >= _BATCH_BYTES:
            for chunk in one.place.grid.chunks_for(one.box):
                self._hand_on(partial(self._write_chunk, one, chunk, keep=True))
            return
        self._batch.append(one)
        self._batch_bytes += nbytes
        if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_SLOTS:
            self._send_batch()

    def drain(self) -> None:
        """Wait for everything submitted; raises the first error of a background write, after which none is begun."""
        self._send_batch()
        _await(self._pending)
        self._pending.clear()
        self._chunks.settle()

    def _send_batch(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if batch:
            self._hand_on(partial(self._write_batch, batch))

    def stop(self) -> None:
        """Begin nothing more of what was submitted."""
        with self._lock:
            self._waiting.clear()

    def _hand_on(self, task: Callable[[], None]) -> None:
        # A task of the executor for each would cost several times as much, in here and in its thread.
        with self._lock:
            self._waiting.append(task)
            if self._working == self._workers:
                return
            self._working += 1
        self._pending.append(self._executor.submit(self._work))

    def _work(self) -> None:
        """Do what waits, until nothing does."""
        try:
            while (task := self._next()) is not None:
                task()
        except BaseException:
            self.stop()
            raise

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._working -= 1
            return None

    def _write_batch(self, batch: Sequence[SlotBox]) -> None:
        names: list[tuple[str, str]] = []
        pieces: list[ChunkPiece] = []
        with paused():
            for one in batch:
                for piece in _pieces(one):
                    names.append(one.name)
                    pieces.append(piece)
            self._write_pieces(names, pieces, keep=True)

    def _write_chunk(self, one: SlotBox, chunk: int, *, keep: bool = False) -> None:
        self._write_pieces([one.name], [_piece(one, chunk)], keep=keep)

    def _write_pieces(
        self, names: Sequence[tuple[str, str]], pieces: Sequence[ChunkPiece], *, keep: bool
    ) -> None:
        """Have pieces stored; ``keep``: their data do not change before `drain` returns."""
        chunks = [piece.chunk for piece in pieces]
        stored = self._chunks.write_many(pieces, keep=keep)
        self._ledger.extend(zip(names, chunks, stored, strict=True))
        if self._progress is not None:
            for piece in pieces:
                self._progress(piece.data.nbytes)


def _await(futures: Sequence[Future[None]]) -> None:
    """Wait for them all at once: who waits for each in turn is woken by each, and keeps writers waiting."""
    wait(futures, return_when=FIRST_EXCEPTION)
    for future in futures:
        future.result()


def _pieces(one: SlotBox) -> Iterable[ChunkPiece]:
    if one.place.grid.count == 1 and one.data.size:
        return (_piece(one, 0),)
    return (_piece(one, chunk) for chunk in one.place.grid.chunks_for(one.box))


def _piece(one: SlotBox, chunk: int) -> ChunkPiece:
    """What a box of a slot has of a chunk."""
    _, place, box, data = one
    if place.grid.count == 1 and data.shape == place.grid.shape:
        return ChunkPiece(place, chunk, None, raw_bytes(data, place.dtype))
    chunk_box = place.grid.box_at(chunk)
    part = chunk_box.intersect(box)
    if part is None:  # pragma: no cover - chunks_for yields intersecting chunks
        raise AssertionError(f"chunk {chunk} has nothing of {box}")
    inner = None if part == chunk_box else part.relative_to(chunk_box)
    return ChunkPiece(place, chunk, inner, raw_bytes(data[selection(part, box)], place.dtype))


def raw_bytes(data: NDArray[np.generic], kind: DType) -> memoryview:
    """The bytes in C order, with unused bits zero; a chunk in C order already is not copied."""
    raw = flat_bytes(data if data.flags.c_contiguous else np.ascontiguousarray(data))
    if kind.used_mask is None or kind.kind == "bool":
        return raw
    cleared = np.array(raw)
    clear_unused_bits(cleared, kind)
    return cleared.data
