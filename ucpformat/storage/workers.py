"""How much work goes to how many threads, where a caller does not say, and how much of it to one call."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

__all__ = [
    "ForkedExecutor",
    "ForkedLock",
    "call_edges",
    "in_parallel",
    "task_groups",
    "worker_count",
    "writer_count",
]

_T = TypeVar("_T")


def worker_count(wanted: int | None, at_once: int | None = None) -> int:
    """Return ``wanted``, or ``at_once``, or one thread per core and at most 8: more wait for the same disk."""
    return wanted or at_once or min(8, os.cpu_count() or 1)


def writer_count(wanted: int | None, *, waits: bool) -> int:
    """Do as `worker_count`; where writers wait for the disk, another uses the processor meanwhile."""
    return wanted or worker_count(None) + (1 if waits else 0)


def task_groups(
    items: Iterable[_T], size: Callable[[_T], int], *, nbytes: int, most: int
) -> Iterator[list[_T]]:
    """Yield items in order, so many to a task that their sizes come to ``nbytes``, or ``most``: tasks cost as well."""
    group: list[_T] = []
    held = 0
    for item in items:
        group.append(item)
        held += size(item)
        if held >= nbytes or len(group) == most:
            yield group
            group, held = [], 0
    if group:
        yield group


def call_edges(
    objects: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    *,
    gap: int,
    nbytes: int,
    most: int,
) -> Iterator[tuple[int, int]]:
    """Yield, call by call, its first item and the one behind its last; items are sorted by object and start.

    A call reads ``most`` items of one object at most, none of which begins within another. They span ``nbytes`` at
    most, unless it is one item, with gaps of at most ``gap`` bytes.
    """
    between = starts[1:] - stops[:-1]
    apart = (objects[1:] != objects[:-1]) | (between < 0) | (between > gap)
    begins, ends = starts.tolist(), stops.tolist()
    first = 0
    for edge in (*(np.flatnonzero(apart) + 1).tolist(), len(ends)):
        while first < edge:
            # Up to the edge, what begins later ends later.
            last = bisect_right(ends, begins[first] + nbytes, first + 1, min(edge, first + most))
            yield first, last
            first = last


def in_parallel(tasks: Iterable[Callable[[], None]], executor: Executor, workers: int) -> None:
    """Do tasks by so many threads, this one among them, each of which takes the next.

    Tasks may be made as they are taken. Nobody begins another once one has failed, and then, or when all are done, this
    returns: what the first in order to fail has raised is raised here.
    """
    upcoming = iter(tasks)
    first, second = next(upcoming, None), next(upcoming, None)
    if first is None:
        return
    if second is None:
        first()  # as for a slice of one chunk
        return
    turns = _Turns(chain((first, second), upcoming), executor, workers)
    turns.work()
    # Who has not begun, where others keep the executor busy, finds nothing to do.
    wait([helper for helper in turns.helpers if not helper.cancel()])
    if turns.failures:
        raise min(turns.failures, key=itemgetter(0))[1]


class ForkedLock:
    """A lock that its holder may take again; free in a process that was forked while another thread held it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _renewed.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forget, in a process that was forked, what its parent's threads hold."""
        self._lock = threading.RLock()


class ForkedExecutor(Executor):
    """Threads that are made when they are first needed, and anew in a process that was forked: they are not there."""

    def __init__(self, workers: int, *, name: str) -> None:
        self._workers = workers
        self._name = name
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = False
        _renewed.add(self)

    def submit(self, task: Callable[..., _T], /, *arguments: Any, **options: Any) -> Future[_T]:
        """Do as `Executor.submit`."""
        with self._lock:
            if self._threads is None:
                if self._is_closed:
                    raise RuntimeError("cannot schedule new futures after shutdown")
                self._threads = ThreadPoolExecutor(self._workers, thread_name_prefix=self._name)
            return self._threads.submit(task, *arguments, **options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do as `Executor.shutdown`."""
        with self._lock:
            self._is_closed = True
            threads = self._threads
        if threads is not None:
            threads.shutdown(wait, cancel_futures=cancel_futures)

    def renew(self) -> None:
        """Forget, in a process that was forked, what its parent's threads hold."""
        self._lock = threading.Lock()
        self._threads = None


_renewed: WeakSet[ForkedLock | ForkedExecutor] = WeakSet()


def _renew() -> None:
    for one in [*_renewed]:
        one.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class _Turns:
    """One call of `in_parallel`: a class, since functions that refer to one another would outlive the call."""

    def __init__(self, tasks: Iterable[Callable[[], None]], executor: Executor, workers: int) -> None:
        self._executor = executor
        self._workers = workers
        self._lock = threading.Lock()
        self._numbered = enumerate(tasks)
        self._upcoming = next(self._numbered, None)
        self.helpers: list[Future[None]] = []
        self.failures: list[tuple[int, BaseException]] = []

    def work(self) -> None:
        """Take and do one task after another, by more threads while there are more tasks."""
        number = 0
        try:
            while (taken := self._take()) is not None:
                number, task = taken
                task()
        except BaseException as failure:
            with self._lock:
                self.failures.append((number, failure))

    def _take(self) -> tuple[int, Callable[[], None]] | None:
        with self._lock:
            taken = None if self.failures else self._upcoming
            if taken is not None:
                self._upcoming = next(self._numbered, None)
                if self._upcoming is not None and len(self.helpers) < self._workers - 1:
                    self.helpers.append(self._executor.submit(self.work))
            return taken
