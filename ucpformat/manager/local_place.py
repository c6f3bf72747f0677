"""Run directories in a local or network file system."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

from ucpformat.errors import error
from ucpformat.manager.run_directory import foreign_among, is_aside
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.local_io import sync, translated

__all__ = ["LocalPlace"]


class LocalPlace:
    """A directory."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self.url = str(self._path)

    def names(self) -> list[str]:
        """Entries that are directories, or links to them."""
        with translated(self.url):
            if not self._path.exists():
                return []
            return [entry.name for entry in self._path.iterdir() if entry.is_dir()]

    def child(self, name: str) -> str:
        """Path of an entry."""
        return str(self._path / name)

    def age(self, name: str) -> float | None:
        """Seconds between the newest change below an entry and now, as the file system counts."""
        with translated(self.url):
            newest = (self._path / name).stat().st_mtime
            for directory, _, files in os.walk(self._path / name):
                for one in (directory, *(os.path.join(directory, file) for file in files)):
                    with suppress(FileNotFoundError):
                        newest = max(newest, os.lstat(one).st_mtime)
            with tempfile.NamedTemporaryFile(dir=self._path, prefix=".ucp-clock-") as probe:
                return os.fstat(probe.fileno()).st_mtime - newest

    def is_foreign(self, name: str) -> bool:
        """Whether it is a link, or has anything at its top that is no part of a checkpoint."""
        path = self._path / name
        with translated(self.url):
            return path.is_symlink() or foreign_among([entry.name for entry in path.iterdir()])

    def remove(self, name: str) -> None:
        """Take the root document away, move the rest aside, remove it."""
        path = self._path / name
        with translated(path.name):
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise error("UCP-E-EXISTS", "a writer is at work here", at=str(path)) from None
                except OSError:
                    pass  # a medium without locks
                (path / ROOT_KEY).unlink(missing_ok=True)
                sync(path)
                if not is_aside(name):
                    # A writer that comes back from the dead finds itself in a directory of its own.
                    path = path.rename(path.with_name(f"{name}.debris-{uuid.uuid4().hex[:8]}"))
                    sync(self._path)
            finally:
                os.close(held)
            shutil.rmtree(path)
