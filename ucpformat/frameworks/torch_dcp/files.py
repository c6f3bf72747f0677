"""The files of a checkpoint directory: inside it, plain, and as long as the metadata say."""

from __future__ import annotations

import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath, PureWindowsPath

from ucpformat.errors import error
from ucpformat.frameworks.torch_dcp.byte_source import FileRange, open_range
from ucpformat.frameworks.torch_dcp.items import Location

__all__ = ["CheckpointFiles"]


class CheckpointFiles:
    """The directory ``root``; remembers what it has checked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._real_root = Path(os.path.realpath(root))
        self._sizes: dict[str, int] = {}

    def names(self, folder: str = "") -> list[str]:
        """Return the names directly in ``folder``, sorted; none where it does not exist."""
        try:
            return sorted(os.listdir(self.root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, name: str) -> int:
        """Return the length of a file in bytes.

        Raises ``UCP-E-KEY`` for a name that leaves the directory, ``UCP-E-LINK`` for a link out of it and for
        what is not a plain file, ``UCP-E-SOURCE`` where it is missing.
        """
        if name not in self._sizes:
            self._sizes[name] = self._checked_size(name)
        return self._sizes[name]

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

    def _checked_size(self, name: str) -> int:
        path = PurePosixPath(name)
        windows = PureWindowsPath(name)
        if (
            not name
            or "\0" in name
            or path.is_absolute()
            or windows.drive
            or windows.root
            or ".." in windows.parts
        ):
            raise error(
                "UCP-E-KEY", f"the file name {name!r} leaves the checkpoint's directory", at=name[:200]
            )
        real = Path(os.path.realpath(self.root / name))
        if not real.is_relative_to(self._real_root):
            raise error(
                "UCP-E-LINK",
                "the file is a link out of the directory; copy the checkpoint with links resolved",
                at=name,
            )
        try:
            status = real.stat()
        except OSError as problem:
            raise error(
                "UCP-E-SOURCE", f"the file is missing or unreadable: {problem.strerror}", at=name
            ) from None
        if not stat.S_ISREG(status.st_mode):
            raise error("UCP-E-LINK", "not a plain file", at=name)
        return status.st_size
