"""Files that are mapped: bytes are looked at where they lie in the page cache, and not copied first."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Mappings", "populated"]

_POPULATE_READ: Final = 22
"""Linux 5.14 and newer (madvise(2)): pages are there afterwards, or it is said that they cannot be."""

_MOST_KEPT: Final = 64

# Not `mmap.madvise`, which keeps all of Python waiting for the disk.
_madvise: Final = (
    getattr(ctypes.CDLL(None, use_errno=True), "madvise", None) if sys.platform == "linux" else None
)


class Mappings:
    """Mapped files by key, each once, for as long as a view of any of their bytes is kept, or `forget` is not called.

    For several threads.
    """

    def __init__(self) -> None:
        self._found: WeakValueDictionary[str, mmap.mmap] = WeakValueDictionary()
        self._kept: dict[str, mmap.mmap] = {}
        self._lock = threading.Lock()

    def view(self, key: str, descriptor: int, start: int, stop: int, *, keep: bool) -> memoryview:
        """Bytes ``[start, stop)`` of the file, which has them; ``keep``: it is soon asked for again."""
        with self._lock:
            found = self._found.get(key)
            if found is None or len(found) < stop:
                found = self._found[key] = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
                if keep and len(self._kept) < _MOST_KEPT:
                    self._kept[key] = found
        return memoryview(found)[start:stop]

    def forget(self) -> None:
        """Keep no more than the views do."""
        with self._lock:
            self._kept = {}


@contextmanager
def populated(view: memoryview) -> Iterator[None]:
    """Have the pages of a view of a mapped file in memory, and let go of them.

    Whoever looks at a page that cannot be read gets SIGBUS, which ends the process. Here it is an error; what is left
    is a file that is cut, or a page that is lost and cannot be read again, before it was looked at.

    Raises:
        OSError: a page cannot be read, or the system does not know how to say so.
    """
    first = np.frombuffer(view, np.uint8).ctypes.data
    before = first % mmap.PAGESIZE
    pages = first - before, before + view.nbytes
    _advise(*pages, _POPULATE_READ)
    try:
        yield
    finally:
        # Pages that are mapped count as memory of this process, although anybody may have them; locked ones stay.
        with suppress(OSError):
            _advise(*pages, mmap.MADV_DONTNEED)


def _advise(first: int, nbytes: int, advice: int) -> None:
    if _madvise is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _madvise(ctypes.c_void_p(first), ctypes.c_size_t(nbytes), ctypes.c_int(advice)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
