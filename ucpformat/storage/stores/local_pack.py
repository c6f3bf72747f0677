"""A pack of a local directory, as it is written (SPEC section 8)."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error
from ucpformat.model.table import BLOCK_BYTES
from ucpformat.storage.scratch import ALIGNMENT
from ucpformat.storage.stores.direct_io import DirectWriter
from ucpformat.storage.stores.file_room import FileRoom
from ucpformat.storage.stores.local_io import translated, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ucpformat.storage.stores.store import Look

__all__ = ["LocalPackFile"]

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
        """What waits for the bytes at ``offset``, with the zeros before them, and where it begins."""
        end = self._ends_before.pop(offset, offset)
        held = self._held.pop(end, None)
        if held is None:
            return [], offset
        return [*held, memoryview(bytes(offset - end))], end - sum(piece.nbytes for piece in held)

    @contextmanager
    def _losing(self, held: list[memoryview]) -> Iterator[None]:
        """What was taken over from calls that have returned is lost if this one fails: the pack is no good then."""
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
        """Write what was held back from ``start`` on, and the buffers; how many bytes were written.

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
        """Write the buffers, large ones past the page cache; how many bytes went to it all the same."""
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
        """Close the file; whoever gives an attempt up removes it, or leaves it as debris."""
        self._held = {}
        self._end()
