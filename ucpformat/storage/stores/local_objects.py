"""Objects below a local directory, as readers ask for them (SPEC section 8): read, mapped, and kept open."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import sys
import threading
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import numpy as np

from ucpformat.errors import UcpError, error
from ucpformat.model.names import check_key
from ucpformat.storage.stores.joined_mapping import fit_pages, joined
from ucpformat.storage.stores.linking import LinkSource
from ucpformat.storage.stores.local_io import (
    MISSING,
    READ_FLAGS,
    is_ours_alone,
    opened,
    read_all,
    read_at,
    require_length,
    require_regular,
    translated,
)
from ucpformat.storage.stores.store import Calls

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ucpformat.storage.stores.store import StoredRange

__all__ = ["KeptFiles", "LocalObjects", "Mappings", "OpenFile", "populated"]

_OPEN_PACKS: Final = 64
_JUNCTION: Final = getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", -1)  # a link to a directory, on Windows
_MAPPED_BYTES: Final = 1 << 21  # less costs more to map than to copy
_PIECE_BYTES: Final = 1 << 23
_ONE_CALL: Final = 1 << 30  # the operating system gives at most 2 GiB at a time


class LocalObjects:
    """The reading half of a `LocalStore`. Methods do, and raise, as those of `Objects`.

    The directory itself may be reached through links, nothing below it.
    """

    # A block fits the processor's cache; alignment leaves gaps of up to 4096 bytes.
    calls = Calls(at_once=None, window=1 << 20, gap=4096)
    glimpse_bytes = 1 << 26  # whoever comes back from the system has to wait for other threads of Python

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._root = Path(path).absolute()
        self._plain_directories: set[Path] = {self._root}
        self._packs = KeptFiles(_OPEN_PACKS)
        self._mappings = Mappings()

    @property
    def url(self) -> str:
        """The directory."""
        return str(self._root)

    def _locate(self, key: str) -> Path:
        """Return path of a key whose directories are known to be directories and no links."""
        check_key(key, key or self.url)
        path = self._root.joinpath(*key.split("/"))
        unchecked = []
        directory = path.parent
        while directory not in self._plain_directories:
            unchecked.append(directory)
            directory = directory.parent
        for directory in reversed(unchecked):
            status = directory.lstat()
            mode = status.st_mode
            if stat.S_ISLNK(mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION:
                raise error("UCP-E-LINK", "a symbolic link is not followed inside a checkpoint", at=key)
            if not stat.S_ISDIR(mode):
                raise NotADirectoryError(directory)
            self._plain_directories.add(directory)
        return path

    def size(self, key: str) -> int | None:
        """Return length of an object in bytes, or None if there is none."""
        with translated(key):
            try:
                status = self._locate(key).lstat()
            except FileNotFoundError:
                return None
            except NotADirectoryError:
                if self._root.is_dir():
                    raise
                return None
            require_regular(status.st_mode, key)
            return status.st_size

    @contextmanager
    def _reading(self, key: str) -> Iterator[int]:
        """Provide a descriptor for reading; those of packs stay open, since many segments lie in one."""
        is_pack = key.startswith("packs/")
        if is_pack and (kept := self._packs.get(key)) is not None:
            yield kept
            return
        path = self._locate(key)
        if not hasattr(os, "O_NOFOLLOW"):
            require_regular(path.lstat().st_mode, key)
        file = OpenFile(opened(path, READ_FLAGS))
        try:
            require_regular(os.fstat(file.descriptor).st_mode, key)
            if is_pack:
                self._packs.offer(key, file)
            yield file.descriptor
        finally:
            if not self._packs.has(key, file):
                os.close(file.descriptor)

    def head(self, key: str, most: int) -> bytes | None:
        """Return the first ``most`` bytes of an object, or all where it has fewer; None if there is none."""
        with translated(key):
            try:
                with self._reading(key) as descriptor:
                    size = min(most, os.fstat(descriptor).st_size)
                    return self.read(key, 0, size) if size > _ONE_CALL else read_at(descriptor, size, 0)
            except FileNotFoundError:
                return None
            except NotADirectoryError:
                if self._root.is_dir():
                    raise
                return None

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of an object."""
        with translated(key), self._reading(key) as descriptor:
            # Before memory is taken for what may not be there (SPEC UCP-S-002).
            require_length(descriptor, stop, key)
            data = read_at(descriptor, min(stop - start, _ONE_CALL), start)
            if len(data) == stop - start:
                return data
            # The operating system gives at most 2 GiB at a time.
            rest = bytearray(stop - start - len(data))
            read_all(descriptor, [memoryview(rest)], start + len(data), key)
            return data + rest

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers, one after another, from byte ``start`` on."""
        with translated(key), self._reading(key) as descriptor:
            read_all(descriptor, buffers, start, key)

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield all bytes of an object, in order."""
        size = self.size(key)
        if size is None:
            raise error("UCP-E-MISSING", MISSING, at=key)
        for start in range(0, size, _PIECE_BYTES):
            yield self.read(key, start, min(start + _PIECE_BYTES, size))

    @contextmanager
    def _having(self, key: str, stop: int) -> Iterator[int]:
        """Provide a descriptor of an object of so many bytes at least."""
        with translated(key), self._reading(key) as descriptor:
            require_length(descriptor, stop, key)
            yield descriptor

    def mapped(self, key: str, start: int, stop: int) -> memoryview:
        """Return bytes ``[start, stop)`` of an object, mapped for as long as a view of any of them is kept."""
        with self._having(key, stop) as descriptor:
            return self._mappings.view(key, descriptor, start, stop, keep=key.startswith("packs/"))

    def mapped_together(self, parts: Sequence[StoredRange]) -> memoryview | None:
        """Return the parts mapped one behind the other, zeros for those without a key; None where they fit no pages."""
        return joined(parts, self._having) if fit_pages(parts) else None

    @contextmanager
    def glimpse(self, key: str, start: int, stop: int) -> Iterator[memoryview | None]:
        """Provide bytes ``[start, stop)`` of an object, mapped where they are worth it and surely there.

        Whoever cuts a file ends a process that looks at it. So one that others may write to is read.
        """
        data: memoryview | None = None
        with ExitStack() as stack:
            if stop - start >= _MAPPED_BYTES:
                with suppress(UcpError, OSError), self._reading(key) as descriptor:
                    if is_ours_alone(os.fstat(descriptor)):
                        view = self.mapped(key, start, stop)
                        stack.enter_context(populated(view))
                        data = view
            yield data

    def keys(self) -> Iterator[str]:
        """Yield keys of everything below the directory; links are not followed."""
        with translated(self.url):
            if not self._root.is_dir():
                return
            for directory, names, files in os.walk(self._root):
                base = Path(directory)
                for name in files + [name for name in names if (base / name).is_symlink()]:
                    yield (base / name).relative_to(self._root).as_posix()

    def lengths(self) -> Iterator[tuple[str, int | None]]:
        """Yield keys with the lengths of their files."""
        for key in self.keys():
            yield key, self.size(key)

    @contextmanager
    def sharable(self, key: str) -> Iterator[LinkSource]:
        """Provide an object that another store may link to, open."""
        with translated(key), self._reading(key) as descriptor:
            yield LinkSource(self._locate(key), descriptor)

    def close(self) -> None:
        """Close the descriptors of packs; silent, since nothing hangs on it."""
        self._mappings.forget()
        self._packs.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


