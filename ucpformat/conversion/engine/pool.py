"""Where tasks run: threads, processes, a dask cluster, MPI, or any executor that a caller brings; in bounded memory."""

from __future__ import annotations

import multiprocessing
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from ucpformat.errors import error
from ucpformat.storage.workers import worker_count, writer_count

if TYPE_CHECKING:
    from ucpformat.conversion.engine.options import EngineOptions

__all__ = [
    "MemoryBudget",
    "Pool",
    "PoolKind",
    "needed_for",
    "open_pool",
    "process_pool",
    "run_tasks",
    "thread_pool",
    "workers_within",
]

PoolKind = Literal["threads", "processes", "mpi"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_ATTEMPTS: Final = 3
_SPAN_BYTES: Final = 36 << 20
"""What a strided read holds (`tensor_files.byte_source`), small slots that wait, and change."""
Within = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers: ``window`` tasks are under way at most. ``is_remote``: tasks are pickled, and run in other processes.

    ``renew`` makes the workers again where one took all others with it when it died; None where that is not ours.
    """

    executor: Executor
    window: int
    is_remote: bool
    renew: Callable[[], Executor] | None = None


@contextmanager
def thread_pool(workers: int) -> Iterator[Pool]:
    """Provide threads of this process."""
    executor = ThreadPoolExecutor(workers, thread_name_prefix="ucp-convert")
    try:
        yield Pool(executor, workers, is_remote=False)
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def process_pool(workers: int) -> Iterator[Pool]:
    """Provide processes of this machine, which open the source for themselves."""
    made: list[Executor] = []

    def make() -> Executor:
        # Never by fork: this process has threads.
        made.append(ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")))
        return made[-1]

    try:
        yield Pool(make(), workers + 1, is_remote=True, renew=make)
    finally:
        for executor in made:
            executor.shutdown(cancel_futures=True)


@contextmanager
def dask_pool(address: str, workers: int | None, within: Within) -> Iterator[Pool]:
    """Provide the workers of a dask cluster, by the address of its scheduler; they must see source and destination."""
    try:
        from distributed import Client
    except ImportError:
        raise error("UCP-E-STORE", "dask is missing: install the package `distributed`") from None
    try:
        client = Client(address)
    except Exception as problem:
        raise error("UCP-E-STORE", f"no dask scheduler answers: {problem}", at=address) from problem
    try:
        threads = sum(client.ncores().values())
        # A worker that dies gives its tasks back to the scheduler, which asks others.
        yield _elsewhere(client.get_executor(), workers or threads, within)
    finally:
        client.close()


@contextmanager
def mpi_pool(workers: int | None, within: Within) -> Iterator[Pool]:
    """Provide MPI ranks: those of ``mpiexec -n N python -m mpi4py.futures -m ucpformat ...``, or new ones."""
    try:
        from mpi4py.futures import MPIPoolExecutor
    except ImportError:
        raise error("UCP-E-STORE", "MPI is missing: install the package `mpi4py`") from None
    with MPIPoolExecutor(max_workers=workers) as executor:
        yield _elsewhere(executor, executor.num_workers, within)


def _elsewhere(executor: Executor, workers: int, within: Within) -> Pool:
    """Return workers that we do not make: no more tasks are sent out than may hold memory all at once."""
    return Pool(executor, within(2 * max(workers, 1)), is_remote=True)


def open_pool(
    options: EngineOptions, within: Within, *, is_known: bool, is_python_bound: bool
) -> AbstractContextManager[Pool]:
    """Return the pool that the options ask for.

    ``within`` says how many of so many tasks may be under way at once (`workers_within`); ``is_known``, whether other
    processes can come to the job; ``is_python_bound``, whether threads would wait for one another.

    Raises:
        UcpError: ``UCP-E-STORE`` for other processes where they know nothing of the job, and what ``within`` raises.
    """
    wanted = worker_count(options.workers)
    kind = options.pool or ("processes" if is_python_bound and is_known and wanted > 1 else "threads")
    if options.dask is None and options.executor is None and kind == "threads":
        return thread_pool(within(writer_count(options.workers, waits=options.durability == "fsync")))
    if not is_known:
        raise error("UCP-E-STORE", "a job that only this process knows is written by its threads alone")
    if options.executor is not None:
        return nullcontext(_elsewhere(options.executor, wanted, within))
    if options.dask is not None:
        return dask_pool(options.dask, options.workers, within)
    if kind == "mpi":
        return mpi_pool(options.workers, within)
    return process_pool(within(wanted))


def run_tasks(
    pool: Pool,
    tasks: Iterable[_Task],
    submit: Callable[[Executor, _Task], Future[_Result]],
    done: Callable[[_Task, _Result], None],
) -> None:
    """Submit tasks, never more than the window of the pool, and hand on what each returns, in any order.

    After a failure nothing more is begun, what runs is waited for, and the first failure is raised. Where workers die
    with all others, they are made again, and what was under way is done again.

    Raises:
        UcpError: what tasks raise; ``UCP-E-RANK`` where workers die again and again.
    """
    executor = pool.executor
    deaths = 0
    again: deque[_Task] = deque()
    source = iter(tasks)
    running: dict[Future[_Result], _Task] = {}
    try:
        while True:
            lost = _fill(pool, executor, running, again, source, submit)
            if not running and not lost:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                task = running.pop(future)
                try:
                    result = future.result()
                except BrokenExecutor:
                    lost.append(task)
                else:
                    deaths = 0
                    done(task, result)
            if lost:
                deaths += 1
                if pool.renew is None or deaths > _ATTEMPTS:
                    raise error(
                        "UCP-E-RANK",
                        "workers die again and again, perhaps for lack of memory; try fewer (--workers)",
                    )
                again.extend(lost)
                again.extend(running.values())
                running.clear()
                executor = pool.renew()
    except BaseException:
        if not pool.is_remote:
            for future in running:
                future.cancel()
        # Elsewhere a task that is cancelled may go on all the same: nothing is cleared away under its hands.
        wait(running)
        raise


def _fill(
    pool: Pool,
    executor: Executor,
    running: dict[Future[_Result], _Task],
    again: deque[_Task],
    source: Iterator[_Task],
    submit: Callable[[Executor, _Task], Future[_Result]],
) -> list[_Task]:
    """Begin tasks up to the window; return the one that a broken executor refused, if any."""
    while len(running) < pool.window:
        task = again.popleft() if again else next(source, None)
        if task is None:
            break
        try:
            running[submit(executor, task)] = task
        except BrokenExecutor:
            return [task]
    return []


def needed_for(chunk_bytes: int, upload_bytes: int = 0) -> int:
    """Return bytes that copying one chunk may take: its array, one to cast or compare, one to compress, and a span.

    ``upload_bytes`` as the `Store` that it goes to has them.
    """
    return 3 * chunk_bytes + _SPAN_BYTES + upload_bytes


def workers_within(memory: int, wanted: int, chunk_bytes: int, upload_bytes: int = 0) -> int:
    """Return how many workers may each hold a chunk, and have some on its way, at once.

    Raises:
        UcpError: ``UCP-E-LIMIT`` where not one may.
    """
    need = needed_for(chunk_bytes, upload_bytes)
    if memory < need:
        uploads = f", and uploads {upload_bytes} of them" if upload_bytes else ""
        raise error(
            "UCP-E-LIMIT",
            f"chunks of {chunk_bytes} bytes take {need} bytes of memory{uploads}, and {memory} are allowed; "
            f"give --memory {-(-need >> 20)}M or more",
        )
    return max(1, min(wanted, memory // need))


class MemoryBudget:
    """Bytes that the threads of a process may hold together; ``peak`` is the most they did."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.peak = 0
        self._held = 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, nbytes: int) -> Iterator[None]:
        """Wait until so many bytes are free, and hold them."""
        nbytes = min(nbytes, self.limit)
        with self._changed:
            self._changed.wait_for(lambda: self._held + nbytes <= self.limit)
            self._held += nbytes
            self.peak = max(self.peak, self._held)
        try:
            yield
        finally:
            with self._changed:
                self._held -= nbytes
                self._changed.notify_all()
