"""Positioned reads and writes of local files, and a pack made of them (SPEC section 8)."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error
from ucpformat.storage.direct_io import DirectWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["LocalPackFile", "read_all", "sync", "translated", "write_all"]

_IOV_LIMIT: Final = 1024


@contextmanager
def translated(at: str) -> Iterator[None]:
    """Operating system errors as registered ones."""
    try:
        yield
    except FileNotFoundError as reason:
        raise error("UCP-E-MISSING", "the object is missing; the checkpoint is damaged", at=at) from reason
    except FileExistsError as reason:
        raise error("UCP-E-EXISTS", "the object exists; another attempt writes here", at=at) from reason
    except NotADirectoryError as reason:
        raise error("UCP-E-LINK", "a file lies where a directory must be", at=at) from reason
    except OSError as reason:
        if reason.errno == errno.ELOOP:
            raise error(
                "UCP-E-LINK", "a symbolic link is not followed inside a checkpoint", at=at
            ) from reason
        raise error("UCP-E-STORE", f"{reason.strerror or reason}", at=at) from reason


def write_all(descriptor: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Write the buffers, one after another, from byte ``offset`` on."""
    pending = [buffer for buffer in buffers if buffer.nbytes]
    while pending:
        done = os.pwritev(descriptor, pending[:_IOV_LIMIT], offset)
        offset += done
        pending = _behind(pending, done)


def read_all(descriptor: int, buffers: Sequence[memoryview], offset: int, at: str) -> None:
    """Fill the buffers, one after another; ``UCP-E-LENGTH`` where the file ends before."""
    pending = [buffer for buffer in buffers if buffer.nbytes]
    while pending:
        done = os.preadv(descriptor, pending[:_IOV_LIMIT], offset)
        if done == 0:
            raise error("UCP-E-LENGTH", f"the object ends at byte {offset}, before what is recorded", at=at)
        offset += done
        pending = _behind(pending, done)


def _behind(buffers: list[memoryview], done: int) -> list[memoryview]:
    """What of the buffers lies behind their first ``done`` bytes."""
    for number, buffer in enumerate(buffers):
        if done < buffer.nbytes:
            return [buffer[done:], *buffers[number + 1 :]]
        done -= buffer.nbytes
    return []


def sync(path: Path) -> None:
    """Make a file or directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LocalPackFile:
    """A pack being written by positioned writes, so that threads do not wait for one another.

    ``wrote`` is told of bytes that were handed to the page cache. ``is_durable``: large data go past it.
    """

    def __init__(self, key: str, descriptor: int, wrote: Callable[[int], None], *, is_durable: bool) -> None:
        self._wrote = wrote
        self._direct = DirectWriter(descriptor) if is_durable else None
        self._key = key
        self._descriptor = descriptor
        self._length = 0
        self._lock = threading.Lock()

    def append(self, buffers: Sequence[memoryview], alignment: int) -> int:
        """Write the buffers at the next multiple of ``alignment``; the gap reads as zeros."""
        size = sum(buffer.nbytes for buffer in buffers)
        with self._lock:
            offset = -(-self._length // alignment) * alignment
            self._length = offset + size
        with translated(self._key):
            cached = self._write(buffers, offset)
        self._wrote(cached)
        return offset

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
                os.close(self._descriptor)
            self._descriptor = -1
        return self._length
