"""The limits: the same bytes with as little as possible around the system calls, and no format at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from awscrt.checksums import crc32c

from benchmarks.contenders.base import sync_directories

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.state import TrainingState
    from ucpformat.storage.stores.store import Durability

__all__ = ["RawLimit"]

_THREADS: Final = 2
_PIECE_BYTES: Final = 1 << 24
_BLOCK_BYTES: Final = 1 << 20
_SYNC_BYTES: Final = 1 << 26
_BUFFERS: Final = 1024  # as many as one vectored call takes

Buffers = Sequence[memoryview]


@dataclass(frozen=True, slots=True)
class RawLimit:
    """Half of the bytes per thread, each into a preallocated file of its own, in calls of ``call_bytes``."""

    name: str
    note: str
    look: Callable[[Buffers], None]
    """What is done with the bytes of a call, before they are written or after they are read."""
    call_bytes: int
    """Each call begins at a multiple of it, which is one of 2 MiB, as large as the pages of the cache get."""

    @classmethod
    def bare(cls) -> RawLimit:
        """The bytes are not looked at."""
        return cls("raw", "pwritev and preadv, 2 threads, 2 preallocated files", _nothing, 1 << 24)

    @classmethod
    def checked(cls) -> RawLimit:
        """With CRC-32C of every 1 MiB, by smaller calls: what was looked at is still in the cache."""
        return cls("raw-crc32c", "the same, with CRC-32C of each 1 MiB, 2 MiB a call", _checksums, 1 << 21)

    def save(self, state: TrainingState, directory: Path, durability: Durability) -> None:
        """Write two files; a third thread syncs them as they grow, so that the disk is at work meanwhile."""

        def write(number: int, buffers: Buffers) -> None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = os.open(directory / f"{number}.raw", flags, 0o666)
            syncing: Future[None] | None = None
            try:
                if buffers:
                    os.posix_fallocate(descriptor, 0, sum(buffer.nbytes for buffer in buffers))
                position = synced = 0
                for call in _calls(buffers, self.call_bytes):
                    self.look(call)
                    position += _whole(os.pwritev(descriptor, call, position), call)
                    is_idle = syncing is None or syncing.done()
                    if durability == "fsync" and is_idle and position - synced >= _SYNC_BYTES:
                        syncing, synced = syncer.submit(os.fdatasync, descriptor), position
                if syncing is not None:
                    syncing.result()
                if durability == "fsync":
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

        with ThreadPoolExecutor(1) as syncer:
            self._in_threads(write, state)
        if durability == "fsync":
            sync_directories(directory)

    def load(self, directory: Path, into: TrainingState) -> None:
        """Read them."""

        def read(number: int, buffers: Buffers) -> None:
            descriptor = os.open(directory / f"{number}.raw", os.O_RDONLY)
            try:
                position = 0
                for call in _calls(buffers, self.call_bytes):
                    position += _whole(os.preadv(descriptor, call, position), call)
                    self.look(call)
            finally:
                os.close(descriptor)

        self._in_threads(read, into)

    @staticmethod
    def _in_threads(work: Callable[[int, Buffers], None], state: TrainingState) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(work, range(_THREADS), _halves(state)):
                pass


def _halves(state: TrainingState) -> list[list[memoryview]]:
    halves: list[list[memoryview]] = [[] for _ in range(_THREADS)]
    filled = 0
    for array in state.flat.values():
        for buffer in _pieces(array.reshape(-1).view("u1").data):
            halves[min(_THREADS - 1, filled * _THREADS // state.nbytes)].append(buffer)
            filled += buffer.nbytes
    return halves


def _pieces(buffer: memoryview) -> Iterator[memoryview]:
    for start in range(0, buffer.nbytes, _PIECE_BYTES):
        yield buffer[start : start + _PIECE_BYTES]


def _calls(buffers: Buffers, nbytes: int) -> Iterator[list[memoryview]]:
    """The buffers one after another, cut so that every call but the last has ``nbytes``, or as many as one takes."""
    call: list[memoryview] = []
    room = nbytes
    for buffer in buffers:
        start = 0
        while start < buffer.nbytes:
            call.append(buffer[start : start + room])
            start += call[-1].nbytes
            room -= call[-1].nbytes
            if not room or len(call) == _BUFFERS:
                yield call
                # After many small ones, up to where the next was to begin.
                call, room = [], room or nbytes
    if call:
        yield call


def _whole(done: int, call: Buffers) -> int:
    if done != sum(buffer.nbytes for buffer in call):
        raise OSError("a short transfer: the disk is full, or the file is cut")
    return done


def _nothing(call: Buffers) -> None:
    del call


def _checksums(call: Buffers) -> None:
    value = filled = 0
    for buffer in call:
        start = 0
        while start < buffer.nbytes:
            stop = min(buffer.nbytes, start + _BLOCK_BYTES - filled)
            value = crc32c(buffer[start:stop], value)
            filled = (filled + stop - start) % _BLOCK_BYTES
            value = value if filled else 0
            start = stop
