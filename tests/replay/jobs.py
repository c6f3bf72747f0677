"""Small training jobs whose every step depends on all before: layers, a schedule, clipping, accumulation, dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ucpformat as ucp

STEPS = 24
Optimizers = dict[str, Callable[[Any], torch.optim.Optimizer]]

OPTIMIZERS: Optimizers = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=1e-2),
    "AdamW, foreach": lambda groups: torch.optim.AdamW(groups, lr=1e-2, foreach=True),
    "AMSGrad": lambda groups: torch.optim.Adam(groups, lr=1e-2, weight_decay=0.1, amsgrad=True),
    "SGD with momentum": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True),
}


class Net(nn.Module):
    """Two layers with a buffer and dropout between them, and a layer that begins frozen."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.25)
        self.late = nn.Linear(width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.norm(self.embed(x)).relu())
        found: torch.Tensor = self.head(hidden + self.late(hidden))
        return found


@dataclass
class Scaler:
    """Skips the steps that it is told to, as a GradScaler does when a gradient has overflowed."""

    skips: frozenset[int] = frozenset()
    calls: int = 0

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.calls not in self.skips:
            optimizer.step()
        self.calls += 1

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


@dataclass
class Job:
    """A job at a step; `train` goes on with it, as a user's loop would."""

    optimizer_name: str = "AdamW"
    model: Net = field(init=False)
    optimizer: Any = field(init=False)
    schedule: Any = field(init=False)
    scaler: Scaler = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        self.model = Net()
        self.optimizer = OPTIMIZERS[self.optimizer_name](self.groups())
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.scaler = Scaler(frozenset({3, 10}))

    def groups(self) -> list[dict[str, Any]]:
        """Weights, and all else with a learning rate of its own."""
        weights = [one for name, one in self.model.named_parameters() if name.endswith("weight")]
        rest = [one for name, one in self.model.named_parameters() if not name.endswith("weight")]
        return [{"params": weights}, {"params": rest, "lr": 2e-2}]

    @property
    def objects(self) -> dict[str, Any]:
        return {"schedule": self.schedule, "scaler": self.scaler}

    def train(self, log: Any, begin: int, stop: int) -> None:
        data = torch.Generator().manual_seed(5)
        for step in range(stop):
            batches = torch.randn(2, 6, 8, generator=data)
            if step < begin:
                continue
            # Frozen for a while, twice: no gradients, which are not gradients of zeros.
            self.model.late.requires_grad_(6 <= step < 14)
            self.optimizer.zero_grad()
            for batch in batches:
                (self.model(batch).square().mean() / 2).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            log.step(self.scaler)
            self.schedule.step()

    def bits(self) -> dict[str, torch.Tensor]:
        """Every tensor of the state, by name."""
        found = {f"model.{name}": one for name, one in self.model.state_dict().items()}
        for index, states in self.optimizer.state_dict()["state"].items():
            found |= {f"optim.{index}.{name}": torch.as_tensor(one) for name, one in states.items()}
        return found

    def require_equal(self, other: Job) -> None:
        mine, theirs = self.bits(), other.bits()
        assert mine.keys() == theirs.keys()
        for name, one in mine.items():
            assert torch.equal(one, theirs[name]), name
        assert self.schedule.state_dict() == other.schedule.state_dict()
        assert self.scaler.calls == other.scaler.calls


class NoLog:
    """What a job calls that logs nothing."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def step(self, scaler: Any = None) -> None:
        if scaler is None:
            self._job.optimizer.step()
        else:
            scaler.step(self._job.optimizer)


def recovered(run: str | Path, name: str = "AdamW", **options: object) -> tuple[Job, ucp.Recovery]:
    """Recover a new job from the log of a run."""
    job = Job(name)
    found = ucp.recover(run, job.model, job.optimizer, state=job.objects, **options)  # type: ignore[arg-type]
    return job, found


def trained(steps: int, name: str = "AdamW") -> Job:
    """Train a job that logs nothing, from the beginning."""
    with torch.random.fork_rng():
        job = Job(name)
        torch.manual_seed(2)
        job.train(NoLog(job), 0, steps)
    return job


def logged(run: Path, steps: int, name: str = "AdamW", **options: object) -> Job:
    """Train a job that logs its steps, from the beginning."""
    job = Job(name)
    torch.manual_seed(2)
    with ucp.UpdateLog(run, job.model, job.optimizer, state=job.objects, **options) as log:  # type: ignore[arg-type]
        job.train(log, 0, steps)
    return job


def resumed(run: str | Path) -> tuple[Job, ucp.Recovery]:
    """A job that has recovered a run, or begins it with the random numbers that all jobs begin with."""
    torch.manual_seed(2)
    state = torch.get_rng_state()
    job, recovery = recovered(run)
    if recovery.step == 0:
        torch.set_rng_state(state)
    return job, recovery
