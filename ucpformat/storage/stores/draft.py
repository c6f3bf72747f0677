"""The draft of a root document: the right to commit, and what becomes the commit (SPEC section 8.1).

It is a file in the checkpoint's directory, made when an attempt begins, and gets the root document's name by a hard
link or a rename that replaces nothing. Whoever removes the file takes the right away.
"""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from ucpformat.errors import UcpError, error
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.stores.local_io import CREATE_FLAGS, READ_FLAGS, opened, rename_exclusively, write_all

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STAGED", "Draft", "is_staged", "staged_name"]

STAGED: Final = f".{ROOT_KEY}."
"""How the name of a file begins that is not yet the object that it becomes, or never became one."""

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EINVAL})

_exclusive_by: Final[dict[int, str]] = {}
"""How each file system, by device number, gives a name to one of several writers: ``link`` or ``rename``."""


def is_staged(key: str) -> bool:
    """Return whether this is such a file, which is never read, and which the only writer here may remove."""
    return key.startswith(STAGED) and "/" not in key


def staged_name() -> str:
    """Return a new name for such a file."""
    return f"{STAGED}{uuid.uuid4().hex}"


class Draft:
    """A draft in an open directory. Its methods raise OSError and `UcpError`.

    ``at`` names the directory in messages.
    """

    def __init__(self, directory: int, at: str) -> None:
        self._directory = directory
        self._at = at
        self._offered: bytes | None = None
        self.name = staged_name()
        self._descriptor = opened(self.name, CREATE_FLAGS, within=directory)

    def made(self) -> float:
        """Return when the file was made, by the clock of the file system."""
        return os.fstat(self._descriptor).st_mtime

    def require_exclusive_names(self) -> None:
        """Find out how this file system gives a name to one of several writers; once for each file system.

        Raises:
            UcpError: ``UCP-E-STORE`` where it cannot.
        """
        device = os.fstat(self._directory).st_dev
        if device in _exclusive_by:
            return
        other = staged_name()
        try:
            self._link(other)
            how = "link"
        except OSError as reason:
            if reason.errno not in _NO_LINKS:
                raise
            self._rename(other)
            how, self.name = "rename", other
        else:
            with suppress(OSError):
                os.unlink(other, dir_fd=self._directory)
        _exclusive_by[device] = how

    def _link(self, name: str) -> None:
        """Give the draft a second name, unless there is such a file."""
        within = self._directory
        os.link(self.name, name, src_dir_fd=within, dst_dir_fd=within, follow_symlinks=False)

    def _rename(self, name: str) -> None:
        """Give the draft another name, unless there is such a file."""
        try:
            rename_exclusively(self.name, name, self._directory)
        except OSError as reason:
            if reason.errno not in _NO_LINKS:
                raise
            raise error(
                "UCP-E-STORE",
                "this file system has neither hard links nor renames that replace nothing, so that two writers "
                "could both commit here; save to another one, and copy the checkpoint",
                at=self._at,
            ) from reason

    def offer(self, data: bytes) -> Callable[[], None]:
        """Write what is to be published, at which nobody looks before, and return what makes it durable; once."""
        if self._offered is not None:
            raise ValueError("a draft has its bytes already")
        write_all(self._descriptor, [memoryview(data)], 0)
        self._offered = data
        return partial(os.fsync, self._descriptor)

    def publish(self, data: bytes, *, is_durable: bool) -> None:
        """Make the draft, with these bytes, the root document: it appears whole, once, or not at all.

        Whoever has offered them has made them durable too.

        Raises:
            OSError: ``EEXIST`` where there is another root document, ``ENOENT`` where somebody took the right away.
        """
        if self._offered != data:
            sync = self.offer(data)
            if is_durable:
                sync()
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        try:
            self._put_in_place()
        except (OSError, UcpError):
            # The answer tells less than the directory: what was asked for may be done, and the answer lost.
            if not self.is_published():
                raise

    def _put_in_place(self) -> None:
        if _exclusive_by.get(os.fstat(self._directory).st_dev) != "rename":
            try:
                self._link(ROOT_KEY)
            except OSError as reason:
                if reason.errno not in _NO_LINKS:
                    raise
            else:
                return
        self._rename(ROOT_KEY)

    def is_published(self) -> bool:
        """Return whether the root document that lies there is this one."""
        if self._offered is None:
            return False
        try:
            descriptor = opened(ROOT_KEY, READ_FLAGS, within=self._directory)
        except FileNotFoundError:
            return False
        try:
            return os.pread(descriptor, len(self._offered) + 1, 0) == self._offered
        finally:
            os.close(descriptor)

    def withdraw(self) -> None:
        """Remove the draft: it becomes nothing any more, whatever requests are still under way.

        Raises:
            OSError: ``ENOENT`` where somebody else has removed it, or it has become the root document by a rename.
        """
        os.unlink(self.name, dir_fd=self._directory)

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)
