"""Launching the gloo processes in which tests run the real torch, and ending them.

A test that needs several ranks has a module of its own whose ``main`` is the worker; `launch` starts one process per
rank with ``RANK``, ``WORLD_SIZE`` and ``UCP_RENDEZVOUS`` (a file URL: no port, no network) in its environment, and
the worker uses `join` and `leave`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

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


def launch(module: str, arguments: Sequence[str], world: int, timeout: float = 300.0) -> None:
    """Run ``python -m module *arguments`` as ``world`` ranks; raise `RuntimeError` with the log of one that fails."""
    with tempfile.TemporaryDirectory() as scratch:
        logs = [Path(scratch, f"{rank}.log") for rank in range(world)]
        processes = [
            _start([sys.executable, "-m", module, *arguments], Path(scratch, "rendezvous"), rank, world, log)
            for rank, log in enumerate(logs)
        ]
        failed = _wait(processes, timeout)
        if failed is not None:
            code = processes[failed].returncode
            tail = logs[failed].read_text(errors="replace")[-4000:]
            raise RuntimeError(
                f"rank {failed} of {world} of {module} ended with status {code}; its log ends:\n{tail}"
            )


def _start(command: list[str], rendezvous: Path, rank: int, world: int, log: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "UCP_RENDEZVOUS": rendezvous.as_uri(),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    with log.open("wb") as sink:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )


def _wait(processes: list[subprocess.Popen[bytes]], timeout: float) -> int | None:
    """Wait until all end well, or return the rank of the first that does not and stop the others."""
    deadline = time.monotonic() + timeout
    try:
        while True:
            codes = [process.poll() for process in processes]
            for rank, code in enumerate(codes):
                if code not in (None, 0):
                    return rank
            if None not in codes:
                return None
            if time.monotonic() > deadline:
                return codes.index(None)
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()
