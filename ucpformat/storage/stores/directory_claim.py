"""The directory of a checkpoint: who may commit in it, and how others take that right away (SPEC section 8.1).

An attempt may commit as long as its draft exists. Whoever wants to remove an attempt's objects condemns the directory,
so that no attempt begins in it, and removes all drafts. If there is no root document then, there never will be one.
None of this needs locks: the lock on the directory only refuses a second writer early.

This module and `draft` call nothing of the system but `os`, `fcntl` and `shutil`, which the simulation replaces.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.errors import UcpError, error
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.stores.draft import STAGED, Draft, is_staged
from ucpformat.storage.stores.local_io import (
    CREATE_FLAGS,
    DIRECTORY_FLAGS,
    Identity,
    identity_of,
    opened,
    require_commits,
    sync,
)
from ucpformat.storage.stores.store import PREFIXES

try:
    import fcntl
except ImportError:  # Windows, where no directory is held
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["CONDEMNED", "DirectoryClaim"]

CONDEMNED: Final = f"{STAGED}condemned"
"""The file that says that a directory is being cleared: no attempt begins in it."""

_TRIES: Final = 5
_LEFT: Final = 3600.0
"""Seconds. Clearing takes as long as a listing and a rename; what has stood for so long has been left."""


class DirectoryClaim:
    """The hold of one store on the directory of a checkpoint; none at first.

    Its methods raise `UcpError`, ``UCP-E-EXISTS`` where somebody or something else is there, and OSError.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held = -1
        self._is_locked = False
        self._draft: Draft | None = None
        self._process = 0
        self._directories: dict[str, None] = {}
        """Keys of directories whose entries are to be made durable; that of the checkpoint's own is empty."""

    @property
    def directory(self) -> int | None:
        """A descriptor of the directory that is held, for ``dir_fd``; None where none is."""
        return self._held if self._held >= 0 else None

    @property
    def draft(self) -> str | None:
        """The name of this attempt's draft, if it has one."""
        return None if self._draft is None else self._draft.name

    def path_of(self, key: str) -> tuple[str, int | None]:
        """Return the path of a key, and the directory, held open wherever it is moved, that it begins at."""
        return (key or ".", self._held) if self._held >= 0 else (os.path.join(self._root, key), None)

    def make_directories(self, key: str) -> None:
        """Make the directories that a key lies in."""
        parent = key.rpartition("/")[0]
        if parent in self._directories:
            return
        names = parent.split("/") if parent else []
        for count in range(len(names) + 1):
            directory = "/".join(names[:count])
            if directory in self._directories:
                continue
            path, within = self.path_of(directory)
            if directory or within is None:
                with suppress(FileExistsError):
                    os.mkdir(path, dir_fd=within)
            self._directories[directory] = None

    def forget_directory(self, key: str) -> None:
        """Note that a directory was removed."""
        self._directories.pop(key, None)

    def syncs(self, root: bytes | None) -> list[Callable[[], None]]:
        """Return what makes directories durable that were made here, the checkpoint's, and the draft with ``root``."""
        found: list[Callable[[], None]] = [partial(sync, *self.path_of(key)) for key in self._directories]
        if root is not None:
            if self._draft is None:
                raise self._taken_over()
            found.append(self._draft.offer(root))
        return found

    def remove(self, created: Mapping[str, Identity]) -> None:
        """Remove files, but for those that are others by now, and directories that become empty, this one too."""
        directories: dict[str, None] = {}
        for key, identity in created.items():
            path, within = self.path_of(key)
            with suppress(OSError):
                if identity_of(os.stat(path, dir_fd=within, follow_symlinks=False)) == identity:
                    os.unlink(path, dir_fd=within)
            while key := key.rpartition("/")[0]:
                directories[key] = None
        for key in sorted(directories, key=lambda key: -key.count("/")):
            path, within = self.path_of(key)
            with suppress(OSError):
                os.rmdir(path, dir_fd=within)
        if self.is_mine():
            with suppress(OSError):
                os.rmdir(self._root)

    def join(self) -> None:
        """Hold on to the directory that another process has made, without its lock and without a draft."""
        self._open(DIRECTORY_FLAGS)

    def hold(self) -> None:
        """Hold on to a directory, which may not be a link, and lock it."""
        self._open(DIRECTORY_FLAGS | os.O_NOFOLLOW)
        self._lock()

    def begin(self) -> None:
        """Begin an attempt in an empty directory; what one that failed has left is moved aside and removed."""
        self._enter(self._is_empty)

    def resume(self) -> None:
        """Begin an attempt that goes on with what an earlier one has left, which cannot commit any more."""
        self._enter(self._is_inherited)

    def _open(self, flags: int) -> None:
        self.release()
        require_commits(str(self._root))
        self._held = opened(self._root, flags)
        self._directories = {"": None}
        self._process = os.getpid()

    def _enter(self, is_ready: Callable[[], bool]) -> None:
        """Open the directory, made if need be, lock it, make a draft, and see whether it is ready; else once more."""
        is_made = False
        try:
            for _ in range(_TRIES):
                with suppress(FileExistsError):
                    os.mkdir(self._root)
                    is_made = True
                # What is moved away or removed meanwhile is no longer found.
                with suppress(FileNotFoundError):
                    self._open_made()
                    self._lock()
                    self._draft = Draft(self._held, str(self._root))
                    self._draft.require_exclusive_names()
                    if is_ready() and self.is_mine():
                        return
            raise self._refusal("other writers keep beginning here; choose another path")
        except BaseException:
            self.release()
            if is_made:
                with suppress(OSError):  # where it is empty
                    os.rmdir(self._root)
            raise

    def _open_made(self) -> None:
        try:
            self._open(DIRECTORY_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.lexists(self._root):
                raise self._refusal("the destination is a file; choose another path") from None
            raise

    def _lock(self) -> None:
        """Lock the directory until `release`, so that other writers are refused before they write."""
        self._is_locked = False
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._is_locked = True
        except BlockingIOError:
            raise self._refusal("another writer is at work here; choose another path") from None
        except OSError:
            pass  # a medium without locks

    def _is_empty(self) -> bool:
        """Return whether nothing but the draft lies in the directory; what else does is removed with the directory."""
        if self._others():
            if self.condemn():
                root = os.path.realpath(self._root)
                aside = self.move_aside()
                with suppress(FileExistsError):
                    os.mkdir(root)  # a link may lead to it, and to nothing otherwise
                shutil.rmtree(aside, ignore_errors=True)
            return False
        return True

    def _is_inherited(self) -> bool:
        """Return whether this draft is the only one in the directory; others are removed."""
        if CONDEMNED in self._others():
            raise self._being_cleared()
        self._remove_drafts()
        self._others()
        return True

    def _others(self) -> list[str]:
        """Return what lies in the directory beside the draft, which is no checkpoint and nothing foreign."""
        names = [name for name in os.listdir(self._held) if name != self.draft]
        if ROOT_KEY in names:
            raise self._committed()
        rooms = {prefix.rstrip("/") for prefix in PREFIXES}
        foreign = [name for name in names if name not in rooms and not is_staged(name)]
        if foreign:
            raise self._refusal(f"{foreign[0]!r} is no part of a checkpoint; choose an empty directory")
        return names

    def _refusal(self, message: str) -> UcpError:
        return error("UCP-E-EXISTS", message, at=str(self._root))

    def _committed(self) -> UcpError:
        return self._refusal(
            "a committed checkpoint is there and is never overwritten; choose another path or remove it"
        )

    def _being_cleared(self) -> UcpError:
        return self._refusal(
            "another process is clearing this directory, or died while it did; remove it, or choose another path"
        )

    def has_root(self) -> bool:
        """Return whether there is a root document in the directory that is held."""
        try:
            os.stat(ROOT_KEY, dir_fd=self._held, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _remove_drafts(self) -> None:
        """Take the right to commit from all other attempts in the directory."""
        for name in os.listdir(self._held):
            if is_staged(name) and name not in (CONDEMNED, self.draft):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._held)

    def condemn(self) -> bool:
        """Make sure that nothing is committed in the directory; False where another process did, and removes it.

        Raises:
            UcpError: ``UCP-E-EXISTS`` where something is committed, or another process is doing the same.
        """
        try:
            os.close(opened(CONDEMNED, CREATE_FLAGS, within=self._held))
        except FileExistsError:
            if not self._is_left():
                raise self._being_cleared() from None
        try:
            if not self.is_mine():
                return False
            self._give_up_draft()
            self._remove_drafts()
            if self.has_root():
                raise self._committed()
        except BaseException:
            self._acquit()
            raise
        return True

    def _is_left(self) -> bool:
        """Return whether the process that has condemned the directory is dead, as far as can be known.

        It had locked the directory for the moment that clearing takes. Locks may be each host's own, so that the lock
        alone does not tell; the time is that of the file system, between two files of it.
        """
        if not self._is_locked or self._draft is None:
            return False
        age = self._draft.made() - os.stat(CONDEMNED, dir_fd=self._held, follow_symlinks=False).st_mtime
        return age > _LEFT

    def _acquit(self) -> None:
        with suppress(OSError):
            os.unlink(CONDEMNED, dir_fd=self._held)

    def move_aside(self) -> Path:
        """Move the condemned directory out of the way; attempts that begin meanwhile do so in one of their own."""
        root = Path(os.path.realpath(self._root))
        aside = root.with_name(f"{root.name}.debris-{uuid.uuid4().hex[:8]}")
        try:
            os.rename(root, aside)
        except BaseException:
            self._acquit()
            raise
        # Once more: what a network file system lists may have been from before.
        if self.has_root():
            os.rename(aside, root)  # replaces nothing but an empty directory
            self._acquit()
            raise self._committed()
        return aside

    def remove_root(self) -> None:
        """Remove the root document, durably, whichever writer committed it."""
        with suppress(FileNotFoundError):
            os.unlink(ROOT_KEY, dir_fd=self._held)
        os.fsync(self._held)

    def remove_all(self) -> None:
        """Remove the directory, in which nothing is committed.

        Raises:
            UcpError: as `condemn`; nothing is removed then.
        """
        if self.condemn():
            aside = self.move_aside()
            sync(aside.parent)
            shutil.rmtree(aside)

    def publish(self, data: bytes, *, is_durable: bool) -> None:
        """Make the draft, with these bytes, the root document: it appears whole, once, or not at all.

        Raises:
            UcpError: ``UCP-E-EXISTS`` where somebody else has committed, or has taken this place over.
        """
        if self._draft is None:
            raise self._taken_over()
        try:
            self._draft.publish(data, is_durable=is_durable)
        except FileNotFoundError as reason:
            raise self._taken_over() from reason
        self.require_mine()
        with suppress(OSError):
            self._draft.withdraw()
            self._draft = None
        if is_durable:
            try:
                os.fsync(self._held)
            except OSError as reason:
                message = f"the checkpoint is committed, but might not survive a power cut: {reason.strerror}"
                raise error("UCP-E-STORE", message, at=ROOT_KEY) from reason

    def withdraw(self) -> bool:
        """Give up the right to commit; return whether certainly nothing is committed here, nor will be by this attempt.

        Where somebody else has taken the right away, what lies here is theirs to remove.
        """
        try:
            if self._draft is not None:
                if self._process != os.getpid():
                    return False  # it is the process's from which this one was forked
                self._draft.withdraw()
                self._give_up_draft()
            return not self.has_root() if self._held >= 0 else not os.path.lexists(self._root / ROOT_KEY)
        except OSError:
            return False

    def _give_up_draft(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.close()
            with suppress(OSError):
                draft.withdraw()

    def require_mine(self) -> None:
        """Raise if the directory was moved away, and perhaps another one begun."""
        if not self.is_mine():
            raise self._taken_over()

    def _taken_over(self) -> UcpError:
        return self._refusal("another writer has taken this place over")

    def is_mine(self) -> bool:
        """Return whether the directory is still the one that is held, if any is."""
        try:
            return self._held < 0 or os.path.samestat(os.fstat(self._held), os.stat(self._root))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let go, and with that of the right to commit; silent, since nothing hangs on it."""
        held, self._held = self._held, -1
        if held < 0:
            return
        try:
            # A process that was forked meanwhile has copies of the descriptors, and nothing else of this.
            if self._process == os.getpid():
                self._give_up_draft()
                # Such processes share the lock: closing alone would leave it to them.
                with suppress(OSError):
                    fcntl.flock(held, fcntl.LOCK_UN)
        finally:  # also where a signal's handler raises
            with suppress(OSError):
                os.close(held)
