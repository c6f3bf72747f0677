"""Slots and boxes of slots to chunks, in several threads (SPEC section 17.4).

Slots that are small are gathered, because a system call and a task for each would cost more than their bytes. Chunks of
one large slot are a `Run`: they lie one behind the other in one pack, whichever threads write them, so that the slot
can be mapped as a whole. A very large one is a run for each of several lanes: threads that write one file wait for its
lock, and what lies in several files can be mapped one behind the other. Each thread keeps to a lane, which has a file
of its own, and takes what other lanes have left when its own has nothing more.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, wait
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.errors import error
from ucpformat.gc_pause import paused
from ucpformat.model.dtype import clear_unused_bits, unused_bits_are_zero
from ucpformat.storage.host_memory import flat_bytes, selection
from ucpformat.storage.writing.chunk_writer import ChunkPiece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.model.dtype import DType
    from ucpformat.storage.writing.chunk_writer import BaseChunks, ChunkWriter, Room, SlotPlace
    from ucpformat.storage.writing.piece_writer import Entry

__all__ = ["SlotBox", "SlotWriter", "raw_bytes"]

_BATCH_BYTES: Final = 1 << 22
_BATCH_SLOTS: Final = 1024
_LOOKED_AT: Final = 1024
_SHARED_BYTES: Final = 1 << 28
_LEAST_SHARE: Final = 1 << 27
_PAGES: Final = (1 << 16, 1 << 12)
"""Sizes of a page of memory, the largest first: what ends with one of the first kind ends with one everywhere."""


class SlotBox(NamedTuple):
    """A box of a slot, given by its name and its place, and the elements of the box."""

    name: tuple[str, str]
    place: SlotPlace
    box: Box
    data: NDArray[np.generic]


class _Run:
    """Large boxes of one slot, in order, whose chunks are to lie one behind the other."""

    def __init__(self, name: tuple[str, str]) -> None:
        self.name = name
        self.lane = 0
        self.nbytes = 0
        self.parts: list[tuple[SlotBox, int]] = []
        self._rooms: dict[int, Room] | None = None
        self._lock = threading.Lock()

    def add(self, one: SlotBox) -> None:
        """Put a box behind those that the run has."""
        self.nbytes += one.data.nbytes
        self.parts += [(one, chunk) for chunk in one.place.grid.chunks_for(one.box)]

    def shares(self, lanes: int) -> list[_Run]:
        """Return the run itself or, if it is very large, at most as many runs as there are lanes.

        They are cut where a page of memory is full: else they could not be mapped one behind the other.
        """
        if lanes == 1 or self.nbytes <= _SHARED_BYTES or self.parts[0][0].place.compressor is not None:
            return [self]
        wanted = max(_LEAST_SHARE, -(-self.nbytes // lanes))
        for page in _PAGES:
            shares = [_Run(self.name)]
            stop = 0
            for part in self.parts:
                if shares[-1].nbytes >= wanted and stop % page == 0:
                    shares.append(_Run(self.name))
                nbytes = _elements(*part).nbytes
                shares[-1].parts.append(part)
                shares[-1].nbytes += nbytes
                stop += nbytes
            if len(shares) > 1:
                return shares
        return [self]

    def piece(self, number: int, chunks: ChunkWriter, base: BaseChunks | None) -> ChunkPiece:
        """Return a part of the run; the first call reserves room for all parts that are surely written."""
        with self._lock:
            if self._rooms is None:
                self._rooms = self._reserved(chunks, base)
        return _piece(*self.parts[number])._replace(room=self._rooms.get(number))

    def _reserved(self, chunks: ChunkWriter, base: BaseChunks | None) -> dict[int, Room]:
        """Return space for each part, by number; zero chunks take none, and compressed lengths are unknown."""
        if self.parts[0][0].place.compressor is not None:
            return {}
        stored = [
            number
            for number, part in enumerate(self.parts)
            if not _is_zero_chunk(*part) and (base is None or not base.begins_alike(_piece(*part)))
        ]
        lengths = [_elements(*self.parts[number]).nbytes for number in stored]
        rooms = chunks.reserve(self.lane, lengths) if stored else None
        return {} if rooms is None else dict(zip(stored, rooms, strict=True))


class SlotWriter:
    """Cuts data into chunks, hands them on, and enters into ``ledger`` what became of them.

    ``progress`` is told raw bytes, from any thread. What ``base`` has is not written again.
    """

    def __init__(
        self,
        chunks: ChunkWriter,
        ledger: list[Entry],
        executor: Executor,
        workers: int,
        progress: Callable[[int], None] | None,
        *,
        base: BaseChunks | None = None,
    ) -> None:
        self._base = base
        self._chunks = chunks
        self._ledger = ledger
        self._executor = executor
        self._workers = workers
        self._progress = progress
        self._lock = threading.Lock()
        self._waiting: list[deque[Callable[[], None]]] = [deque() for _ in range(chunks.lanes)]
        self._given = [0] * len(self._waiting)
        """Bytes that each lane was given so far."""
        self._working = 0
        self._is_stopped = False
        self._pending: list[Future[None]] = []
        self._batch: list[SlotBox] = []
        self._batch_bytes = 0
        self._run: _Run | None = None
        """Boxes of a large slot of which more may come."""
        self._last_run = (("", ""), 0)

    def write(self, one: SlotBox) -> None:
        """Write a box of a slot; returns when the bytes are handed to the store. Several threads may call this.

        Raises:
            StoreError: as `ChunkWriter.write`.
        """
        chunks = list(one.place.grid.chunks_for(one.box))
        if one.data.nbytes < _BATCH_BYTES or len(chunks) == 1:
            pieces = [_piece(one, chunk) for chunk in chunks]
            self._write_pieces([one.name] * len(pieces), pieces, keep=False)
            return
        run = _Run(one.name)
        run.add(one)
        shares = run.shares(len(self._given))
        with self._lock:
            for share in shares:
                share.lane = self._lane_for(share.nbytes)
        # Threads take them in turn, so that those of one file are few at a time.
        tasks = [[partial(self._write_part, share, n) for n in range(len(share.parts))] for share in shares]
        in_turn = (task for turn in zip_longest(*tasks) for task in turn if task is not None)
        _await([self._executor.submit(task) for task in in_turn])

    def submit(self, one: SlotBox) -> None:
        """Write a box of a slot in the background: its data must not change before `drain` returns."""
        nbytes = one.data.nbytes
        if self._run is not None and self._run.name == one.name:
            self._run.add(one)
            return
        self._send_run()
        if nbytes >= _BATCH_BYTES or one.name == self._last_run[0]:
            self._begin_run(one)
            return
        self._batch.append(one)
        self._batch_bytes += nbytes
        if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_SLOTS:
            self._send_batch()

    def drain(self) -> None:
        """Wait for everything submitted; raises the first error of a background write, after which none is begun."""
        self._send_batch()
        self._send_run()  # last, since more of its slot may follow
        _await(self._pending)
        self._pending.clear()
        self._chunks.settle()

    def _begin_run(self, one: SlotBox) -> None:
        self._run = _Run(one.name)
        first = len(self._batch)
        while first and self._batch[first - 1].name == one.name:
            first -= 1
        before, self._batch = self._batch[first:], self._batch[:first]
        self._batch_bytes -= sum(box.data.nbytes for box in before)
        for box in (*before, one):
            self._run.add(box)

    def _send_run(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        name, lane = self._last_run
        follows = name == run.name  # its beginning was sent by an earlier `drain`
        for share in run.shares(len(self._given)):
            with self._lock:
                if follows:
                    self._given[lane] += share.nbytes
                else:
                    lane = self._lane_for(share.nbytes)
            follows = False
            share.lane = lane
            tasks = [
                partial(self._write_part, share, number, keep=True) for number in range(len(share.parts))
            ]
            self._hand_on(tasks, lane)
        self._last_run = run.name, lane

    def _send_batch(self) -> None:
        batch, self._batch, self._batch_bytes, nbytes = self._batch, [], 0, self._batch_bytes
        if batch:
            with self._lock:
                lane = self._lane_for(nbytes)
            self._hand_on([partial(self._write_batch, batch)], lane)

    def _lane_for(self, nbytes: int) -> int:
        """Return the lane that was given least, which is given so many bytes more."""
        lane = self._given.index(min(self._given))
        self._given[lane] += nbytes
        return lane

    def stop(self) -> None:
        """Begin nothing more of what was submitted."""
        with self._lock:
            self._is_stopped = True
            for waiting in self._waiting:
                waiting.clear()

    def _hand_on(self, tasks: Sequence[Callable[[], None]], lane: int) -> None:
        # A task of the executor for each would cost several times as much, in here and in its thread.
        with self._lock:
            if self._is_stopped:
                return
            self._waiting[lane].extend(tasks)
            begun = range(self._working, min(self._workers, self._working + len(tasks)))
            self._working += len(begun)
        self._pending += [self._executor.submit(self._work) for _ in begun]

    def _work(self) -> None:
        """Do what waits, until nothing does."""
        lane = self._chunks.lane()
        try:
            while (task := self._next(lane)) is not None:
                task()
        except BaseException:
            self.stop()
            raise

    def _next(self, lane: int) -> Callable[[], None] | None:
        with self._lock:
            own = self._waiting[lane]
            if not own:
                # The second half of what another lane has left: either goes on in the order of its file.
                other = max(self._waiting, key=len)
                own.extendleft(other.pop() for _ in range(-(-len(other) // 2)))
            if own:
                return own.popleft()
            self._working -= 1
            return None

    def _write_batch(self, batch: Sequence[SlotBox]) -> None:
        names: list[tuple[str, str]] = []
        pieces: list[ChunkPiece] = []
        with paused:
            for one in batch:
                for piece in _pieces(one):
                    names.append(one.name)
                    pieces.append(piece)
            self._write_pieces(names, pieces, keep=True)

    def _write_part(self, run: _Run, number: int, *, keep: bool = False) -> None:
        self._write_pieces([run.name], [run.piece(number, self._chunks, self._base)], keep=keep)

    @staticmethod
    def _resolved(
        base: BaseChunks, names: Sequence[tuple[str, str]], pieces: Sequence[ChunkPiece]
    ) -> tuple[list[tuple[str, str]], list[ChunkPiece]]:
        """Return pieces, and names of their slots, with what the base has of them."""
        found_names: list[tuple[str, str]] = []
        found: list[ChunkPiece] = []
        for name, piece in zip(names, pieces, strict=True):
            some = [piece] if piece.room is not None else base.resolved(piece)
            found_names += [name] * len(some)
            found += some
        return found_names, found

    def _write_pieces(
        self, names: Sequence[tuple[str, str]], pieces: Sequence[ChunkPiece], *, keep: bool
    ) -> None:
        """Have pieces stored; ``keep``: their data do not change before `drain` returns."""
        if self._base is not None:
            names, pieces = self._resolved(self._base, names, pieces)
        chunks = [piece.chunk for piece in pieces]
        stored = self._chunks.write_many(pieces, keep=keep)
        # In one step, whatever other threads do.
        self._ledger.extend([*zip(names, chunks, stored, strict=True)])
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
    """Return what a box of a slot has of a chunk."""
    _, place, box, data = one
    if place.grid.count == 1 and data.shape == place.grid.shape:
        return ChunkPiece(place, chunk, None, raw_bytes(data, place.dtype))
    chunk_box = place.grid.box_at(chunk)
    part = _part_of(one, chunk)
    inner = None if part == chunk_box else part.relative_to(chunk_box)
    return ChunkPiece(place, chunk, inner, raw_bytes(data[selection(part, box)], place.dtype))


def _part_of(one: SlotBox, chunk: int) -> Box:
    """Return the box of the slot that is both of the box and of a chunk that has some of it."""
    part = one.place.grid.box_at(chunk).intersect(one.box)
    if part is None:  # pragma: no cover - chunks_for yields intersecting chunks
        raise AssertionError(f"chunk {chunk} has nothing of {one.box}")
    return part


def _elements(one: SlotBox, chunk: int) -> NDArray[np.generic]:
    """Return the elements of the box that are the chunk's, without a copy."""
    return one.data[selection(_part_of(one, chunk), one.box)]


