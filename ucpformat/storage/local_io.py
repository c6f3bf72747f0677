"""Positioned reads and writes of local files (SPEC section 8)."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["read_all", "sync", "translated", "write_all"]

_IOV_LIMIT: Final = 1024
_NBYTES: Final = attrgetter("nbytes")


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


def sync(path: Path) -> None:
    """Make a file or directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
