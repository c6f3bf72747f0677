"""A job that saves every step with ``fence=``, and is killed anywhere: while it copies, at a fence, while it writes.

The worker forks a job for each death, of one process or of two ranks under FSDP2 of which one is killed, and looks at
what that has left.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ucpformat as ucp
from ucpformat.distributed import later_copies, snapshot
from ucpformat.distributed.later_copies import LaterCopies
from ucpformat.distributed.snapshot import HostCopier
from ucpformat.state_dict.fences import TrainingFences

STEPS = 4
CALLS: dict[str, Sequence[tuple[Any, str]]] = {
    "copying": [(HostCopier, "copy"), (LaterCopies, "_next")],
    "at a fence": [(LaterCopies, "wait"), (LaterCopies, "_pass"), (TrainingFences, "changed")],
    "writing": [(os, name) for name in ("open", "pwritev", "fsync", "link", "mkdir", "close")],
}


class Job:
    """A small model and its optimizer, which train the same in any process; split, if there is a group of ranks."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 5))
        if dist.is_initialized():
            fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    @property
    def state(self) -> dict[str, Any]:
        """What is saved."""
        return {"model": self.model, "optim": self.optimizer}

    def train(self) -> None:
        """Make a step."""
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 20)).square().sum().backward()
        self.optimizer.step()


def die_at(point: int, what: str, told: Path) -> None:
    """Kill this process before the ``point``-th of these calls; ``told`` has how many there were before the death."""
    count = itertools.count(1)
    lock = threading.RLock()  # that it died is told by one of these calls

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            with lock:
                if next(count) == point:
                    told.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapper

    for owner, name in CALLS[what]:
        setattr(owner, name, counted(getattr(owner, name)))


def saves(directory: Path) -> None:
    """Train, and save after each step, few bytes at a time."""
    later_copies._AT_ONCE, later_copies._AT_A_FENCE = 256, 1024  # type: ignore[misc]
    snapshot._BATCH_BYTES = 1024  # type: ignore[misc]
    job = Job()
    with ucp.CheckpointManager(directory, asynchronous=True, fence=job.optimizer) as manager:
        for step in range(STEPS):
            job.train()
            manager.save(step, job.state, chunk_bytes=1024)
        job.train()


def saves_plainly(directory: Path) -> None:
    """Train, and save after each step while nothing else is done."""
    job = Job()
    for step in range(STEPS):
        job.train()
        ucp.save(directory / f"step-{step}.ucp", job.state)


def flat(found: Any, at: str = "") -> dict[str, Any]:
    """Return the leaves of a state that was loaded, by their paths."""
    if isinstance(found, dict):
        return {name: one for key, value in found.items() for name, one in flat(value, f"{at}.{key}").items()}
    if isinstance(found, list | tuple):
        return flat(dict(enumerate(found)), at)
    return {at: found.tobytes() if hasattr(found, "tobytes") else found}


def forked(ranks: int, room: Path, work: Callable[[int], None]) -> list[int]:
    """Let each rank do its work in a process of its own; return their numbers."""
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child:
            children.append(child)
            continue
        status = 1
        try:
            if ranks > 1:
                dist.init_process_group("gloo", f"file://{room}/ranks", rank=rank, world_size=ranks)
            work(rank)
            status = 0
        finally:
            os._exit(status)
    return children


def ended(child: int, seconds: float) -> int:
    """Return how a process ended; it is killed where that takes longer."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def died(room: Path, ranks: int, victim: int, point: int, what: str) -> bool:
    """Let a rank of a job die, and return whether it did before its end; the others hear of it, or are stopped."""
    told = room / "died"

    def work(rank: int) -> None:
        if rank == victim:
            die_at(point, what, told)
        saves(room / "run")

    children = forked(ranks, room, work)
    status = ended(children.pop(victim), 100)
    others = [ended(child, 1 if told.exists() else 100) for child in children]
    assert status == (-signal.SIGKILL if told.exists() else 0), (what, point, status)
    assert told.exists() or not any(others)
    return told.exists()


def main() -> None:
    """Kill as many jobs as the task says, and write where they died and how many checkpoints they left."""
    torch.set_num_threads(1)
    directory, task = Path(sys.argv[1]), json.loads(sys.argv[2])
    chance = random.Random(task["seed"])
    ranks = task["ranks"]
    plain = directory / "plain"
    plain.mkdir()
    assert not any(ended(child, 100) for child in forked(ranks, plain, lambda _: saves_plainly(plain)))
    states = [flat(ucp.load(plain / f"step-{step}.ucp")) for step in range(STEPS)]
    deaths: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for number in range(task["deaths"]):
        what = [*CALLS][number % len(CALLS)]
        room = directory / "job"
        room.mkdir()
        if died(room, ranks, chance.randrange(ranks), chance.randint(1, task["points"][what]), what):
            deaths[what] += 1
        run = room / "run"
        steps = ucp.CheckpointManager(run).steps() if run.exists() else []
        for step in steps:
            path = run / f"step-{step}.ucp"
            assert list(ucp.validate(path)) == []
            assert flat(ucp.load(path)) == states[step], (what, step)
        left[str(len(steps))] += 1
        shutil.rmtree(room)
    (directory / "told").write_text(json.dumps({"deaths": deaths, "left": left}))
    os._exit(0)


if __name__ == "__main__":
    main()
