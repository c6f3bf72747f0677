"""Tasks in threads, in processes, and in executors that callers bring; workers that die."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conversion.engine.jobs import assert_same, make, rewrite
from ucpformat.conversion.contract.job import Job
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.conversion.engine.pool import (
    Pool,
    needed_for,
    open_pool,
    process_pool,
    run_tasks,
    workers_within,
)
from ucpformat.conversion.engine.writing import Engine
from ucpformat.errors import UcpError
from ucpformat.model.state import StateDocument


def submitted(executor: Executor, task: int) -> Future[int]:
    return executor.submit(int.__mul__, task, 2)


def test_no_more_than_the_window_is_under_way() -> None:
    begun: list[int] = []
    finished: list[int] = []

    def tasks() -> object:
        for number in range(100):
            assert len(begun) - len(finished) < 3
            begun.append(number)
            yield number

    with ThreadPoolExecutor(8) as executor:
        pool = Pool(executor, 3, is_remote=False)
        run_tasks(pool, tasks(), submitted, lambda task, _: finished.append(task))  # type: ignore[arg-type]
    assert sorted(finished) == list(range(100))


def test_after_a_failure_nothing_more_is_begun() -> None:
    begun: list[int] = []

    def submit(executor: Executor, task: int) -> Future[int]:
        begun.append(task)
        return executor.submit(int, "x" if task == 4 else "1")

    with ThreadPoolExecutor(1) as executor, pytest.raises(ValueError, match="invalid literal"):
        run_tasks(Pool(executor, 2, is_remote=False), range(1000), submit, lambda *_: None)
    assert len(begun) < 10


def kill_once(path: str, number: int) -> int:
    if number == 3:
        try:
            os.open(path, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return number
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def kill_always(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.distributed
@pytest.mark.xdist_group("converting")
def test_processes_that_die_are_made_again(tmp_path: Path) -> None:
    found: list[int] = []
    with process_pool(2) as pool:
        run_tasks(
            pool,
            range(8),
            lambda executor, task: executor.submit(kill_once, str(tmp_path / "killed"), task),
            lambda task, result: found.append(result),
        )
    assert sorted(found) == list(range(8))
    with process_pool(1) as pool, pytest.raises(UcpError, match="die again and again"):
        run_tasks(pool, range(8), lambda executor, task: executor.submit(kill_always, task), lambda *_: None)


@pytest.mark.distributed
@pytest.mark.xdist_group("converting")
def test_processes_write_what_threads_write(tmp_path: Path) -> None:
    source = tmp_path / "source.ucp"
    make(source)
    for storage in ("packed", "plain"):
        report = rewrite(source, tmp_path / storage, storage, pool="processes", workers=2)
        assert_same(source, tmp_path / storage)
        assert report.digest


def test_a_job_that_others_cannot_open_stays_in_threads(tmp_path: Path) -> None:
    job = Job([], [], StateDocument({}, {}, {}))
    with pytest.raises(UcpError, match="written by its threads alone"):
        Engine(job, tmp_path / "c", EngineOptions(pool="processes")).run()
    with pytest.raises(UcpError, match="cannot be resumed by another"):
        Engine(job, tmp_path / "c", EngineOptions(resume=True))


def test_missing_packages_are_named(tmp_path: Path) -> None:
    source = tmp_path / "source.ucp"
    make(source)
    for options, name in (({"dask": "tcp://127.0.0.1:1"}, "distributed"), ({"pool": "mpi"}, "mpi4py")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(__import__("sys").modules, name, None)
            patch.setitem(__import__("sys").modules, f"{name}.futures", None)
            with pytest.raises(UcpError, match=f"install the package `{name}`"):
                rewrite(source, tmp_path / "c", **options)


def test_no_more_tasks_are_sent_elsewhere_than_fit_into_memory() -> None:
    asked: list[int] = []

    def within(wanted: int) -> int:
        asked.append(wanted)
        return workers_within(3 * needed_for(1 << 20), wanted, 1 << 20)

    with ThreadPoolExecutor(1) as executor:
        for workers, window in ((1, 2), (8, 3)):
            options = EngineOptions(executor=executor, workers=workers)
            with open_pool(options, within, is_known=True, is_python_bound=False) as pool:
                assert (pool.window, pool.is_remote) == (window, True)
        assert asked == [2, 16]
        small = EngineOptions(executor=executor)
        with (
            pytest.raises(UcpError, match="UCP-E-LIMIT"),
            open_pool(
                small, lambda wanted: workers_within(1, wanted, 1), is_known=True, is_python_bound=False
            ),
        ):
            pass
