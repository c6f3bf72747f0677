"""Positioned reads and writes of local files (SPEC section 8), and what systems have for them.

Linux has everything. macOS lacks some calls, which are then done by others. Windows lacks directory descriptors, locks
and positioned reads: checkpoints are read there, and local ones are not written (`require_commits`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
import threading
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = [
    "CREATE_FLAGS",
    "DIRECTORY_FLAGS",
    "MISSING",
    "READ_FLAGS",
    "Identity",
    "exchange_names",
    "identity_of",
    "in_words",
    "is_ours_alone",
    "make_parents",
    "opened",
    "read_all",
    "read_at",
    "rename_exclusively",
    "require_commits",
    "require_length",
    "require_regular",
    "sync",
    "translated",
    "write_all",
]


def _flags(*names: str) -> int:
    """Return flags of ``os.open``, as far as the system has them."""
    flags = 0
    for name in names:
        flags |= getattr(os, name, 0)
    return flags


_PLAIN: Final = _flags("O_CLOEXEC", "O_NOINHERIT", "O_NOFOLLOW", "O_BINARY")
READ_FLAGS: Final = os.O_RDONLY | _PLAIN | _flags("O_NONBLOCK")
CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN
_SYNC_FLAGS: Final = os.O_RDONLY | _flags("O_CLOEXEC")
DIRECTORY_FLAGS: Final = os.O_RDONLY | _flags("O_CLOEXEC", "O_DIRECTORY")

_HAS_DIRECTORY_DESCRIPTORS: Final = hasattr(os, "O_DIRECTORY") and os.open in os.supports_dir_fd
_seeking: Final = threading.Lock()

_NO_REPLACE: Final = 1  # RENAME_NOREPLACE, renameat2(2)
_EXCHANGE: Final = 2  # RENAME_EXCHANGE
_renameat2: Final = (
    getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
)
_IOV_LIMIT: Final = 1024
_COPIED_BYTES: Final = 1 << 23
_NBYTES: Final = attrgetter("nbytes")


Identity = tuple[int, int]
"""What tells a file from every other, whatever its path: device and number."""

MISSING: Final = "the object is missing; restore it from a copy, or load another checkpoint"


@contextmanager
def translated(at: str) -> Iterator[None]:
    """Raise operating system errors as registered ones."""
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
    """Return what the operating system says, and what to do about it where that is known."""
    said = str(reason.strerror or reason)
    remedy = _REMEDIES.get(reason.errno or 0)
    return said if remedy is None else f"{said}; {remedy}"


def require_commits(at: str) -> None:
    """Refuse to write where the system lacks what a commit needs: names within an open directory (SPEC section 8.1).

    Raises:
        StoreError: ``UCP-E-STORE``.
    """
    if not _HAS_DIRECTORY_DESCRIPTORS:
        message = (
            f"local checkpoints cannot be written on this system ({sys.platform}), which has no directory descriptors; "
            "save to an object store, or on Linux or macOS"
        )
        raise error("UCP-E-STORE", message, at=at)


def identity_of(status: os.stat_result) -> Identity:
    """Return which file a status is of."""
    return status.st_dev, status.st_ino


def is_ours_alone(status: os.stat_result) -> bool:
    """Return whether only this user and the administrator may change a file."""
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def require_regular(mode: int, key: str) -> None:
    """Raise ``UCP-E-LINK`` for what is not a regular file."""
    if not stat.S_ISREG(mode):
        raise error("UCP-E-LINK", "only a regular file may lie here", at=key)


def require_length(descriptor: int, stop: int, key: str) -> None:
    """Raise ``UCP-E-LENGTH`` for a file that ends before byte ``stop``."""
    size = os.fstat(descriptor).st_size
    if size < stop:
        raise error("UCP-E-LENGTH", f"the object ends at byte {size}, before {stop}", at=key)


def opened(path: str | os.PathLike[str], flags: int, mode: int = 0o666, *, within: int | None = None) -> int:
    """Open a file as `os.open` does, and close it again where a signal comes meanwhile (Ctrl-C).

    What a signal raises is raised as soon as a call has returned: its result is lost then, unless something that is
    not Python has kept it.
    """
    held: list[int] = []
    try:
        held.extend(map(partial(os.open, dir_fd=within), (path,), (flags,), (mode,)))
        return held[0]
    except BaseException:
        for descriptor in held:
            os.close(descriptor)
        raise


def read_at(descriptor: int, nbytes: int, offset: int) -> bytes:
    """Return at most ``nbytes`` bytes of a file from byte ``offset`` on; fewer at its end, or as one call gives."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, nbytes, offset)
    with _seeking:  # descriptors are shared by threads
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, nbytes)


def write_all(descriptor: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Write the buffers, one after another, from byte ``offset`` on."""
    left = sum(map(_NBYTES, buffers))
    while left:
        if hasattr(os, "pwritev"):
            done = os.pwritev(descriptor, buffers[:_IOV_LIMIT], offset)
        else:
            done = os.pwrite(descriptor, next(buffer for buffer in buffers if buffer.nbytes), offset)
        offset += done
        left -= done
        if left:
            buffers = _behind(buffers, done)


def read_all(descriptor: int, buffers: Sequence[memoryview], offset: int, at: str) -> None:
    """Fill the buffers, one after another; ``UCP-E-LENGTH`` where the file ends before."""
    pending = [buffer for buffer in buffers if buffer.nbytes]
    while pending:
        if hasattr(os, "preadv"):
            done = os.preadv(descriptor, pending[:_IOV_LIMIT], offset)
        else:
            data = read_at(descriptor, min(pending[0].nbytes, _COPIED_BYTES), offset)
            pending[0][: len(data)] = data
            done = len(data)
        if done == 0:
            raise error("UCP-E-LENGTH", f"the object ends at byte {offset}, before what is recorded", at=at)
        offset += done
        pending = _behind(pending, done)


def _behind(buffers: Sequence[memoryview], done: int) -> list[memoryview]:
    """Return what of the buffers lies behind their first ``done`` bytes."""
    if done == sum(map(_NBYTES, buffers)):
        return []  # as most often
    for number, buffer in enumerate(buffers):
        if done < buffer.nbytes:
            return [buffer[done:], *buffers[number + 1 :]]
        done -= buffer.nbytes
    return []


def sync(path: str | Path, within: int | None = None) -> None:
    """Make a file or directory durable; ``within`` is the open directory that a relative path begins at."""
    descriptor = opened(path, _SYNC_FLAGS, within=within)
    try:
        os.fsync(descriptor)
    finally:
        with suppress(OSError):  # nothing was written by it
            os.close(descriptor)


def make_parents(path: Path, *, is_durable: bool) -> Path | None:
    """Make the directories that ``path`` lies in, each durable before the next one; return the one left to sync.

    It has the last directory that was there: who has made that may have died, or not have come to sync its name yet;
    those above were durable before. None where this process may not look into it.
    """
    parent = path.parent
    missing = []
    while not os.path.isdir(parent):
        missing.append(parent)
        parent = parent.parent
    for directory in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(directory)
        if is_durable:
            sync(directory.parent)
    return parent.parent if os.access(parent.parent, os.R_OK) else None


def exchange_names(one: str, other: str, directory: int) -> None:
    """Let two entries of an open directory change names, at once; raises OSError, such as where that cannot be."""
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _renameat2(directory, os.fsencode(one), directory, os.fsencode(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


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
