"""A pack of a local directory, as it is written: its room, and writes past the page cache (SPEC section 8)."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.model.table import BLOCK_BYTES
from ucpformat.storage.host_memory import ALIGNMENT, Scratch
from ucpformat.storage.stores.local_io import opened, translated, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ucpformat.storage.stores.store import Look

__all__ = ["LEAST_BYTES", "DirectWriter", "FileRoom", "LocalPackFile"]

LEAST_BYTES: Final = 1 << 20
"""Less is gathered by the page cache."""
_CALL_BYTES: Final = 1 << 26
_COPIED_BYTES: Final = 1 << 22
_NOT_HERE: Final = frozenset({errno.EINVAL, errno.EFAULT, errno.EOPNOTSUPP, errno.ENOSYS})

_scratch: Final = Scratch()  # for data that are not aligned


class DirectWriter:
    """The same file as an open descriptor, without the page cache. Safe to use from several threads.

    A page of the cache costs as much as what is copied into it, more where memory is full, and drives out data that
    are needed; what has to be on the disk anyway is copied by the device, and not by the processor. ``O_DIRECT``
    (open(2)) wants offsets, lengths and addresses aligned; what is not is left to the page cache. Where whole pages of
    2 MiB can be written by one call, the page cache is quicker (`LocalPackFile`).
    Where the file system or the memory does not let that happen, nothing is written, and nothing tried again.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._own = -1
        self._lock = threading.Lock()
        self._is_possible = hasattr(os, "O_DIRECT")

    def write(self, data: memoryview, offset: int) -> int:
        """Write the first of ``data`` (bytes, contiguous) from byte ``offset`` of the file on; return how many.

        Raises:
            OSError: what the medium reports, ``ENOSPC`` or ``EIO``.
        """
        done = 0
        if data.nbytes < LEAST_BYTES or offset % ALIGNMENT or not self._is_possible:
            return done
        wanted = data.nbytes // ALIGNMENT * ALIGNMENT
        source = np.frombuffer(data, np.uint8)
        is_aligned = source.ctypes.data % ALIGNMENT == 0
        descriptor = self._opened()
        try:
            while done < wanted and self._is_possible:
                if is_aligned:
                    part = source[done : min(wanted, done + _CALL_BYTES)]
                else:
                    part = _scratch.take(_COPIED_BYTES)[: min(wanted - done, _COPIED_BYTES)]
                    part[:] = source[done : done + part.nbytes]
                count = os.pwrite(descriptor, part.data, offset + done)
                done += count // ALIGNMENT * ALIGNMENT
                # An odd piece is no error, but nothing can follow it.
                self._is_possible = count > 0 and count % ALIGNMENT == 0
        except OSError as reason:
            if reason.errno not in _NOT_HERE:
                raise
            self._is_possible = False
        return done

    def _opened(self) -> int:
        with self._lock:
            if self._own < 0 and self._is_possible:
                flags = os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT
                try:
                    self._own = opened(f"/proc/self/fd/{self._descriptor}", flags)
                except OSError:
                    self._is_possible = False
            return self._own

    def close(self) -> None:
        """Close what this has opened."""
        with self._lock:
            own, self._own = self._own, -1
        self._is_possible = False
        if own >= 0:
            os.close(own)


_LEAST_ROOM_BYTES: Final = 1 << 25
_MOST_ROOM_BYTES: Final = 1 << 29
_ROOM_ALIGNMENT: Final = 1 << 21
_FREE_PARTS: Final = 64

# Not `os.posix_fallocate`: where the file system cannot, the C library writes a byte to every page instead.
_fallocate: Final = getattr(ctypes.CDLL(None), "fallocate64", None) if sys.platform == "linux" else None
_fstatfs: Final = getattr(ctypes.CDLL(None), "fstatfs64", None) if sys.platform == "linux" else None

_IN_MEMORY: Final = frozenset({0x01021994, 0x858458F6})
"""tmpfs and ramfs (``linux/magic.h``): room there is pages of memory that are cleared, and no journal is kept."""