@dataclass(eq=False, slots=True)
class OpenFile:
    """A descriptor, closed by its opener, or by `KeptFiles` once that has it."""

    descriptor: int


class KeptFiles:
    """At most ``most`` open files, by the key of the object, until `close`; any thread may call its methods."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: dict[str, OpenFile] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def get(self, key: str) -> int | None:
        """Return the descriptor that is kept for an object, if there is one."""
        with self._lock:
            file = None if self._is_closed else self._files.get(key)
        return None if file is None else file.descriptor

    def offer(self, key: str, file: OpenFile) -> None:
        """Keep a file, unless there are enough, or there is one of this key."""
        with self._lock:
            if not self._is_closed and len(self._files) < self._most:
                self._files.setdefault(key, file)

    def has(self, key: str, file: OpenFile) -> bool:
        """Say whether a file is kept, or was until `close`: its opener does not close it then.

        It is asked and not remembered, since a signal may come between `offer` and what is done next.
        """
        return self._files.get(key) is file

    def close(self) -> None:
        """Close all files; none is kept from now on, of threads that still read either."""
        with self._lock:
            files = () if self._is_closed else (*self._files.values(),)
            self._is_closed = True
        descriptors = iter([file.descriptor for file in files])
        is_done = False
        while not is_done:
            with suppress(OSError):
                # No line of Python is between two of them, where a signal could leave the rest open.
                deque(map(os.close, descriptors), maxlen=0)
                is_done = True


_POPULATE_READ: Final = 22
"""Linux 5.14 and newer (madvise(2)): pages are there afterwards, or it is said that they cannot be."""

_MOST_KEPT: Final = 64

# Not `mmap.madvise`, which keeps all of Python waiting for the disk.
_madvise: Final = (
    getattr(ctypes.CDLL(None, use_errno=True), "madvise", None) if sys.platform == "linux" else None
)


class Mappings:
    """Mapped files by key, each once, for as long as a view of any of their bytes is kept, or `forget` is not called.

    For several threads.
    """

    def __init__(self) -> None:
        self._found: WeakValueDictionary[str, mmap.mmap] = WeakValueDictionary()
        self._kept: dict[str, mmap.mmap] = {}
        self._lock = threading.Lock()

    def view(self, key: str, descriptor: int, start: int, stop: int, *, keep: bool) -> memoryview:
        """Return bytes ``[start, stop)`` of the file, which has them; ``keep``: it is soon asked for again."""
        with self._lock:
            found = self._found.get(key)
            if found is None or len(found) < stop:
                found = self._found[key] = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
                if keep and len(self._kept) < _MOST_KEPT:
                    self._kept[key] = found
        return memoryview(found)[start:stop]

    def forget(self) -> None:
        """Keep no more than the views do."""
        with self._lock:
            self._kept = {}


@contextmanager
def populated(view: memoryview) -> Iterator[None]:
    """Have the pages of a view of a mapped file in memory, and let go of them.

    Whoever looks at a page that cannot be read gets SIGBUS, which ends the process. Here it is an error; what is left
    is a file that is cut, or a page that is lost and cannot be read again, before it was looked at.

    Raises:
        OSError: a page cannot be read, or the system does not know how to say so.
    """
    first = np.frombuffer(view, np.uint8).ctypes.data
    before = first % mmap.PAGESIZE
    pages = first - before, before + view.nbytes
    _advise(*pages, _POPULATE_READ)
    try:
        yield
    finally:
        # Pages that are mapped count as memory of this process, although anybody may have them; locked ones stay.
        with suppress(OSError):
            _advise(*pages, mmap.MADV_DONTNEED)


def _advise(first: int, nbytes: int, advice: int) -> None:
    if _madvise is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _madvise(ctypes.c_void_p(first), ctypes.c_size_t(nbytes), ctypes.c_int(advice)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
