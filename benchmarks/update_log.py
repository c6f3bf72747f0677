"""What a log of every step costs a job, and how fast it is replayed, against the same job without."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import click
import torch
from torch import nn

import ucpformat as ucp
from benchmarks.facts import machine_facts
from benchmarks.results import quartiles
from benchmarks.tables import aligned
from ucpformat.replay.compressors import compress

__all__ = ["OPTIMIZERS", "Figures", "Gradients", "command", "measured"]

OPTIMIZERS: Final[dict[str, Callable[[Any], torch.optim.Optimizer]]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
}
_ROUND: Final = 5
"""Steps of one of two jobs before the other has its turn."""
_RESIDUALS_EVERY: Final = 25
"""Steps, so that every fifth turn has them; what they cost is told as if it were 100 (`UpdateLog`)."""
_USUAL: Final = 100


class Gradients(NamedTuple):
    """What is logged of gradients: all, or a share of their elements, with or without error feedback."""

    density: float | None = None
    feedback: bool = False

    def compressor(self) -> ucp.TopK | None:
        """Return a new compressor."""
        return None if self.density is None else ucp.TopK(self.density, error_feedback=self.feedback)

    def __str__(self) -> str:
        """Return what the table says."""
        if self.density is None:
            return "dense"
        return f"top {self.density:.0%}" + (", feedback" if self.feedback else "")


@dataclass
class Figures:
    """Of one job: bytes of a logged step against a full checkpoint, and ratios of times.

    ``overheads`` are ratios of turns without a step that has residuals, ``with_residuals`` of those with one.
    """

    optimizer: str
    gradients: Gradients
    parameters: int
    step_seconds: float
    bytes_of_a_step: float
    bytes_of_a_checkpoint: int
    overheads: list[float] = field(default_factory=list)
    with_residuals: list[float] = field(default_factory=list)
    replay: float = 0.0

    @property
    def overhead(self) -> float:
        """Share by which a step takes longer, residuals included as often as they usually come."""
        usual = median(self.overheads)
        more = median(self.with_residuals) - usual if self.with_residuals else 0.0
        return usual - 1 + more * _ROUND / _USUAL

    def row(self) -> list[str]:
        """Return the row of the table."""
        low, high = quartiles(self.overheads)
        return [
            self.optimizer,
            str(self.gradients),
            f"{self.parameters / 1e6:.1f} M",
            f"{1e3 * self.step_seconds:.0f} ms",
            f"{self.bytes_of_a_checkpoint / self.bytes_of_a_step:.0f}",
            f"{self.overhead:+.1%}",
            f"{low - 1:+.1%} to {high - 1:+.1%}",
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
            residuals = self.compressor.residuals
            for name, one in self.model.named_parameters():
                if one.grad is not None:
                    residual = (
                        None if residuals is None else residuals.setdefault(name, torch.zeros_like(one.grad))
                    )
                    compress(self.compressor, one.grad, residual)
        self.optimizer.step()


def _job(optimizer: str, gradients: Gradients, width: int, rows: int) -> _Job:
    torch.manual_seed(0)
    layers = [module for _ in range(4) for module in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers)
    made = OPTIMIZERS[optimizer](model.parameters())
    return _Job(model, made, gradients.compressor(), torch.randn(rows, width))


def _steps(job: _Job, step: Callable[[], None]) -> float:
    began = time.perf_counter()
    for _ in range(_ROUND):
        job.gradients()
        step()
    return (time.perf_counter() - began) / _ROUND


def _bytes_of_a_step(run: Path, parameters: int, gradients: Gradients, steps: int) -> float:
    """Return the bytes of the batches of a run for each step, residuals as often as they usually come."""
    written = sum(one.stat().st_size for one in run.glob("updates.ucplog/batches/*/*/*.batch"))
    if not gradients.feedback:
        return written / steps
    residuals = 4 * parameters
    return (written - steps // _RESIDUALS_EVERY * residuals) / steps + residuals / _USUAL


def measured(
    optimizer: str, gradients: Gradients, *, width: int, rows: int, rounds: int, directory: Path
) -> Figures:
    """Train with a log and without, in turns, and replay what was logged."""
    with tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as room:
        run = Path(room) / "run"
        logged, plain = (_job(optimizer, gradients, width, rows) for _ in range(2))
        parameters = sum(one.numel() for one in plain.model.parameters())
        figures = Figures(optimizer, gradients, parameters, 0.0, 0.0, 0)
        _steps(plain, plain.step)
        with ucp.UpdateLog(
            run,
            logged.model,
            logged.optimizer,
            compressor=logged.compressor,
            full_every=None,
            check_every=1 << 30,
            residuals_every=_RESIDUALS_EVERY,
        ) as log:
            _steps(logged, log.step)
            times = []
            for number in range(rounds):
                pair = [(logged, log.step), (plain, plain.step)]
                found = {id(job): _steps(job, step) for job, step in (pair if number % 2 else pair[::-1])}
                times.append(found[id(plain)])
                has_residuals = gradients.feedback and log.steps % _RESIDUALS_EVERY == 0
                ratios = figures.with_residuals if has_residuals else figures.overheads
                ratios.append(found[id(logged)] / found[id(plain)])
            steps = log.steps
        figures.step_seconds = median(times)
        figures.bytes_of_a_step = _bytes_of_a_step(run, parameters, gradients, steps)
        again = _job(optimizer, gradients, width, rows)
        began = time.perf_counter()
        ucp.recover(run, again.model, again.optimizer, compressor=again.compressor)
        figures.replay = figures.step_seconds * steps / (time.perf_counter() - began)
        if not all(map(torch.equal, again.model.parameters(), logged.model.parameters())):
            raise ValueError("the replayed parameters differ")
        full = Path(room) / "full.ucp"
        ucp.save(full, {"model": logged.model, "optim": logged.optimizer})
        figures.bytes_of_a_checkpoint = sum(one.stat().st_size for one in full.rglob("*") if one.is_file())
        return figures


@click.command(name="update-log")
@click.option("--width", default=512, show_default=True, help="Of each of four layers.")
@click.option("--rows", default=1536, show_default=True, help="Of the data of a step.")
@click.option(
    "--rounds", default=20, show_default=True, type=click.IntRange(1), help="Of five steps of either job."
)
@click.option("--directory", default=".", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "output", type=click.Path(path_type=Path), help="File for every figure.")
def command(width: int, rows: int, rounds: int, directory: Path, output: Path | None) -> None:
    """Train with an update log and without: what a step writes and costs, and how fast it is replayed."""
    facts = machine_facts(directory)
    found = [
        measured(name, gradients, width=width, rows=rows, rounds=rounds, directory=directory)
        for name in OPTIMIZERS
        for gradients in (Gradients(0.01), Gradients(0.01, feedback=True), Gradients())
    ]
    heading = ["optimizer", "gradients", "parameters", "step", "smaller", "overhead", "quartiles", "replay"]
    click.echo(aligned([heading, *(one.row() for one in found)]))
    click.echo(
        "How many times smaller a logged step is than a full checkpoint; by how much longer a step takes with the log, "
        "against the same training with the same compressor, and the quartiles of turns; how many times faster a "
        f"recovery is, loading included, than training again. Residuals of feedback count every {_USUAL} steps."
    )
    if output is not None:
        output.write_text(
            json.dumps({"machine": facts, "runs": [asdict(one) for one in found]}, indent=1) + "\n"
        )