class FileRoom:
    """Room behind the end of a file, once it is long enough. For one thread at a time.

    It is taken seldom: each time may wait for the file system's journal, for as long as others keep that busy. Where
    there is none to be had, the file grows as it is written.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._end = 0
        self._is_possible = _fallocate is not None and not _is_in_memory(descriptor)

    def reach(self, stop: int) -> None:
        """Expect bytes up to ``stop``."""
        if stop <= max(self._end, _LEAST_ROOM_BYTES) or not self._is_possible or _fallocate is None:
            return
        spare = self._spare()
        if spare < _LEAST_ROOM_BYTES:
            self._is_possible = False
            return
        end = -(-(stop + spare) // _ROOM_ALIGNMENT) * _ROOM_ALIGNMENT
        # Mode 0: the file has its length before its bytes, so that writes do not wait for one another to change it.
        failed = _fallocate(
            ctypes.c_int(self._descriptor),
            ctypes.c_int(0),
            ctypes.c_int64(self._end),
            ctypes.c_int64(end - self._end),
        )
        if failed:
            self._is_possible = False
        else:
            self._end = end

    def _spare(self) -> int:
        """Return how much is little of what is free: other writers must not run out of it meanwhile."""
        try:
            status = os.fstatvfs(self._descriptor)
        except OSError:
            return 0
        return min(_MOST_ROOM_BYTES, status.f_bavail * status.f_frsize // _FREE_PARTS)

    def leave(self, length: int) -> bool:
        """Give back what lies behind ``length``; return whether there was anything."""
        end, self._end, self._is_possible = self._end, 0, False
        if end:
            os.ftruncate(self._descriptor, length)
        return bool(end)


def _is_in_memory(descriptor: int) -> bool:
    status = (ctypes.c_long * 64)()  # `struct statfs` has 120 bytes, and begins with the type
    return _fstatfs is not None and not _fstatfs(ctypes.c_int(descriptor), status) and status[0] in _IN_MEMORY


_HUGE_PAGE: Final = 1 << 21


class LocalPackFile:
    """A pack being written by positioned writes, so that threads do not wait for one another.

    ``wrote`` is told of bytes that were handed to the page cache. ``is_durable``: large data whose memory cannot be
    kept go past it.

    The page cache takes what lies between two multiples of 2 MiB as one, if it comes by one call. So calls end there,
    and what is left at the end of a write waits for the bytes that follow it, where its memory may be kept.
    """

    def __init__(self, key: str, descriptor: int, wrote: Callable[[int], None], *, is_durable: bool) -> None:
        self._wrote = wrote
        self._direct = DirectWriter(descriptor) if is_durable else None
        self._key = key
        self._descriptor = descriptor
        self._room = FileRoom(descriptor)
        self._length = 0
        self._lock = threading.Lock()
        self._held: dict[int, list[memoryview]] = {}
        """What waits for the bytes that follow it, by where it ends."""
        self._ends_before: dict[int, int] = {}
        """Where what lies before a room ends, by the offset of the room, until that is written."""
        self._is_lost = False

    def reserve(self, lengths: Sequence[int], alignment: int) -> list[int]:
        """Keep room at the next multiple of ``alignment``, each right behind the other; the gap reads as zeros."""
        offsets = []
        with self._lock:
            offset = -(-self._length // alignment) * alignment
            for length in lengths:
                self._ends_before[offset] = self._length
                self._length = offset + length
                offsets.append(offset)
                offset = self._length
            self._room.reach(self._length)
        return offsets

    def append(
        self, buffers: Sequence[memoryview], alignment: int, look: Look | None = None, *, keep: bool = False
    ) -> int:
        """Write the buffers at the next multiple of ``alignment``; the gap reads as zeros."""
        (offset,) = self.reserve([sum(buffer.nbytes for buffer in buffers)], alignment)
        self.write_at(offset, buffers, look, keep=keep)
        return offset

    def write_at(
        self, offset: int, buffers: Sequence[memoryview], look: Look | None = None, *, keep: bool = False
    ) -> None:
        """Write the buffers into room that was reserved."""
        with self._lock:
            held, start = self._take_held(offset)
        with translated(self._key), self._losing(held):
            if self._direct is None or keep:
                cached = self._write_by_pages(held, start, buffers, look, keep=keep)
            else:
                write_all(self._descriptor, held, start)
                cached = offset - start + self._write_past(self._direct, buffers, offset, look)
        self._wrote(cached)

    def _take_held(self, offset: int) -> tuple[list[memoryview], int]:
        """Return what waits for the bytes at ``offset``, with the zeros before them, and where it begins."""
        end = self._ends_before.pop(offset, offset)
        held = self._held.pop(end, None)
        if held is None:
            return [], offset
        return [*held, memoryview(bytes(offset - end))], end - sum(piece.nbytes for piece in held)

    @contextmanager
    def _losing(self, held: list[memoryview]) -> Iterator[None]:
        """Give the pack up if the block fails: what it took over from earlier calls is then lost."""
        try:
            yield
        except BaseException:
            self._is_lost = self._is_lost or bool(held)
            raise

    def _write_by_pages(
        self,
        held: list[memoryview],
        start: int,
        buffers: Sequence[memoryview],
        look: Look | None,
        *,
        keep: bool,
    ) -> int:
        """Write what was held back from ``start`` on, and the buffers; return how many bytes were written.

        Each byte is looked at shortly before, so that the processor's cache has it for both.
        """
        waiting, first = [*held], start
        offset = start + sum(piece.nbytes for piece in held)
        if held and offset % _HUGE_PAGE == 0:
            write_all(self._descriptor, waiting, start)
            waiting, start = [], offset
        for buffer in buffers:
            size = buffer.nbytes
            done = looked = 0
            for stop in (*range(-offset % _HUGE_PAGE or _HUGE_PAGE, size, _HUGE_PAGE), size):
                if look is not None and stop > looked:
                    ahead = min(size, -(-stop // BLOCK_BYTES) * BLOCK_BYTES)
                    look(buffer[looked:ahead])
                    looked = ahead
                waiting.append(buffer[done:stop])
                offset += stop - done
                done = stop
                if offset % _HUGE_PAGE == 0:
                    write_all(self._descriptor, waiting, start)
                    waiting, start = [], offset
        if keep and offset > start:
            with self._lock:
                self._held[offset] = waiting
            return start - first
        write_all(self._descriptor, waiting, start)
        return offset - first

    def _write_past(
        self, direct: DirectWriter, buffers: Sequence[memoryview], offset: int, look: Look | None
    ) -> int:
        """Write the buffers, large ones past the page cache; return how many bytes went to it all the same."""
        waiting: list[memoryview] = []
        start, cached = offset, 0
        for buffer in buffers:
            if look is not None:
                look(buffer)
            # What lies before the first page may share it with other data.
            before = -offset % ALIGNMENT
            done = direct.write(buffer[before:], offset + before)
            if done:
                write_all(self._descriptor, [*waiting, buffer[:before]], start)
                waiting, start = [buffer[before + done :]], offset + before + done
            else:
                waiting.append(buffer)
            offset += buffer.nbytes
            cached += buffer.nbytes - done
        write_all(self._descriptor, waiting, start)
        return cached

    def settle(self) -> None:
        """Write what waits for more.

        Raises:
            StoreError: ``UCP-E-STORE`` where bytes of a call that has returned could not be written by a later one.
        """
        with self._lock:
            waiting, self._held = self._held, {}
        for end, held in waiting.items():
            size = sum(piece.nbytes for piece in held)
            with translated(self._key), self._losing(held):
                write_all(self._descriptor, held, end - size)
            self._wrote(size)
        if self._is_lost:
            message = "bytes that were taken over could not be written; save again"
            raise error("UCP-E-STORE", message, at=self._key)

    def close(self) -> int:
        """Write what waits, and close the file; raises as `settle`."""
        if self._descriptor >= 0:
            self.settle()
        self._end()
        return self._length

    def _end(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        was_longer = False
        with translated(self._key), ExitStack() as closing:
            if descriptor >= 0:
                closing.callback(os.close, descriptor)
                was_longer = self._room.leave(self._length)
            if self._direct is not None:
                self._direct.close()
        if was_longer:
            # What was synced before has another length.
            self._wrote(0)

    def abort(self) -> None:
        """Close the file; giving up the attempt removes it, or leaves it as debris."""
        self._held = {}
        self._end()
