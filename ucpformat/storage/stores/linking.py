"""Hard links: one file as an object of several checkpoints (SPEC section 8.5)."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.storage.stores.local_io import Identity, identity_of, read_at

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NO_LINKS", "LinkSource", "make_link"]

_COMPARED_BYTES: Final = 1 << 18
"""What is read and compared at a time, while the processor's cache has it."""
NO_LINKS: Final = "a directory shares files by hard links: give a base on the same file system, or none"
_NOT_LINKED: Final = frozenset(
    getattr(errno, name)
    for name in ("EXDEV", "EMLINK", "EPERM", "EACCES", "ENOENT", "ENOSYS", "ENOTSUP", "EOPNOTSUPP")
)
"""What a system says that has no link for a file: then its bytes are written anew."""


@dataclass(frozen=True, slots=True)
class LinkSource:
    """An open file of a checkpoint, and the path at which it was found: to compare its bytes, and to link it."""

    path: Path
    descriptor: int

    @property
    def mark(self) -> None:
        """None: the open file is itself, whatever has its path by now."""
        return None

    @property
    def identity(self) -> Identity:
        """Which file it is."""
        return identity_of(os.fstat(self.descriptor))

    @property
    def nbytes(self) -> int:
        """Its length."""
        return os.fstat(self.descriptor).st_size

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from ``start`` on, fewer where the file ends; raises OSError where they cannot be read."""
        return read_at(self.descriptor, nbytes, start)

    def has(self, data: memoryview, start: int) -> bool:
        """Say whether the bytes from ``start`` on are ``data``; raises OSError where they cannot be read."""
        for low in range(0, data.nbytes, _COMPARED_BYTES):
            wanted = np.frombuffer(data[low : low + _COMPARED_BYTES], np.uint8)
            found = np.frombuffer(read_at(self.descriptor, wanted.size, start + low), np.uint8)
            if not np.array_equal(found, wanted):
                return False
        return True


def make_link(source: LinkSource, path: str, within: int | None) -> bool:
    """Give a file the name ``path`` in a directory too; say whether it has that name then.

    Where the path of the file leads to another one by now, that gets no name. Whoever writes for the same attempt may
    have made the link before. Raises OSError, but not where there can be no link.
    """
    is_made = False
    try:
        os.link(source.path, path, dst_dir_fd=within, follow_symlinks=False)
        is_made = True
    except OSError as reason:
        if not isinstance(reason, FileExistsError) and reason.errno not in _NOT_LINKED:
            raise
    with suppress(FileNotFoundError):
        if identity_of(os.stat(path, dir_fd=within, follow_symlinks=False)) == source.identity:
            return True
        if is_made:
            os.unlink(path, dir_fd=within)
    return False
