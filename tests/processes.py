"""Launching the gloo processes in which tests run the real torch, and ending them.

A test that needs several ranks has a module of its own whose ``main`` is the worker; `launch` runs it in one process
per rank with ``RANK``, ``WORLD_SIZE`` and ``UCP_RENDEZVOUS`` (a file URL: no port, no network) in its environment, and
the worker uses `join` and `leave`. To import torch and what it brings takes seconds, what a rank then does a fraction
of one: the ranks are forks of one process that has imported the worker's module.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).parents[1]


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
    """Run one job after another as `launch` does, with one import for all of them.

    ``UCP_PATIENCE=10`` waits ten times as long for ranks that hang, on a machine that has much else to do.
    """
    timeout *= float(os.environ.get("UCP_PATIENCE", "1"))
    with tempfile.TemporaryDirectory() as scratch:
        # A session of its own, so that the ranks can be ended with the process that forked them.
        parent = subprocess.Popen(
            [sys.executable, "-m", "tests.processes", module, scratch, json.dumps(jobs)],
            cwd=ROOT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said, _ = parent.communicate(timeout=timeout)
            outcome = said.decode(errors="replace")[-4000:]
        except subprocess.TimeoutExpired:
            outcome = f"not done after {timeout} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()
            if parent.stdout is not None:
                parent.stdout.close()  # or a later test is blamed for it
        if parent.returncode != 0:
            logs = sorted(Path(scratch).glob("*.log"))
            tails = [f"-- {log.stem}:\n{log.read_text(errors='replace')[-4000:]}" for log in logs]
            raise RuntimeError("\n".join([f"{module}: {outcome}", *tails]))


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
        for log in scratch.glob("*.log"):
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
    status = 1
    try:
        with log.open("wb") as sink:
            os.dup2(sink.fileno(), 1)
            os.dup2(sink.fileno(), 2)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        sys.argv = [module, *arguments]
        del sys.modules[module]  # it is run anew; what it has imported stays
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(_fork_jobs(sys.argv[1], Path(sys.argv[2]), [Ranks(*job) for job in json.loads(sys.argv[3])]))
