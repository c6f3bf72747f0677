"""Launching the gloo processes in which tests run the real torch, and ending them.

A test that needs several ranks has a module of its own whose ``main`` is the worker; `launch` runs it in one process
per rank with ``RANK``, ``WORLD_SIZE`` and ``UCP_RENDEZVOUS`` (a file URL: no port, no network) in its environment, and
the worker uses `join` and `leave`. To import torch and what it brings takes seconds, what a rank then does a fraction
of one: one process imports torch for all tests, a fork of it the worker's module, and the ranks are forks of that.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import itertools
import json
import os
import pkgutil
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).parents[1]
PRELOADED = (
    "torch",
    "torch._dynamo",  # by optimizers, when they are made
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.profiler",
    "torch.utils.serialization",
    "zarr",
    "ucpformat.declared",
    "ucpformat.distributed",
    "ucpformat.manager",
    "ucpformat.reader",
    "ucpformat.state_dict",
    "ucpformat.storage",
    "ucpformat.tensor_files",
    "ucpformat.validation",
    "ucpformat.writer",
    "ucpformat.zarr_view",
)
"""What most ranks import, with all modules of packages of the library: the process that forks them has it."""


def join() -> tuple[int, int]:
    """Join the gloo group of `launch` with one thread per process; return the rank and the world size."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["UCP_RENDEZVOUS"], rank=rank, world_size=world)
    return rank, world


def leave() -> NoReturn:
    """End a process of a group with status 0, but without the interpreter's teardown.

    Gloo's worker threads outlive ``destroy_process_group`` while a mesh or FSDP module holds the group, and one
    that lets go of a tensor during the teardown aborts the process (ProcessGroupGloo.cpp, `AsyncWork`).
    """
    import torch.distributed as dist

    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def die_at(point: int, calls: Iterable[tuple[object, Sequence[str]]]) -> None:
    """Kill this process, by SIGKILL, when it is about to make the ``point``-th of ``calls``, by owner."""
    count = itertools.count(1)
    lock = threading.Lock()

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            with lock:
                if next(count) == point:
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapper

    for owner, names in calls:
        for name in names:
            setattr(owner, name, counted(getattr(owner, name)))


class Ranks(NamedTuple):
    """So many ranks of one job, and the arguments of their worker."""

    arguments: Sequence[str]
    world: int


def launch(module: str, arguments: Sequence[str], world: int, timeout: float = 300.0) -> None:
    """Run ``module`` with ``arguments`` as ``world`` ranks; raise `RuntimeError` with the logs where one fails."""
    launch_in_turn(module, [Ranks(arguments, world)], timeout)


def launch_in_turn(module: str, jobs: Sequence[Ranks], timeout: float = 300.0) -> None:
    """Run one job after another as `launch` does, with one import of the module for all of them.

    ``UCP_PATIENCE=10`` waits ten times as long for ranks that hang, on a machine that has much else to do.
    """
    timeout *= float(os.environ.get("UCP_PATIENCE", "1"))
    with tempfile.TemporaryDirectory() as scratch:
        code = _fork_server().run(_Request(module, scratch, tuple(jobs), dict(os.environ)), timeout)
        if code != 0:
            outcome = f"not done after {timeout} s" if code is None else f"ended with status {code}"
            logs = sorted(Path(scratch).glob("*.log"))
            tails = [f"-- {log.stem}:\n{log.read_text(errors='replace')[-4000:]}" for log in logs]
            raise RuntimeError("\n".join([f"{module}: {outcome}", *tails]))


class _Request(NamedTuple):
    """What `launch` asks a fork server for."""

    module: str
    scratch: str
    jobs: tuple[Ranks, ...]
    environment: dict[str, str]


class _ForkServer:
    """A process that has imported torch, and forks whatever needs it; one for all tests of a worker of pytest."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        atexit.register(self._end)

    def run(self, request: _Request, timeout: float) -> int | None:
        """Fork a process that runs the ranks; return its status, or None where it was killed after ``timeout`` s."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        group = self._reply()
        is_done = False
        try:
            is_done = bool(select.select([self._process.stdout], [], [], timeout)[0])
        finally:
            if not is_done:
                os.killpg(group, signal.SIGKILL)
            status = self._reply()
        return status if is_done else None

    def _reply(self) -> int:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return int(line)
        raise RuntimeError(f"the process that forks ranks ended with status {self._process.wait()}")

    def _end(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()


@cache
def _fork_server() -> _ForkServer:
    return _ForkServer()


def _serve() -> None:
    """Fork a process for each request on the standard input; print its number, and at its end its status."""
    for name in PRELOADED:
        module = importlib.import_module(name)
        if name.startswith("ucpformat.") and hasattr(module, "__path__"):
            for found in pkgutil.walk_packages(module.__path__, f"{name}."):
                importlib.import_module(found.name)
    # Collections in ranks need not go through what torch consists of.
    gc.collect()
    gc.freeze()
    for line in sys.stdin.buffer:
        worker, scratch, jobs, environment = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            _run_request(worker, Path(scratch), [Ranks(*job) for job in jobs], environment)
        with suppress(PermissionError, ProcessLookupError):  # it may have done so itself, and ended
            os.setpgid(child, child)
        print(child, flush=True)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # the ranks that it has forked
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run_request(module: str, scratch: Path, jobs: Sequence[Ranks], environment: dict[str, str]) -> NoReturn:

    def run() -> int:
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.environ.clear()
        os.environ.update(environment, OMP_NUM_THREADS="1")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        wrong = _fork_jobs(module, scratch, jobs)
        print(wrong or "")
        return 1 if wrong else 0

    _run_and_exit(run, scratch / "jobs.log")


def _run_and_exit(run: Callable[[], int], log: Path) -> NoReturn:
    """End this fork with the status that ``run`` returns, or 1 where it raises; ``log`` holds what it prints."""
    status = 1
    try:
        with log.open("wb") as sink:
            os.dup2(sink.fileno(), 1)
            os.dup2(sink.fileno(), 2)
        status = run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _fork_jobs(module: str, scratch: Path, jobs: Sequence[Ranks]) -> str | None:
    """Import ``module``, fork the ranks of each job, wait; return what went wrong with the first that fails."""
    importlib.import_module(module)
    threads = threading.enumerate()
    if len(threads) > 1:
        return f"importing the module starts threads, which a fork would lose: {threads}"
    for number, job in enumerate(jobs):
        os.environ.update(
            WORLD_SIZE=str(job.world), UCP_RENDEZVOUS=(scratch / f"rendezvous-{number}").as_uri()
        )
        for log in scratch.glob("rank *.log"):
            log.unlink()
        ranks = {
            _fork(module, rank, scratch / f"rank {rank}.log", job.arguments): rank
            for rank in range(job.world)
        }
        while ranks:
            ended, status = os.wait()
            rank = ranks.pop(ended)
            if status != 0:
                # The others would wait for it: the process that called `launch` ends them all.
                code = os.waitstatus_to_exitcode(status)
                return f"rank {rank} of {job.world} ended with status {code}"
    return None


def _fork(module: str, rank: int, log: Path, arguments: Sequence[str]) -> int:
    child = os.fork()
    if child:
        return child

    def run() -> int:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        sys.argv = [module, *arguments]
        del sys.modules[module]  # it is run anew; what it has imported stays
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0

    _run_and_exit(run, log)


if __name__ == "__main__":
    _serve()