def _is_zero_chunk(one: SlotBox, chunk: int) -> bool:
    """Return whether a whole chunk is zeros, of which nothing is stored; boxes of chunks always are."""
    if _part_of(one, chunk) != one.place.grid.box_at(chunk):
        return False
    data = np.atleast_1d(_elements(one, chunk))
    kind = one.place.dtype
    # Nearly always a look at two lines tells.
    lines = (data,) if data.ndim < 2 else (data[(0,) * (data.ndim - 1)], data[(-1,) * (data.ndim - 1)])
    if any(raw_bytes(line[:_LOOKED_AT], kind).tobytes().strip(b"\0") for line in lines):
        return False
    return not np.frombuffer(raw_bytes(data, kind), np.uint8).any()


def raw_bytes(data: NDArray[np.generic], kind: DType) -> memoryview:
    """Return the bytes in C order, with unused bits zero; a chunk in C order already is not copied.

    Raises ``UCP-E-PADDING``: a bool that is neither 0 nor 1, which is damage (UCP-W-026).
    """
    raw = flat_bytes(data if data.flags.c_contiguous else np.ascontiguousarray(data))
    if kind.used_mask is None:
        return raw
    if kind.kind == "bool":
        if not unused_bits_are_zero(np.frombuffer(raw, np.uint8), kind):
            message = "an element of a bool tensor is neither 0 nor 1; compare it with 0 to get bools"
            raise error("UCP-E-PADDING", message)
        return raw
    cleared = np.array(raw)
    clear_unused_bits(cleared, kind)
    return cleared.data
