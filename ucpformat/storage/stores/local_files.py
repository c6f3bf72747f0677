"""What a local store keeps of its files: open descriptors, mappings, and what is on its way to the disk (SPEC 8)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import numpy as np

from ucpformat.storage.stores.local_io import sync

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["KeptFiles", "Mappings", "OpenFile", "WriteBack", "populated"]


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


_STEP: Final = 64 << 20  # less makes many small requests of it, more leaves the disk idle
_THREADS: Final = 4


class WriteBack:
    """Syncs files in the background, each time that ``step`` bytes more were written.

    A file is left to be synced from a write on until a sync begins that is after it. Safe to use from several threads.
    """

    def __init__(self, step: int | None = None) -> None:
        self._step = _STEP if step is None else step
        self._lock = threading.Lock()
        self._left: dict[Path, None] = {}
        self._waiting = 0
        self._executor: ThreadPoolExecutor | None = None
        self._begun: list[Future[None]] = []

    def wrote(self, path: Path, nbytes: int) -> None:
        """Note that ``nbytes`` more of a file were handed to the operating system; 0 for one that was made."""
        with self._lock:
            self._left[path] = None
            self._waiting += nbytes
            # One at a time: where the disk is slower than memory, the next one takes more.
            if self._waiting >= self._step and (not self._begun or self._begun[-1].done()):
                left, self._left, self._waiting = self._left, {}, 0
                self._begun.append(self._threads().submit(self._sync_early, left))

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="ucp-write-back")
        return self._executor

    def _sync_early(self, paths: Iterable[Path]) -> None:
        for path in paths:
            try:
                sync(path)
            except FileNotFoundError:  # removed, perhaps to be made again: a flush will see
                with self._lock:
                    self._left[path] = None

    def flush(self) -> None:
        """Return when all that was noted is on the disk.

        Raises:
            OSError: what any sync met, one in the background as well: the system reports a lost page only once. Any
                later flush raises it again.
        """
        with self._lock:
            # What began early may leave some to be done.
            begun, threads = [*self._begun], self._threads()
        wait(begun)
        with self._lock:
            left, self._left, self._waiting = self._left, {}, 0
            self._begun.extend(threads.submit(sync, path) for path in left)
            begun = [*self._begun]
        wait(begun)
        for future in begun:
            future.result()
        with self._lock:
            self._begun = self._begun[len(begun) :]

    def close(self) -> None:
        """Begin nothing more; what runs goes on."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
