"""A pack of a local directory, as it is written (SPEC section 8)."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

from ucpformat.model.table import BLOCK_BYTES
from ucpformat.storage.direct_io import DirectWriter
from ucpformat.storage.file_room import FileRoom
from ucpformat.storage.local_io import translated, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ucpformat.storage.store import Look

__all__ = ["LocalPackFile"]

_HUGE_PAGE: Final = 1 << 21


class LocalPackFile:
    """A pack being written by positioned writes, so that threads do not wait for one another.

    ``wrote`` is told of bytes that were handed to the page cache. ``is_durable``: large data go past it.
    """

    def __init__(self, key: str, descriptor: int, wrote: Callable[[int], None], *, is_durable: bool) -> None:
        self._wrote = wrote
        self._direct = DirectWriter(descriptor) if is_durable else None
        self._key = key
        self._descriptor = descriptor
        self._room = FileRoom(descriptor)
        self._length = 0
        self._lock = threading.Lock()

    def append(self, buffers: Sequence[memoryview], alignment: int, look: Look | None = None) -> int:
        """Write the buffers at the next multiple of ``alignment``; the gap reads as zeros."""
        size = sum(buffer.nbytes for buffer in buffers)
        with self._lock:
            offset = -(-self._length // alignment) * alignment
            self._length = offset + size
            self._room.reach(self._length)
        with translated(self._key):
            if look is not None and self._direct is None:
                cached = self._write_looking(buffers, offset, look)
            else:
                if look is not None:
                    for buffer in buffers:
                        look(buffer)
                cached = self._write(buffers, offset)
        self._wrote(cached)
        return offset

    def _write_looking(self, buffers: Sequence[memoryview], offset: int, look: Look) -> int:
        """Write the buffers; each byte is looked at shortly before, so that the processor's cache has it for both.

        The page cache takes what lies between two multiples of 2 MiB as one, if it comes by one call.
        """
        start = offset
        for buffer in buffers:
            done = looked = 0
            while done < buffer.nbytes:
                stop = min(buffer.nbytes, (offset // _HUGE_PAGE + 1) * _HUGE_PAGE - offset + done)
                ahead = min(buffer.nbytes, -(-stop // BLOCK_BYTES) * BLOCK_BYTES)
                if ahead > looked:
                    look(buffer[looked:ahead])
                    looked = ahead
                write_all(self._descriptor, [buffer[done:stop]], offset)
                offset += stop - done
                done = stop
        return offset - start

    def _write(self, buffers: Sequence[memoryview], offset: int) -> int:
        """Write the buffers, one after another; how many bytes went to the page cache."""
        waiting: list[memoryview] = []
        start, cached = offset, 0
        for buffer in buffers:
            done = 0 if self._direct is None else self._direct.write(buffer, offset)
            if done:
                write_all(self._descriptor, waiting, start)
                waiting, start = [buffer[done:]], offset + done
            else:
                waiting.append(buffer)
            offset += buffer.nbytes
            cached += buffer.nbytes - done
        write_all(self._descriptor, waiting, start)
        return cached

    def close(self) -> int:
        """Close the file."""
        if self._direct is not None:
            self._direct.close()
        if self._descriptor >= 0:
            with translated(self._key):
                try:
                    was_longer = self._room.leave(self._length)
                finally:
                    os.close(self._descriptor)
                    self._descriptor = -1
            if was_longer:
                # What was synced before has another length.
                self._wrote(0)
        return self._length

    def abort(self) -> None:
        """Close the file; whoever gives an attempt up removes it, or leaves it as debris."""
        self.close()
