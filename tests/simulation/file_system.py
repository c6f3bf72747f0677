"""A file system in memory with the calls that local stores make, each of them a point of a schedule."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

from tests.simulation.schedule import Schedule
from ucpformat.model.root import ROOT_KEY

__all__ = ["Faults", "FileSystem", "Inode", "Locks"]

Locks = Literal["all", "own host", "none"]
"""Whether a lock keeps out everybody, only who is on the same host (nobody, here), or is not known."""

DEVICE = 7


@dataclass
class Inode:
    """A file or directory."""

    number: int
    entries: dict[str, Inode] | None = None
    data: bytes = b""
    links: int = 1
    locked_by: int | None = None

    @property
    def names(self) -> dict[str, Inode]:
        """What is in a directory."""
        if self.entries is None:
            raise OSError(errno.ENOTDIR, "not a directory")
        return self.entries

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return self.entries is not None


@dataclass(frozen=True)
class Faults:
    """What may go wrong with operations that change names; by `Bounds.faults` at most."""

    kinds: tuple[str, ...] = ("error", "error, done", "Ctrl-C, done", "death")
    kinds_of_files: tuple[str, ...] = ("error", "error, done", "Ctrl-C, done", "death", "error, done later")
    """A directory's rename that is done when nobody expects it any more cannot be survived."""


