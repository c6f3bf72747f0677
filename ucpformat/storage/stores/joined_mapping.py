"""Parts of files that lie apart, mapped one behind the other: one range of addresses, and no copy."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from ucpformat.storage.stores.store import StoredRange

__all__ = ["fit_pages", "joined"]

_READ_ALONE: Final = 1  # PROT_READ
_SHARED: Final = 1  # MAP_SHARED
_PRIVATE: Final = 2  # MAP_PRIVATE
_FIXED: Final = 0x10  # MAP_FIXED, which the module mmap lacks
_FAILED: Final = ctypes.c_void_p(-1).value

_MOST_PARTS: Final = 1024
"""A process may have some 65,000 mappings."""

_systems: Final = ctypes.CDLL(None, use_errno=True) if sys.platform in {"linux", "darwin"} else None
_mmap: Any = getattr(_systems, "mmap64", None) or getattr(_systems, "mmap", None)
_munmap: Any = getattr(_systems, "munmap", None)
if _mmap is not None:
    _mmap.restype = ctypes.c_void_p


def fit_pages(parts: Sequence[StoredRange]) -> bool:
    """Return whether parts of files can be mapped one behind the other: they fill pages, except the last."""
    if _mmap is None or _munmap is None or len(parts) > _MOST_PARTS:
        return False
    page = mmap.PAGESIZE
    return not any(part.start % page for part in parts) and not any(
        (part.stop - part.start) % page for part in parts[:-1]
    )


def joined(
    parts: Sequence[StoredRange], having: Callable[[str, int], AbstractContextManager[int]]
) -> memoryview:
    """Map parts that fit pages, each where the one before it ends, for as long as a view of any byte is kept.

    ``having`` opens the file of a key, which has so many bytes.

    Raises:
        OSError: the system has no more mappings or addresses to give, unless ``having`` says it otherwise.
    """
    nbytes = sum(part.stop - part.start for part in parts)
    # Nobody else can be given these addresses; where no file is put, zeros stay.
    base = _mapped(None, nbytes, _PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    try:
        position = base
        for key, start, stop in parts:
            if key is not None:
                with having(key, stop) as descriptor:
                    _mapped(position, stop - start, _SHARED | _FIXED, descriptor, start)
            position += stop - start
    except BaseException:
        _unmap(base, nbytes)
        raise
    memory = (ctypes.c_ubyte * nbytes).from_address(base)
    # Whoever still looks at the end of the process is not in the way of the end.
    weakref.finalize(memory, _unmap, base, nbytes).atexit = False
    return memoryview(memory).cast("B").toreadonly()


def _mapped(address: int | None, nbytes: int, flags: int, descriptor: int, start: int) -> int:
    found: int | None = _mmap(
        ctypes.c_void_p(address),
        ctypes.c_size_t(nbytes),
        ctypes.c_int(_READ_ALONE),
        ctypes.c_int(flags),
        ctypes.c_int(descriptor),
        ctypes.c_int64(start),
    )
    if found is None or found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found


def _unmap(address: int, nbytes: int) -> None:
    _munmap(ctypes.c_void_p(address), ctypes.c_size_t(nbytes))
