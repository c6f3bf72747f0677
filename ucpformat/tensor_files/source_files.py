"""The one door to the files of a foreign checkpoint: inside its directory, plain, and as long as the metadata say.

Every importer opens files through `SourceFiles`, so that names, links and lengths follow one policy, and so that
`watched` can say which files of a source were never looked at.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final

from ucpformat.errors import error
from ucpformat.tensor_files.byte_source import FileRange, Location, open_range

__all__ = ["SourceFiles", "Watched", "held_bytes", "is_component", "watched"]

_CACHE_FILES: Final = "snapshots"
_CACHE_BLOBS: Final = "blobs"
_COMPONENT_BYTES: Final = 255
_BLOCK_BYTES: Final = 512
_HOLES: Final = 64
_LEAST_HANDED_BYTES: Final = 64 << 20


def is_component(name: str) -> bool:
    """Return whether ``name`` can be that of a file or a directory directly in another one, on every system."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0") and _is_storable(name)


def held_bytes(status: os.stat_result) -> int:
    """Return bytes of a file that its file system keeps: a hole of a terabyte is none."""
    blocks: int | None = getattr(status, "st_blocks", None)
    if blocks is None:
        return status.st_size
    return min(status.st_size, _BLOCK_BYTES * max(1, blocks))


def _is_storable(name: str) -> bool:
    try:
        return len(name.encode()) <= _COMPONENT_BYTES
    except UnicodeEncodeError:
        return False


@dataclass(slots=True)
class Watched:
    """The files that importers looked at, by the path under which they were asked for."""

    roots: set[Path] = field(default_factory=set)
    files: set[Path] = field(default_factory=set)
    folders: set[Path] = field(default_factory=set)
    """Directories that were handed to a library as a whole, with everything below."""


_WATCHED: Final[ContextVar[Watched | None]] = ContextVar("watched", default=None)


@contextmanager
def watched() -> Iterator[Watched]:
    """Note what `SourceFiles` made in this context look at, as long as the context lasts; within another, there too."""
    found = _WATCHED.get() or Watched()
    token = _WATCHED.set(found)
    try:
        yield found
    finally:
        _WATCHED.reset(token)