@dataclass
class FileSystem:
    """Stands for the module `os` in the modules of local stores, with `fcntl` and `shutil` beside it."""

    schedule: Schedule
    locks: Locks = "none"
    links: bool = True
    exclusive_renames: bool = True
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        self._count = 0
        self._descriptors: dict[int, Inode] = {}
        self._handles: dict[int, Inode] = {}
        self._owners: dict[int, int] = {}
        self._next = 100
        self.top = self._make(is_directory=True)
        self.removed: list[bytes] = []
        """Contents of the root documents that were removed."""
        self.path = SimpleNamespace(
            join=os.path.join,
            samestat=os.path.samestat,
            realpath=lambda path: path if isinstance(path, str) else os.fspath(path),
            lexists=self._lexists,
            isdir=self._is_directory,
        )
        self.fcntl = SimpleNamespace(flock=self._flock, LOCK_EX=2, LOCK_NB=4, LOCK_UN=8)
        self.shutil = SimpleNamespace(rmtree=self._remove_tree)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("O_") or name in (
            "fspath",
            "strerror",
            "stat_result",
            "PathLike",
            "getpid",
            "fsencode",
            "R_OK",
        ):
            return getattr(os, name)
        raise AttributeError(f"the simulation knows no os.{name}")

    def _make(self, *, is_directory: bool) -> Inode:
        self._count += 1
        return Inode(self._count, {} if is_directory else None)

    # Names

    def _find(self, path: Any, within: int | None) -> tuple[Inode, str]:
        """The directory that a path's last component is in, and that component."""
        # A request that is done later speaks of the directory, whose descriptor may be closed by then.
        here = self.top if within is None else self._handles[within]
        *parents, name = [part for part in os.fspath(path).split("/") if part not in ("", ".")] or ["."]
        for part in parents:
            here = self._entry(here, part)
        if here.entries is None:
            raise OSError(errno.ENOTDIR, "not a directory", path)
        return here, name

    @staticmethod
    def _entry(directory: Inode, name: str) -> Inode:
        if directory.entries is None:
            raise OSError(errno.ENOTDIR, "not a directory", name)
        if name == ".":
            return directory
        found = directory.entries.get(name)
        if found is None:
            raise OSError(errno.ENOENT, "no such file", name)
        return found

    def at(self, path: str) -> Inode | None:
        """What lies at a path, without a point."""
        with suppress(OSError):
            return self._entry(*self._find(path, None))
        return None

    def _change(self, name: str, act: Callable[[], Any], *, is_file: bool = False) -> Any:
        """A change of names, that others may come before, and that may go wrong."""
        self.schedule.point(name)
        fault = self.schedule.fault(self.faults.kinds_of_files if is_file else self.faults.kinds)
        if fault == "death":
            for descriptor, owner in self._owners.items():
                if owner == self.schedule.current and descriptor in self._descriptors:
                    self._unlock(descriptor)
            self.schedule.kill()
        if fault == "error":
            raise OSError(errno.EIO, "injected")
        if fault == "error, done later":
            self.schedule.later(lambda: _quietly(act))
            raise OSError(errno.EIO, "no answer")
        result = act()
        self.schedule.done()
        if fault == "error, done":
            raise OSError(errno.EIO, "the answer was lost")
        if fault == "Ctrl-C, done":
            raise KeyboardInterrupt
        return result

    def _add(self, directory: Inode, name: str, inode: Inode) -> None:
        if directory.entries is None or not directory.links:
            raise OSError(errno.ENOENT, "the directory is gone", name)
        if name in directory.entries:
            raise OSError(errno.EEXIST, "exists", name)
        directory.entries[name] = inode

    def access(self, path: Any, mode: int) -> bool:
        """Return whether there is something: everybody may read it."""
        del mode
        parent, name = self._find(path, None)
        return name == "." or name in (parent.entries or {})

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """Make a directory."""

        def act() -> None:
            self._add(*self._find(path, dir_fd), self._make(is_directory=True))

        # Whether it is there already is seen, and is no change.
        parent, name = self._find(path, dir_fd)
        if parent.entries and name in parent.entries:
            self.schedule.point(f"mkdir {path}, which exists")
            self._add(*self._find(path, dir_fd), self._make(is_directory=True))
            return
        self._change(f"mkdir {path}", act)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Open or make a file or directory."""
        if not flags & os.O_CREAT:
            self.schedule.point(f"open {path}")
            found = self._entry(*self._find(path, dir_fd))
            if flags & os.O_DIRECTORY and not found.is_directory:
                raise OSError(errno.ENOTDIR, "not a directory", path)
            return self._opened(found)

        def act() -> int:
            made = self._make(is_directory=False)
            self._add(*self._find(path, dir_fd), made)
            return self._opened(made)

        result: int = self._change(f"make {_short(os.fspath(path))}", act, is_file=True)
        return result

    def _opened(self, inode: Inode) -> int:
        self._next += 1
        self._descriptors[self._next] = self._handles[self._next] = inode
        self._owners[self._next] = self.schedule.current
        return self._next

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        self._unlock(descriptor)
        del self._descriptors[descriptor]

    def listdir(self, descriptor: int) -> list[str]:
        """Names in an open directory."""
        self.schedule.point("list")
        return list(self._descriptors[descriptor].entries or ())

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
        """Look at what lies at a path."""
        self.schedule.point(f"look at {path}")
        return self._status(self._entry(*self._find(path, dir_fd)))

    def fstat(self, descriptor: int) -> Any:
        """Look at what is open."""
        return self._status(self._descriptors[descriptor])

    @staticmethod
    def _status(inode: Inode) -> Any:
        kind = stat.S_IFDIR if inode.is_directory else stat.S_IFREG
        return SimpleNamespace(
            st_dev=DEVICE, st_ino=inode.number, st_mode=kind, st_size=len(inode.data), st_mtime=0.0
        )

    def _lexists(self, path: Any) -> bool:
        self.schedule.point(f"look at {path}")
        return self.at(os.fspath(path)) is not None

    def _is_directory(self, path: Any) -> bool:
        found = self.at(os.fspath(path))
        return found is not None and found.is_directory

    def link(
        self,
        source: Any,
        target: str,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None,
        follow_symlinks: bool,
    ) -> None:
        """Give a file another name."""
        if not self.links:
            raise OSError(errno.EPERM, "no hard links")

        def act() -> None:
            found = self._entry(*self._find(source, src_dir_fd))
            self._add(*self._find(target, dst_dir_fd), found)
            found.links += 1

        self._change(f"link {_short(os.fspath(source))} {_short(target)}", act, is_file=True)

    def rename_exclusively(self, source: str, target: str, directory: int) -> None:
        """Stands for `local_io.rename_exclusively`."""
        if not self.exclusive_renames:
            raise OSError(errno.EINVAL, "no such renames")

        def act() -> None:
            parent, name = self._find(source, directory)
            found = self._entry(parent, name)
            self._add(parent, target, found)
            del parent.names[name]

        self._change(f"rename {_short(source)} {_short(target)}", act, is_file=True)

    def rename(self, source: Any, target: Any) -> None:
        """Rename a directory, to a name that is free or an empty directory's."""

        def act() -> None:
            parent, name = self._find(source, None)
            found = self._entry(parent, name)
            above, new = self._find(target, None)
            there = above.names.get(new)
            if there is not None:
                if there.entries:
                    raise OSError(errno.ENOTEMPTY, "not empty", target)
                there.links = 0
            del parent.names[name]
            above.names[new] = found

        self._change(f"rename {source} {target}", act)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Remove a name of a file."""

        def act() -> None:
            parent, name = self._find(path, dir_fd)
            found = self._entry(parent, name)
            del parent.names[name]
            found.links -= 1
            if name == ROOT_KEY:
                self.removed.append(found.data)

        self._change(f"unlink {_short(os.fspath(path))}", act, is_file=True)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Remove an empty directory."""

        def act() -> None:
            parent, name = self._find(path, dir_fd)
            found = self._entry(parent, name)
            if found.entries:
                raise OSError(errno.ENOTEMPTY, "not empty", path)
            del parent.names[name]
            found.links = 0

        self._change(f"rmdir {path}", act)

    def _remove_tree(self, path: Any, ignore_errors: bool = False) -> None:
        """What is staged first, which is the worst order, then the rest."""
        try:
            self.schedule.point(f"remove the drafts of {path}")
            tree = self._entry(*self._find(path, None))
            for name in [name for name in tree.entries or () if name.startswith(".")]:
                tree.names.pop(name).links -= 1
            self.schedule.done()
            self.schedule.point(f"remove {path}")
            parent, name = self._find(path, None)
            tree = self._entry(parent, name)
            tree.names.clear()
            tree.links = 0
            del parent.names[name]
            self.schedule.done()
        except OSError:
            if not ignore_errors:
                raise

    # Contents

    def pwritev(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Write; nobody reads what has no name yet, so that this is no point."""
        data = b"".join(buffers)
        inode = self._descriptors[descriptor]
        inode.data = inode.data[:offset] + data + inode.data[offset + len(data) :]
        return len(data)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read."""
        return self._descriptors[descriptor].data[offset : offset + size]

    def fsync(self, descriptor: int) -> None:
        """What is not lost by death alone needs no sync here; power cuts are for other tests."""

    def _flock(self, descriptor: int, operation: int) -> None:
        if self.locks == "none":
            raise OSError(errno.ENOSYS, "no locks")
        if self.locks == "own host":
            return
        inode = self._descriptors[descriptor]
        if operation == self.fcntl.LOCK_UN:
            self._unlock(descriptor)
            return
        self.schedule.point("lock")
        if inode.locked_by is not None:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked")
        inode.locked_by = descriptor

    def _unlock(self, descriptor: int) -> None:
        inode = self._descriptors[descriptor]
        if inode.locked_by == descriptor:
            inode.locked_by = None


def _quietly(act: Callable[[], Any]) -> None:
    with suppress(OSError):
        act()


def _short(name: str) -> str:
    return name[:16] if name.startswith(".") else name
