"""How long training stands still for a snapshot at every iteration, with ``fence=`` and without, and as predicted.

One process trains, and saves after each step. Loops take turns, in rounds of another order each: without saves, with
a plain copy of the state in their place, with whole snapshots, with ``fence=``. What the prediction is fed with is
measured in loops of their own: when steps come, how fast copies are beside training and alone, and what the call of a
save costs besides copies, by a state of as many tensors that are tiny.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import click
import torch
from torch import nn

import ucpformat as ucp
from benchmarks.facts import machine_facts
from benchmarks.stall import plain_copy
from benchmarks.tables import aligned

__all__ = ["SCENARIOS", "Figures", "Scenario", "command", "measured"]

_ITERATIONS: Final = 4
"""Saves of one loop in its turn."""
_PIECE: Final = 1 << 22
"""Bytes that are copied in one go behind a call."""
_TINY: Final = 4


@dataclass(frozen=True, slots=True)
class Scenario:
    """A training: with so many rows of data, and one step of one optimizer, or one for each layer in backward."""

    name: str
    rows: int
    in_backward: bool = False


SCENARIOS: Final = (
    Scenario("one step", 128),
    Scenario("steps in backward", 128, in_backward=True),
    Scenario("one step, little data", 4),
)


@dataclass
class Figures:
    """Seconds of each round by what they are of; ``predicted`` follows from those that are measured without fences."""

    scenario: str
    nbytes: int
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, seconds: Sequence[float]) -> None:
        """Note the mean of one turn."""
        self.rounds.setdefault(name, []).append(sum(seconds) / len(seconds))

    def middle(self, name: str) -> float:
        """Return the median of the rounds."""
        return median(self.rounds[name])

    def ratios(self, name: str, other: str) -> list[float]:
        """Return quotients within rounds, sorted."""
        return sorted(one / two for one, two in zip(self.rounds[name], self.rounds[other], strict=True))

    def row(self) -> list[str]:
        """Return the row of the table."""
        shares = self.ratios("fenced", "copy")
        quarter = len(shares) // 4
        return [
            self.scenario,
            f"{self.nbytes / (1 << 20):.0f} MiB",
            *(f"{1e3 * self.middle(one):.1f}" for one in ("training", "copy", "whole", "fenced")),
            f"{median(shares):.2f} ({shares[quarter]:.2f} to {shares[-1 - quarter]:.2f})",
            f"{median(self.ratios('predicted', 'fenced')):.2f}",
            f"{1e3 * self.middle('fenced waited'):.1f}",
            *(f"{median(self.ratios(f'{one} iteration', 'iteration')):.2f}" for one in ("whole", "fenced")),
        ]


_HEADING: Final = [
    "ms",
    "state",
    "forward, backward",
    "copy",
    "whole",
    "fenced",
    "fenced / copy",
    "predicted / fenced",
    "waited",
    "iteration, whole",
    "fenced",
]


class _Job:
    """A model and its optimizers; ``changes`` has the seconds from the last save until each of them began to step."""

    def __init__(self, scenario: Scenario, width: int, layers: int) -> None:
        torch.manual_seed(0)
        linear = [nn.Linear(width, width) for _ in range(layers)]
        self.model = nn.Sequential(*(module for one in linear for module in (one, nn.GELU())))
        parts = linear if scenario.in_backward else [self.model]
        self.optimizers = [torch.optim.AdamW(part.parameters(), lr=1e-4, foreach=True) for part in parts]
        self.changes: list[list[float]] = [[] for _ in parts]
        self.saved = 0.0
        for number, optimizer in enumerate(self.optimizers):
            optimizer.register_step_pre_hook(
                lambda *_, number=number: self.changes[number].append(time.perf_counter() - self.saved)
            )
        self._in_backward = scenario.in_backward
        if self._in_backward:
            for part, optimizer in zip(linear, self.optimizers, strict=True):
                self._step_in_backward(list(part.parameters()), optimizer)
        self._data = torch.randn(scenario.rows, width)
        self.state = {"model": self.model} | {f"optim{n}": one for n, one in enumerate(self.optimizers)}
        self.train()

    @staticmethod
    def _step_in_backward(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        def step(_: torch.Tensor) -> None:
            if all(one.grad is not None for one in parameters):
                optimizer.step()
                optimizer.zero_grad()

        for one in parameters:
            one.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]

    def train(self) -> float:
        """Make an iteration; return the seconds of forward and backward."""
        began = time.perf_counter()
        self.model(self._data).square().mean().backward()
        seconds = time.perf_counter() - began
        if not self._in_backward:
            self.optimizers[0].step()
            self.optimizers[0].zero_grad()
        return seconds

    def tensors(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield what a save copies, with the number of the optimizer that changes it."""
        for number, optimizer in enumerate(self.optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield number, parameter.detach()
                    yield from ((number, one) for one in optimizer.state[parameter].values())

    def copies(self, due: Sequence[float]) -> Iterator[ucp.cadence.DueCopy]:
        """Yield the copies of a save, with the seconds until each optimizer steps."""
        for number, tensor in self.tensors():
            for begin in range(0, tensor.nbytes, _PIECE):
                yield ucp.cadence.DueCopy(min(_PIECE, tensor.nbytes - begin), due[number])


class _Loops:
    """Loops of one job, each of `_ITERATIONS` saves, or of what stands for them."""

    def __init__(self, job: _Job, tiny: _Job, figures: Figures, room: Path, savers: ExitStack) -> None:
        self._job = job
        self._tiny = tiny
        self._figures = figures
        self._room = room
        self._whole = savers.enter_context(ucp.AsyncSaver())
        self._fenced = savers.enter_context(ucp.AsyncSaver(fence=job.optimizers))
        self._of_tiny = savers.enter_context(ucp.AsyncSaver(fence=tiny.optimizers))
        self._flat = {str(number): one for number, (_, one) in enumerate(job.tensors())}
        self._copy = plain_copy("cpu", sum(-(-one.nbytes // 64) * 64 for one in self._flat.values()))
        self._due: list[float] = []
        self._beside = self._share = 0.0

    def none(self) -> None:
        """Train without saves."""
        for one in self._job.changes:
            one.clear()
        self._figures.add("training", self._trained("iteration", lambda _: None))
        self._due = [median(one) for one in self._job.changes]

    def copy(self) -> None:
        """Copy the state in the place of a save."""
        seconds = []

        def copy(_: int) -> None:
            began = time.perf_counter()
            self._copy(self._flat, self._room)
            seconds.append(time.perf_counter() - began)

        self._trained("copy iteration", copy)
        self._figures.add("copy", seconds)

    def whole(self) -> None:
        """Save whole snapshots."""
        self._saved("whole", self._whole, self._job)

    def fenced(self) -> None:
        """Save with ``fence=``."""
        self._saved("fenced", self._fenced, self._job)

    def tiny(self) -> None:
        """Save as many tensors, all of them tiny, with ``fence=``; nothing changes them."""
        self._saved("call", self._of_tiny, self._tiny)

    def copying(self) -> None:
        """Train while another thread copies what it can."""
        ended = threading.Event()
        sources = [one.numpy().reshape(-1) for one in self._flat.values()]
        target = torch.ones(max(one.nbytes for one in sources), dtype=torch.uint8).numpy()
        copied = 0

        def copy() -> None:
            nonlocal copied
            while not ended.is_set():
                for one in sources:
                    for begin in range(0, one.size, _PIECE // 4):
                        piece = one[begin : begin + _PIECE // 4]
                        target[: piece.nbytes].view(piece.dtype)[:] = piece
                        copied += piece.nbytes
                        if ended.is_set():
                            return

        thread = threading.Thread(target=copy)
        began = time.perf_counter()
        thread.start()
        try:
            seconds = [self._job.train() for _ in range(_ITERATIONS)]
        finally:
            ended.set()
            thread.join()
        self._beside = copied / (time.perf_counter() - began)
        self._share = self._figures.rounds["training"][-1] / (sum(seconds) / len(seconds))

    def _saved(self, name: str, saver: ucp.AsyncSaver, job: _Job) -> None:
        saves: list[ucp.AsyncSave] = []

        def save(number: int) -> None:
            saves.append(saver.save(self._room / f"{number}.ucp", job.state, step=number))

        self._trained(f"{name} iteration", save)
        reports = [one.wait() for one in saves]
        self._figures.add(name, [one.stalled - one.waited + one.fenced for one in reports])
        self._figures.add(f"{name} waited", [one.waited for one in reports])
        self._figures.add(f"{name} staging", [one.staging for one in reports])
        for path in self._room.iterdir():
            shutil.rmtree(path)

    def _trained(self, name: str, save: Callable[[int], None]) -> list[float]:
        """Train, and save after each step but the last; return the seconds of forward and backward."""
        seconds = [self._job.train()]
        began = time.perf_counter()
        for number in range(_ITERATIONS):
            save(number)
            self._job.saved = time.perf_counter()
            seconds.append(self._job.train())
        self._figures.add(name, [(time.perf_counter() - began) / _ITERATIONS])
        return seconds[1:]

    def predict(self) -> None:
        """Note the stall that the model predicts from what else the round has measured."""
        rounds = self._figures.rounds
        speeds = ucp.cadence.CopySpeeds(
            alone=self._figures.nbytes / rounds["whole staging"][-1],
            beside=self._beside,
            training=min(1.0, self._share),
        )
        found = ucp.cadence.simulate_snapshot(
            list(self._job.copies(self._due)), speeds, call=rounds["call"][-1]
        )
        self._figures.add("predicted", [found.stall])


def measured(scenario: Scenario, *, width: int, layers: int, rounds: int, directory: Path) -> Figures:
    """Train in turns, in a round that warms up and ``rounds`` that count, and predict."""
    job = _Job(scenario, width, layers)
    nbytes = sum(one.nbytes for _, one in job.tensors())
    with (
        tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as room,
        ExitStack() as savers,
    ):
        warm = Figures(scenario.name, nbytes)
        loops = _Loops(job, _Job(scenario, _TINY, layers), warm, Path(room), savers)
        turns = (loops.none, loops.copy, loops.whole, loops.fenced, loops.tiny, loops.copying)
        for turn in turns:
            turn()
        figures = loops._figures = Figures(scenario.name, nbytes)
        for number in range(rounds):
            loops.none()
            for turn in turns[1:] if number % 2 else turns[:0:-1]:
                turn()
            loops.predict()
        return figures


@click.command(name="snapshots")
@click.option("--width", default=2048, show_default=True, help="Of each layer.")
@click.option("--layers", default=6, show_default=True, type=click.IntRange(1))
@click.option(
    "--rounds", default=9, show_default=True, type=click.IntRange(1), help="After one that warms up."
)
@click.option(
    "--torch-threads",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Threads that torch computes with.",
)
@click.option("--directory", default=".", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "output", type=click.Path(path_type=Path), help="File for every figure.")
def command(
    width: int, layers: int, rounds: int, torch_threads: int, directory: Path, output: Path | None
) -> None:
    """How long training stands still where it saves every iteration, and how long the model says."""
    torch.set_num_threads(torch_threads)
    facts = machine_facts(directory)
    found = [
        measured(scenario, width=width, layers=layers, rounds=rounds, directory=directory)
        for scenario in SCENARIOS
    ]
    click.echo(aligned([_HEADING, *(one.row() for one in found)]))
    click.echo(
        "Stalls are the call and the waits at fences, without waiting for the save before (`waited`); "
        "iterations are times those without saves."
    )
    if output is not None:
        words = {"facts": facts, "figures": [asdict(one) for one in found]}
        output.write_text(json.dumps(words, indent=1) + "\n")
