"""A job that saves every step with ``fence=``, and is killed anywhere: while it copies, at a fence, while it writes.

The worker forks a job for each death, and looks at what that has left.
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
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ucpformat as ucp
from ucpformat.distributed import later_copies, snapshot
from ucpformat.distributed.later_copies import LaterCopies
from ucpformat.distributed.snapshot import HostCopier
from ucpformat.state_dict.fences import TrainingFences
from ucpformat.state_dict.stateful import state_to_save

STEPS = 4
CALLS: dict[str, Sequence[tuple[Any, str]]] = {
    "copying": [(HostCopier, "copy"), (LaterCopies, "_next")],
    "at a fence": [(LaterCopies, "wait"), (LaterCopies, "_pass"), (TrainingFences, "changed")],
    "writing": [(os, name) for name in ("open", "pwritev", "fsync", "link", "mkdir", "close")],
}


class Job:
    """A small model and its optimizer, which train the same in any process."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 5))
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


def flat(found: Any, at: str = "") -> dict[str, Any]:
    """Return the leaves of a state by their paths; of a state dict that was saved as of one that was loaded."""
    if isinstance(found, dict):
        return {name: one for key, value in found.items() for name, one in flat(value, f"{at}.{key}").items()}
    if isinstance(found, list | tuple):
        return flat(dict(enumerate(found)), at)
    return {at: found.tobytes() if hasattr(found, "tobytes") else found}


def expected() -> list[dict[str, Any]]:
    """Return what each step saves."""
    job, found = Job(), []
    for _ in range(STEPS):
        job.train()
        state = flat(state_to_save(job.state))
        found.append(
            {
                at: one.detach().numpy().tobytes() if isinstance(one, torch.Tensor) else one
                for at, one in state.items()
            }
        )
    return found


def died(directory: Path, point: int, what: str) -> bool:
    """Let a job die, and return whether it did before its end."""
    told = directory / "died"
    child = os.fork()
    if not child:
        status = 1
        try:
            die_at(point, what, told)
            saves(directory / "run")
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == (-signal.SIGKILL if told.exists() else 0), (what, point, status)
    return told.exists()


def main() -> None:
    """Kill as many jobs as the task says, and write where they died and how many checkpoints they left."""
    torch.set_num_threads(1)
    directory, task = Path(sys.argv[1]), json.loads(sys.argv[2])
    chance = random.Random(task["seed"])
    states = expected()
    deaths: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for number in range(task["deaths"]):
        what = [*CALLS][number % len(CALLS)]
        room = directory / "job"
        room.mkdir()
        if died(room, chance.randint(1, task["points"][what]), what):
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
