"""Room in a file that grows, taken before it is needed: the file system finds it for much at once."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

__all__ = ["FileRoom"]

_LEAST_BYTES: Final = 1 << 25
_MOST_BYTES: Final = 1 << 29
_ALIGNMENT: Final = 1 << 21
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
        if stop <= max(self._end, _LEAST_BYTES) or not self._is_possible or _fallocate is None:
            return
        spare = self._spare()
        if spare < _LEAST_BYTES:
            self._is_possible = False
            return
        end = -(-(stop + spare) // _ALIGNMENT) * _ALIGNMENT
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
        """How much is little of what is free: other writers must not run out of it meanwhile."""
        try:
            status = os.fstatvfs(self._descriptor)
        except OSError:
            return 0
        return min(_MOST_BYTES, status.f_bavail * status.f_frsize // _FREE_PARTS)

    def leave(self, length: int) -> bool:
        """Give back what lies behind ``length``; whether there was anything."""
        end, self._end, self._is_possible = self._end, 0, False
        if end:
            os.ftruncate(self._descriptor, length)
        return bool(end)


def _is_in_memory(descriptor: int) -> bool:
    status = (ctypes.c_long * 64)()  # `struct statfs` has 120 bytes, and begins with the type
    return _fstatfs is not None and not _fstatfs(ctypes.c_int(descriptor), status) and status[0] in _IN_MEMORY
