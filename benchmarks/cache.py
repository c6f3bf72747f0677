"""The page cache, warm or cold, for all contenders alike."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cool", "files_below"]


def files_below(directory: Path) -> list[Path]:
    """Every file, in order of its path."""
    return sorted(Path(path) / name for path, _, names in os.walk(directory) for name in names)


def cool(directory: Path) -> None:
    """Have every file below a directory on the disk alone: written out, and its pages dropped."""
    for path in files_below(directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
