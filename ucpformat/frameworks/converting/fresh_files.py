"""Files of an export: in a directory that is new or empty, durable at the end, gone after a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ucpformat.errors import error

__all__ = ["FreshFiles", "fresh_file", "fresh_files"]


class FreshFiles:
    """What is written into a directory; remembers it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: list[Path] = []

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """A new file, below the directory, which is durable when the body is done."""
        path = self.root / name
        for folder in reversed(path.relative_to(self.root).parents[:-1]):
            if not (self.root / folder).is_dir():
                (self.root / folder).mkdir()
                self.made.append(self.root / folder)
        with path.open("xb") as stream:
            self.made.append(path)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())

    def write(self, name: str, data: bytes) -> None:
        """A small file."""
        with self.create(name) as stream:
            stream.write(data)

    def remove(self) -> None:
        """Undo everything."""
        for path in reversed(self.made):
            with suppress(OSError):  # somebody else may have put something into a directory
                path.rmdir() if path.is_dir() else path.unlink()


@contextmanager
def fresh_files(path: str | os.PathLike[str]) -> Iterator[FreshFiles]:
    """A directory to write into, new or empty; as it was before, if the body raises.

    Raises:
        StoreError: ``UCP-E-EXISTS`` where there is something.
    """
    root = Path(path)
    existed = root.exists()
    if existed and (not root.is_dir() or any(root.iterdir())):
        raise error("UCP-E-EXISTS", "the destination is not an empty directory; choose another", at=str(root))
    root.mkdir(parents=True, exist_ok=True)
    files = FreshFiles(root)
    try:
        yield files
        _flush(root)
    except BaseException:
        files.remove()
        if not existed:
            with suppress(OSError):
                root.rmdir()
        raise


@contextmanager
def fresh_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """One new file, which is gone if the body raises.

    Raises:
        StoreError: ``UCP-E-EXISTS`` where there is something.
    """
    place = Path(path)
    if place.exists() or place.is_symlink():
        raise error("UCP-E-EXISTS", "the destination exists; choose another", at=str(place))
    place.parent.mkdir(parents=True, exist_ok=True)
    files = FreshFiles(place.parent)
    try:
        with files.create(place.name) as stream:
            yield stream
        _flush(place.parent)
    except BaseException:
        files.remove()
        raise


def _flush(folder: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
