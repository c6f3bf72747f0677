"""Directories that an export makes: fresh ones, gone again where it fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ucpformat.errors import error

__all__ = ["fresh_directory", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Write a small new file, durable when this returns."""
    with path.open("x") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def fresh_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A directory that is new or empty, and is so again if the body raises.

    Raises:
        StoreError: ``UCP-E-EXISTS`` for one with something in it.
    """
    root = Path(path)
    existed = root.exists()
    if existed and (not root.is_dir() or any(root.iterdir())):
        raise error("UCP-E-EXISTS", "the destination is not an empty directory; choose another", at=str(root))
    root.mkdir(parents=True, exist_ok=True)
    try:
        yield root
    except BaseException:
        for entry in list(root.iterdir()):
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if not existed:
            root.rmdir()
        raise