class SourceFiles:
    """The files below the directory ``root``; remembers what it has checked. Thread-safe.

    A link may lead to another path below ``root``. In a snapshot of Hugging Face's cache
    (``models--NAME/snapshots/REVISION``) it may lead to the ``blobs`` of the same repository, too: that is how the
    cache stores every file. Other links are refused.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        real = Path(os.path.realpath(root))
        self._allowed = [real]
        if real.parent.name == _CACHE_FILES:
            self._allowed.append(real.parent.parent / _CACHE_BLOBS)
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._watched = _WATCHED.get()
        if self._watched is not None:
            self._watched.roots.add(root)

    @classmethod
    def beside(cls, path: Path) -> tuple[SourceFiles, str]:
        """Return the directory of a file that the user named, and the file's name in it.

        The user may name a link: what it leads to is what the user means.
        """
        files = cls(path.parent)
        files._allowed.append(Path(os.path.realpath(path)))
        return files, path.name

    def below(self, folder: str) -> SourceFiles:
        """Return the files of a folder in this directory, by the names that they have there; links as from here.

        Raises ``UCP-E-KEY`` and ``UCP-E-LINK`` where the folder lies elsewhere.
        """
        self._check_name(folder)
        self._inside(folder)
        found = SourceFiles(self.root / folder)
        found._allowed = self._allowed
        return found

    def names(self, folder: str = "") -> list[str]:
        """Return the names directly in ``folder``, sorted; none where it does not exist.

        Raises ``UCP-E-KEY`` and ``UCP-E-LINK`` where it lies elsewhere, ``UCP-E-SOURCE`` where it is unreadable.
        """
        if folder:
            self._check_name(folder)
            self._inside(folder)
        try:
            return sorted(os.listdir(self.root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as problem:
            message = f"the directory is unreadable: {problem.strerror}"
            raise error("UCP-E-SOURCE", message, at=folder or str(self.root)) from None

    def has(self, name: str) -> bool:
        """Return whether a file lies there; a link counts, whatever it leads to."""
        if not all(map(_is_storable, name.split("/"))):
            return False
        return (self.root / name).is_file() or (self.root / name).is_symlink()

    def size(self, name: str) -> int:
        """Return the length of a file in bytes.

        Raises ``UCP-E-KEY`` for a name that leaves the directory, ``UCP-E-LINK`` for a link out of it and for
        what is not a plain file, ``UCP-E-SOURCE`` where it is missing.
        """
        with self._lock:
            known = self._sizes.get(name)
        if known is None:
            known = self._checked(name)
            with self._lock:
                self._sizes[name] = known
                if self._watched is not None:
                    self._watched.files.add(self.root / name)
        return known

    def read(self, name: str, limit: int) -> bytes:
        """Return a whole file. Raises as `size` does, and ``UCP-E-LIMIT``."""
        size = self.size(name)
        if size > limit:
            raise error("UCP-E-LIMIT", f"the file has {size} bytes; the limit is {limit}", at=name)
        with open_range(self.root / name, 0, size, name) as source:
            return source.read(0, size)

    def check(self, location: Location) -> None:
        """Refuse a location whose file does not hold its bytes. Raises as `size` does."""
        size = self.size(location.file)
        if location.start + location.length > size:
            raise error(
                "UCP-E-SOURCE",
                f"truncated: {size} bytes, the metadata count on {location.start + location.length}",
                at=location.file,
            )

    def open(self, location: Location) -> AbstractContextManager[FileRange]:
        """Open the bytes of ``location``. Raises as `check` does."""
        self.check(location)
        return open_range(self.root / location.file, location.start, location.length, location.file)

    def hand_over(self, folder: str) -> Path:
        """Return a folder for a library that opens the files in it by itself, after a look at all of them.

        Raises ``UCP-E-KEY`` for a name that leaves the directory, ``UCP-E-LINK`` for a link out of it and for what
        is neither a file nor a directory, ``UCP-E-LIMIT`` for a file of more than 64 MiB that is almost all hole:
        libraries take memory by the length of a file, and end the process where there is none.
        """
        if folder:
            self._check_name(folder)
        found = self.root / folder
        pending = [folder.rstrip("/")]
        while pending:
            inside = pending.pop()
            self._inside(inside or ".")
            try:
                with os.scandir(self.root / inside) as entries:
                    listed = sorted(entries, key=lambda entry: entry.name)
            except OSError as problem:
                raise error(
                    "UCP-E-SOURCE", f"the directory is unreadable: {problem.strerror}", at=inside
                ) from None
            for entry in listed:
                name = f"{inside}/{entry.name}" if inside else entry.name
                if entry.is_symlink():
                    self._checked(name)
                elif entry.is_dir():
                    pending.append(name)
                    continue
                elif not entry.is_file():
                    raise error("UCP-E-LINK", "not a plain file", at=name)
                _check_holes(entry.stat(), name)
        if self._watched is not None:
            self._watched.folders.add(found)
        return found

    def _checked(self, name: str) -> int:
        self._check_name(name)
        real = self._inside(name)
        try:
            status = real.stat()
        except OSError as problem:
            raise error(
                "UCP-E-SOURCE", f"the file is missing or unreadable: {problem.strerror}", at=name
            ) from None
        if not stat.S_ISREG(status.st_mode):
            raise error("UCP-E-LINK", "not a plain file", at=name)
        return status.st_size

    @staticmethod
    def _check_name(name: str) -> None:
        path = PurePosixPath(name)
        windows = PureWindowsPath(name)
        if (
            not name
            or "\0" in name
            or path.is_absolute()
            or windows.drive
            or windows.root
            or ".." in windows.parts
            or not all(map(_is_storable, path.parts))
        ):
            raise error(
                "UCP-E-KEY",
                f"the file name {name!r:.200} leaves the checkpoint's directory, or is none that a system keeps",
                at=name[:200],
            )

    def _inside(self, name: str) -> Path:
        """Return the real path of ``name``. Raises ``UCP-E-LINK`` where that is not allowed."""
        real = Path(os.path.realpath(self.root / name))
        if not any(real.is_relative_to(folder) for folder in self._allowed):
            raise error(
                "UCP-E-LINK",
                "the file is a link out of the directory; copy the checkpoint with links resolved (cp -rL)",
                at=name,
            )
        return real


def _check_holes(status: os.stat_result, name: str) -> None:
    if status.st_size > max(_LEAST_HANDED_BYTES, _HOLES * held_bytes(status)):
        message = f"the file has {status.st_size} bytes, of which {held_bytes(status)} are stored: the rest is a hole"
        raise error("UCP-E-LIMIT", message, at=name)
