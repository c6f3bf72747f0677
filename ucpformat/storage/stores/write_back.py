"""Files on their way to the disk: begun while others are still being written, and complete at a flush (SPEC 8)."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from ucpformat.storage.stores.local_io import sync

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["WriteBack"]

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
