"""What a log of every step costs a job, and how fast it is replayed, against the same job without."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
import torch
from torch import nn

import ucpformat as ucp
from benchmarks.facts import machine_facts
from benchmarks.tables import aligned

__all__ = ["OPTIMIZERS", "Figures", "command", "measured"]

OPTIMIZERS: Final[dict[str, Callable[[Any], torch.optim.Optimizer]]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
}
_ROUND: Final = 5
"""Steps of one of two jobs before the other has its turn."""


@dataclass
class Figures:
    """Of one job: bytes of a logged step against a full checkpoint, and ratios of times."""

    optimizer: str
    density: float | None
    parameters: int
    step_seconds: float
    bytes_of_a_step: float
    bytes_of_a_checkpoint: int
    overheads: list[float] = field(default_factory=list)
    replay: float = 0.0

    def row(self) -> list[str]:
        """Return the row of the table."""
        return [
            self.optimizer,
            "dense" if self.density is None else f"top {self.density:.0%}",
            f"{self.parameters / 1e6:.1f} M",
            f"{1e3 * self.step_seconds:.0f} ms",
            f"{self.bytes_of_a_checkpoint / self.bytes_of_a_step:.0f}",
            f"{median(self.overheads) - 1:+.1%}",
            f"{self.replay:.1f}",
        ]


@dataclass
class _Job:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    compressor: ucp.TopK | None
    data: torch.Tensor

    def gradients(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.data).square().mean().backward()

    def step(self) -> None:
        """Make the step of a job without a log, with the same compressor."""
        if self.compressor is not None:
            for one in self.model.parameters():
                if one.grad is not None:
                    self.compressor.compress(one.grad)
        self.optimizer.step()


def _job(optimizer: str, density: float | None, width: int, rows: int) -> _Job:
    torch.manual_seed(0)
    layers = [module for _ in range(4) for module in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers)
    compressor = None if density is None else ucp.TopK(density)
    return _Job(model, OPTIMIZERS[optimizer](model.parameters()), compressor, torch.randn(rows, width))


def _steps(job: _Job, step: Callable[[], None]) -> float:
    began = time.perf_counter()
    for _ in range(_ROUND):
        job.gradients()
        step()
    return (time.perf_counter() - began) / _ROUND


def measured(
    optimizer: str, density: float | None, *, width: int, rows: int, rounds: int, directory: Path
) -> Figures:
    """Train with a log and without, in turns, and replay what was logged."""
    with tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as room:
        run = Path(room) / "run"
        logged, plain = (_job(optimizer, density, width, rows) for _ in range(2))
        figures = Figures(
            optimizer, density, sum(one.numel() for one in plain.model.parameters()), 0.0, 0.0, 0
        )
        _steps(plain, plain.step)
        with ucp.UpdateLog(
            run,
            logged.model,
            logged.optimizer,
            compressor=logged.compressor,
            full_every=None,
            check_every=1 << 30,
        ) as log:
            _steps(logged, log.step)
            times = []
            for number in range(rounds):
                pair = [(logged, log.step), (plain, plain.step)]
                found = {id(job): _steps(job, step) for job, step in (pair if number % 2 else pair[::-1])}
                times.append(found[id(plain)])
                figures.overheads.append(found[id(logged)] / found[id(plain)])
            steps = log.steps
        figures.step_seconds = median(times)
        batches = run.glob("updates.ucplog/batches/*/*/*.batch")
        figures.bytes_of_a_step = sum(one.stat().st_size for one in batches) / steps
        again = _job(optimizer, density, width, rows)
        began = time.perf_counter()
        ucp.recover(run, again.model, again.optimizer)
        figures.replay = figures.step_seconds * steps / (time.perf_counter() - began)
        if not all(map(torch.equal, again.model.parameters(), logged.model.parameters())):
            raise ValueError("the replayed parameters differ")
        full = Path(room) / "full.ucp"
        ucp.save(full, {"model": logged.model, "optim": logged.optimizer})
        figures.bytes_of_a_checkpoint = sum(one.stat().st_size for one in full.rglob("*") if one.is_file())
        return figures


@click.command(name="update-log")
@click.option("--width", default=512, show_default=True, help="Of each of four layers.")
@click.option("--rows", default=1024, show_default=True, help="Of the data of a step.")
@click.option(
    "--rounds", default=20, show_default=True, type=click.IntRange(1), help="Of five steps of either job."
)
@click.option("--directory", default=".", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "output", type=click.Path(path_type=Path), help="File for every figure.")
def command(width: int, rows: int, rounds: int, directory: Path, output: Path | None) -> None:
    """Train with an update log and without: what a step writes and costs, and how fast it is replayed."""
    facts = machine_facts(directory)
    found = [
        measured(name, density, width=width, rows=rows, rounds=rounds, directory=directory)
        for name in OPTIMIZERS
        for density in (0.01, None)
    ]
    heading = ["optimizer", "gradients", "parameters", "step", "times smaller", "overhead", "replay"]
    click.echo(aligned([heading, *(one.row() for one in found)]))
    click.echo(
        "Bytes of a full checkpoint for each of a logged step; time of a step with the log, against the same training "
        "with the same compressor; speed of recovery, loading included, against training the steps again."
    )
    if output is not None:
        output.write_text(
            json.dumps({"machine": facts, "runs": [asdict(one) for one in found]}, indent=1) + "\n"
        )
