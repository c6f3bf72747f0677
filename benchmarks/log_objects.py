"""What a log of every step costs in an object store that answers late: requests, bytes, steps that a crash would lose.

A step waits, as for a device that trains, and hands the optimizer gradients that were made before. The store is moto's
server in a process of its own, behind a layer that delays each answer and counts (`benchmarks.s3_server`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import click
import torch
from torch import nn

import ucpformat as ucp
from benchmarks.facts import machine_facts
from benchmarks.results import quartiles
from benchmarks.s3_objects import through
from benchmarks.s3_server import BUCKET, S3Server, missing_packages, served
from benchmarks.tables import aligned
from benchmarks.update_log import Gradients
from ucpformat.replay.compressors import compress
from ucpformat.update_log.place import LogPlace

__all__ = ["BATCHES", "Figures", "command", "measured"]

BATCHES: Final = (1, 10, "auto")
_TURN: Final = 20
"""Steps of one of two jobs before the other has its turn."""


@dataclass
class Figures:
    """Of one job: ``waiting`` is how many steps were not durable behind each, ``overheads`` ratios of turns."""

    gradients: Gradients
    batch: int | str
    requests_of_a_step: float = 0.0
    bytes_of_a_step: float = 0.0
    batches: int = 0
    waiting: list[int] = field(default_factory=list)
    overheads: list[float] = field(default_factory=list)
    recovery_seconds: float = 0.0
    recovery_requests: int = 0

    def row(self) -> list[str]:
        """Return the row of the table."""
        low, high = quartiles(self.overheads)
        return [
            str(self.gradients),
            str(self.batch),
            f"{self.requests_of_a_step:.2f}",
            f"{self.bytes_of_a_step / 1024:,.0f} KiB",
            str(self.batches),
            f"{fmean(self.waiting):.0f}, {max(self.waiting)}",
            f"{median(self.overheads) - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})",
            f"{self.recovery_seconds:.1f} s, {self.recovery_requests}",
        ]


class _Job:
    def __init__(self, gradients: Gradients, width: int, milliseconds: float) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.compressor = gradients.compressor()
        self._made = [torch.randn_like(one) for one in self.model.parameters()]
        self._seconds = milliseconds / 1000

    def step(self) -> None:
        """Make a step without a log, with the same compressor."""
        for one in self.model.parameters():
            if self.compressor is not None and one.grad is not None:
                compress(self.compressor, one.grad, None)
        self.optimizer.step()

    def turn(self, step: Callable[[], Any], behind: Callable[[], None]) -> float:
        began = time.perf_counter()
        for _ in range(_TURN):
            for one, gradient in zip(self.model.parameters(), self._made, strict=True):
                one.grad = gradient.clone()
            time.sleep(self._seconds)
            step()
            behind()
        return (time.perf_counter() - began) / _TURN


def measured(
    gradients: Gradients,
    batch: Any,
    server: S3Server,
    url: str,
    *,
    width: int = 512,
    rounds: int = 10,
    milliseconds: float = 50,
) -> Figures:
    """Train with a log and without, in turns, count, and recover."""
    figures = Figures(gradients, batch)
    logged, plain = (_Job(gradients, width, milliseconds) for _ in range(2))
    plain.turn(plain.step, lambda: None)
    with ucp.UpdateLog(
        url,
        logged.model,
        logged.optimizer,
        compressor=logged.compressor,
        batch=batch,
        full_every=None,
        check_every=1 << 30,
    ) as log:
        server.counts()
        for _ in range(rounds):
            ours = logged.turn(log.step, lambda: figures.waiting.append(log.steps - log.durable_step))
            figures.overheads.append(ours / plain.turn(plain.step, lambda: None))
        steps = log.steps
    counts = server.counts()
    figures.requests_of_a_step = counts.requests / steps
    figures.bytes_of_a_step = counts.received / steps
    again = _Job(gradients, width, milliseconds)
    began = time.perf_counter()
    recovery = ucp.recover(url, again.model, again.optimizer)
    figures.recovery_seconds = time.perf_counter() - began
    figures.recovery_requests = server.counts().requests
    if recovery.step != steps or not all(
        map(torch.equal, again.model.parameters(), logged.model.parameters())
    ):
        raise ValueError("another state was recovered")
    figures.batches = len(LogPlace(f"{url}/updates.ucplog").keys().batches)
    return figures


@click.command(name="log-objects")
@click.option(
    "--milliseconds", default=50, show_default=True, type=click.IntRange(0), help="Before an answer."
)
@click.option("--step", default=50.0, show_default=True, type=click.FloatRange(0), help="Milliseconds.")
@click.option("--width", default=512, show_default=True, help="Of each of four layers.")
@click.option(
    "--rounds", default=10, show_default=True, type=click.IntRange(1), help=f"Of {_TURN} steps of either job."
)
@click.option("--json", "output", type=click.Path(path_type=Path), help="File for every figure.")
def command(milliseconds: int, step: float, width: int, rounds: int, output: Path | None) -> None:
    """Log every step to S3 on loopback, each answer late, by sizes of batches: requests, bytes, steps at risk."""
    if missing := missing_packages():
        raise click.ClickException(f"this takes {', '.join(missing)}: requirements/s3.txt")
    facts = machine_facts(Path.cwd())
    found = []
    with served(milliseconds) as server, through(server):
        for number, (gradients, batch) in enumerate(product((Gradients(0.01), Gradients()), BATCHES)):
            url = f"s3://{BUCKET}/run-{number}"
            one = measured(gradients, batch, server, url, width=width, rounds=rounds, milliseconds=step)
            found.append(one)
            click.echo(f"{one.gradients}, batch {one.batch}", err=True)
    heading = ["gradients", "batch", "requests", "bytes", "batches", "at risk", "overhead", "recovery"]
    click.echo(aligned([heading, *(one.row() for one in found)]))
    click.echo(
        f"Requests and bytes of a step of {step:g} ms, where an answer takes {milliseconds} ms; steps that are not "
        "durable when one ends, in the mean and at most; by how much longer a step takes with the log, and the "
        "quartiles of turns; seconds and requests of a recovery of all steps."
    )
    if output is not None:
        runs = [asdict(one) for one in found]
        output.write_text(
            json.dumps({"machine": facts, "answer_ms": milliseconds, "step_ms": step, "runs": runs}, indent=1)
            + "\n"
        )
