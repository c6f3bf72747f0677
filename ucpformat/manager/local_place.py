"""Run directories in a local or network file system."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ucpformat.errors import error
from ucpformat.manager.run_directory import foreign_among, is_aside
from ucpformat.storage.stores.directory_claim import CONDEMNED, DirectoryClaim
from ucpformat.storage.stores.local_io import CREATE_FLAGS, exchange_names, opened, translated

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LocalPlace"]


class LocalPlace:
    """A directory."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self.url = str(self._path)

    def names(self) -> list[str]:
        """Return entries that are directories, or links to them."""
        with translated(self.url):
            if not self._path.exists():
                return []
            return [entry.name for entry in self._path.iterdir() if entry.is_dir()]

    def child(self, name: str) -> str:
        """Return path of an entry."""
        return str(self._path / name)

    def age(self, name: str) -> float | None:
        """Return seconds between the newest change below an entry and now, as the file system counts."""
        with translated(self.url):
            newest = (self._path / name).stat().st_mtime
            for directory, _, files in os.walk(self._path / name):
                for one in (directory, *(os.path.join(directory, file) for file in files)):
                    with suppress(FileNotFoundError):
                        newest = max(newest, os.lstat(one).st_mtime)
            return self._now() - newest

    def _now(self) -> float:
        """Return the time of the file system: when a file is made that is made now."""
        probe = self._path / f".ucp-clock-{uuid.uuid4().hex[:8]}"
        descriptor = opened(probe, CREATE_FLAGS)
        try:
            return os.fstat(descriptor).st_mtime
        finally:
            try:
                os.close(descriptor)
            finally:
                os.unlink(probe)

    def is_foreign(self, name: str) -> bool:
        """Return whether it is a link, or has anything at its top that is no part of a checkpoint."""
        path = self._path / name
        with translated(self.url):
            return path.is_symlink() or foreign_among([entry.name for entry in path.iterdir()])

    def is_being_cleared(self, name: str) -> bool:
        """Return whether it has the mark of a process that clears it."""
        return os.path.lexists(self._path / name / CONDEMNED)

    def abort_uploads(self, older_than: float, *, dry: bool) -> dict[str, int]:
        """Return nothing: a file is there as soon as it is begun."""
        del older_than, dry
        return {}

    def remove(self, name: str) -> None:
        """Take the root document away, move the rest aside, remove it."""
        with translated(name), self._held(name) as claim:
            claim.remove_root()
            claim.remove_all()

    def replace(self, name: str, by: str) -> None:
        """Give a checkpoint the name of another, which then has its; at once where the file system can do that.

        Where it cannot, there is a moment in which neither has the name, and both are there under others.
        """
        with translated(name):
            directory = opened(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                try:
                    exchange_names(by, name, directory)
                except OSError as reason:
                    if reason.errno not in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                        raise
                    aside = f"{by}-old"
                    os.rename(name, aside, src_dir_fd=directory, dst_dir_fd=directory)
                    os.rename(by, name, src_dir_fd=directory, dst_dir_fd=directory)
                    os.rename(aside, by, src_dir_fd=directory, dst_dir_fd=directory)
                os.fsync(directory)
            finally:
                os.close(directory)

    def clear(self, name: str, older_than: float) -> None:
        """Move debris aside and remove it, unless a checkpoint was committed there meanwhile."""
        del older_than  # whatever writes here cannot commit any more
        with translated(name), self._held(name) as claim:
            if not is_aside(name):
                claim.remove_all()
            elif claim.has_root():
                message = "a committed checkpoint was moved here; move it back, or remove it"
                raise error("UCP-E-EXISTS", message, at=name)
            else:
                shutil.rmtree(self._path / name)

    @contextmanager
    def _held(self, name: str) -> Iterator[DirectoryClaim]:
        claim = DirectoryClaim(self._path / name)
        try:
            claim.hold()
            yield claim
        finally:
            claim.release()
