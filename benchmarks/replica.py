"""What a replica in host memory costs a job, beside a log of all gradients and neither, and how fast it gives back."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles

import click
import torch
from torch import nn

import ucpformat as ucp
from benchmarks.facts import machine_facts
from benchmarks.tables import aligned
from benchmarks.update_log import OPTIMIZERS

__all__ = ["Figures", "command", "measured"]

_ROUND = 5
"""Steps of one of three jobs before the next has its turn."""
_SETTLE = 0.1
"""Seconds after a turn in which what goes on beside the training may end: it is counted as processor time."""
_OPTIONS = {"full_every": None, "check_every": 1 << 30}


@dataclass
class Figures:
    """Of one optimizer: ratios of a turn with a log or replica to the same turn without, and seconds of recoveries."""

    optimizer: str
    parameters: int
    threads: int
    step_seconds: float = 0.0
    wall: dict[str, list[float]] = field(default_factory=dict)
    processor: dict[str, list[float]] = field(default_factory=dict)
    recoveries: dict[str, list[float]] = field(default_factory=dict)

    def rows(self) -> list[list[str]]:
        """Return the rows of the table of steps."""
        return [
            [
                self.optimizer,
                kind,
                f"{1e3 * self.step_seconds:.0f} ms",
                _share(self.wall[kind]),
                _share(self.processor[kind]),
            ]
            for kind in self.wall
        ]

    def recovery_row(self) -> list[str]:
        """Return the row of the table of recoveries."""
        return [self.optimizer, *(f"{1e3 * median(found):.0f} ms" for found in self.recoveries.values())]


def _share(ratios: list[float]) -> str:
    if len(ratios) < 2:
        return f"{ratios[0] - 1:+.1%}"
    low, middle, high = quantiles(ratios, n=4)
    return f"{middle - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"


class _Job:
    """A model of four layers, its optimizer, and what makes its step."""

    def __init__(self, optimizer: str, width: int, rows: int) -> None:
        torch.manual_seed(0)
        layers = [module for _ in range(4) for module in (nn.Linear(width, width), nn.GELU())]
        self.model = nn.Sequential(*layers)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.data = torch.randn(rows, width)
        self.step: Callable[[], object] = self.optimizer.step

    def turn(self, replica: int | None = None) -> tuple[float, float]:
        """Make some steps; return the seconds of one, by the clock and of processors, those of a process included."""
        used = _used(replica)
        began = time.perf_counter()
        for _ in range(_ROUND):
            self.optimizer.zero_grad()
            self.model(self.data).square().mean().backward()
            self.step()
        seconds = time.perf_counter() - began
        time.sleep(_SETTLE)
        return seconds / _ROUND, (_used(replica) - used) / _ROUND


def _used(other: int | None) -> float:
    """Return the processor time of this process, and of another, in seconds."""
    mine = time.process_time()
    if other is None:
        return mine
    # Nanoseconds on a processor, by thread: times in `stat` are of hundredths of seconds.
    tasks = Path(f"/proc/{other}/task").glob("*/schedstat")
    return mine + sum(int(one.read_text().split()[0]) for one in tasks) / 1e9


def _children() -> set[int]:
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return set(map(int, found.split()))


def _recovered(run: Path, optimizer: str, width: int, like: _Job) -> float:
    """Recover; return the seconds that it took."""
    job = _Job(optimizer, width, 1)
    began = time.perf_counter()
    ucp.recover(run, job.model, job.optimizer)
    seconds = time.perf_counter() - began
    if not all(map(torch.equal, job.model.parameters(), like.model.parameters())):
        raise ValueError("the recovered parameters differ")
    return seconds


def measured(optimizer: str, *, width: int, rows: int, rounds: int, directory: Path) -> Figures:
    """Train without a log, with one of all gradients, and with a replica, in turns; and recover."""
    with tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as room:
        by_log, by_replica = Path(room) / "log", Path(room) / "replica"
        plain, logged, held = (_Job(optimizer, width, rows) for _ in range(3))
        parameters = sum(one.numel() for one in plain.model.parameters())
        figures = Figures(optimizer, parameters, torch.get_num_threads())
        before = _children()
        log = ucp.UpdateLog(by_log, logged.model, logged.optimizer, **_OPTIONS)  # type: ignore[arg-type]
        feed = ucp.UpdateLog(by_replica, held.model, held.optimizer, replica=True, **_OPTIONS)  # type: ignore[arg-type]
        (process,) = _children() - before
        logged.step, held.step = log.step, feed.step
        turns: dict[str, Callable[[], tuple[float, float]]] = {
            "none": plain.turn,
            "log of all gradients": logged.turn,
            "replica": lambda: held.turn(process),
        }
        for turn in turns.values():
            turn()
        names, times = list(turns), []
        for number in range(rounds):
            first = number % len(names)
            found = {name: turns[name]() for name in (*names[first:], *names[:first])}
            times.append(found["none"][0])
            for name in names[1:]:
                figures.wall.setdefault(name, []).append(found[name][0] / found["none"][0])
                figures.processor.setdefault(name, []).append(found[name][1] / found["none"][1])
        figures.step_seconds = median(times)
        repeats = range(max(1, min(rounds, 7)))
        memory = [_recovered(by_replica, optimizer, width, held) for _ in repeats]
        feed.close()
        log.close()
        figures.recoveries = {
            "from memory": memory,
            "from the checkpoint": [_recovered(by_replica, optimizer, width, held) for _ in repeats],
            "from the log": [_recovered(by_log, optimizer, width, logged) for _ in repeats],
        }
        return figures


@click.command(name="replica")
@click.option("--width", default=512, show_default=True, help="Of each of four layers.")
@click.option("--rows", default=1024, show_default=True, help="Of the data of a step.")
@click.option(
    "--rounds", default=20, show_default=True, type=click.IntRange(1), help="Of five steps of each job."
)
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1), help="Of the training.")
@click.option("--directory", default=".", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "output", type=click.Path(path_type=Path), help="File for every figure.")
def command(width: int, rows: int, rounds: int, threads: int, directory: Path, output: Path | None) -> None:
    """Train with a replica, with a log, and with neither: what a step costs, and how long recoveries take."""
    torch.set_num_threads(threads)
    facts = machine_facts(directory)
    found = [
        measured(name, width=width, rows=rows, rounds=rounds, directory=directory) for name in OPTIMIZERS
    ]
    heading = ["optimizer", "beside it", "step", "time of a step", "processor time"]
    click.echo(aligned([heading, *(row for one in found for row in one.rows())]))
    click.echo(
        f"Against the same training without a log, {found[0].parameters / 1e6:.1f} million parameters, {threads} "
        "threads: medians, with the quartiles."
    )
    click.echo(aligned([["recovery", *found[0].recoveries], *(one.recovery_row() for one in found)]))
    if output is not None:
        output.write_text(
            json.dumps({"machine": facts, "runs": [asdict(one) for one in found]}, indent=1) + "\n"
        )
