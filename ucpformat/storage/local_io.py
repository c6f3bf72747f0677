"""Positioned reads and writes of local files (SPEC section 8)."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = [
    "CREATE_FLAGS",
    "MISSING",
    "READ_FLAGS",
    "in_words",
    "read_all",
    "rename_exclusively",
    "sync",
    "translated",
    "write_all",
]

READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

_NO_REPLACE: Final = 1  # RENAME_NOREPLACE, renameat2(2)
_renameat2: Final = (
    getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
)
_IOV_LIMIT: Final = 1024
_NBYTES: Final = attrgetter("nbytes")


MISSING: Final = "the object is missing; restore it from a copy, or load another checkpoint"


@contextmanager
def translated(at: str) -> Iterator[None]:
    """Operating system errors as registered ones."""
    try:
        yield
    except FileNotFoundError as reason:
        raise error("UCP-E-MISSING", MISSING, at=at) from reason
    except FileExistsError as reason:
        raise error("UCP-E-EXISTS", "the object exists; another attempt writes here", at=at) from reason
    except NotADirectoryError as reason:
        raise error("UCP-E-LINK", "a file lies where a directory must be", at=at) from reason
    except OSError as reason:
        if reason.errno == errno.ELOOP:
            raise error(
                "UCP-E-LINK", "a symbolic link is not followed inside a checkpoint", at=at
            ) from reason
        raise error("UCP-E-STORE", in_words(reason), at=at) from reason


_ANOTHER: Final = "or choose another place"
_REMEDIES: Final = {
    errno.ENOSPC: f"free some, {_ANOTHER}",
    errno.EDQUOT: f"free some, {_ANOTHER}",
    errno.EFBIG: f"raise the limit of this process or file system, {_ANOTHER}",
    errno.EACCES: f"allow it to this user, {_ANOTHER}",
    errno.EPERM: f"allow it to this user, {_ANOTHER}",
    errno.EROFS: "choose another place",
}


def in_words(reason: OSError) -> str:
    """What the operating system says, and what to do about it where that is known."""
    said = str(reason.strerror or reason)
    remedy = _REMEDIES.get(reason.errno or 0)
    return said if remedy is None else f"{said}; {remedy}"


def write_all(descriptor: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Write the buffers, one after another, from byte ``offset`` on."""
    left = sum(map(_NBYTES, buffers))
    while left:
        done = os.pwritev(descriptor, buffers[:_IOV_LIMIT], offset)
        offset += done
        left -= done
        if left:
            buffers = _behind(buffers, done)


def read_all(descriptor: int, buffers: Sequence[memoryview], offset: int, at: str) -> None:
    """Fill the buffers, one after another; ``UCP-E-LENGTH`` where the file ends before."""
    pending = [buffer for buffer in buffers if buffer.nbytes]
    while pending:
        done = os.preadv(descriptor, pending[:_IOV_LIMIT], offset)
        if done == 0:
            raise error("UCP-E-LENGTH", f"the object ends at byte {offset}, before what is recorded", at=at)
        offset += done
        pending = _behind(pending, done)


def _behind(buffers: Sequence[memoryview], done: int) -> list[memoryview]:
    """What of the buffers lies behind their first ``done`` bytes."""
    if done == sum(map(_NBYTES, buffers)):
        return []  # as most often
    for number, buffer in enumerate(buffers):
        if done < buffer.nbytes:
            return [buffer[done:], *buffers[number + 1 :]]
        done -= buffer.nbytes
    return []


def sync(path: str | Path, within: int | None = None) -> None:
    """Make a file or directory durable; ``within`` is the open directory that a relative path begins at."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=within)
    try:
        os.fsync(descriptor)
    finally:
        with suppress(OSError):  # nothing was written by it
            os.close(descriptor)


def rename_exclusively(source: str, target: str, directory: int) -> None:
    """Rename a file within an open directory, unless the target exists.

    Raises:
        OSError: ``EEXIST`` where it does; ``EINVAL`` or ``ENOSYS`` where the system or file system knows no such call.
    """
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _renameat2(directory, os.fsencode(source), directory, os.fsencode(target), _NO_REPLACE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), source, None, target)
