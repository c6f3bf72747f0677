"""Takes recorded operations apart, and has what a loss of power may leave at any moment of them judged."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tests.campaigns.power.disk import Disk, State
from tests.campaigns.power.judge import Judge, digest_of
from tests.campaigns.power.operations import Operation
from tests.campaigns.power.recording import Record, What, record

__all__ = ["Campaign", "Trace", "recorded"]


@dataclass(frozen=True)
class Trace:
    """What an operation asked of the disk; ``before`` is what was asked to prepare it."""

    operation: Operation
    top: str
    before: Sequence[Record]
    records: Sequence[Record]


def recorded(directory: Path, module: str, operations: Sequence[Operation], *names: str) -> list[Trace]:
    """Have a module do operations, and write down what they ask of the disk; ``names`` are told to the module."""
    scope = directory / "scope"
    scope.mkdir()
    records = record(directory, scope, module, str(scope), *names)
    places = {one.source: place for place, one in enumerate(records)}
    traces = []
    for number, operation in enumerate(operations):
        top = str(scope / str(number))
        made, first, last = (places[what] for what in (top, f"begin {number}", f"end {number}"))
        trace = Trace(operation, top, records[made + 1 : first], records[first + 1 : last])
        _require_complete(trace)
        traces.append(trace)
    return traces


def _require_complete(trace: Trace) -> None:
    """What was recorded has to come to what lies there: a call that the library does not know would be missed."""
    disk = Disk(trace.top)
    for one in (*trace.before, *trace.records):
        disk.do(one)
    there: dict[str, bytes | None] = {
        path.relative_to(trace.top).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in Path(trace.top).rglob("*")
    }
    if disk.as_asked() != there:
        differing = {
            path for path in {*there, *disk.as_asked()} if there.get(path, 0) != disk.as_asked().get(path, 0)
        }
        raise AssertionError(f"the record of {trace.operation.name} is not complete: {sorted(differing)}")


@dataclass
class Campaign:
    """So many states of a trace: each of the extremes at each moment, and drawn ones."""

    directory: Path
    counts: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)

    def run(self, trace: Trace, states: int, seed: int) -> None:
        """Judge so many states that differ, or as many as there are."""
        with tempfile.TemporaryDirectory(dir=self.directory) as place:
            judge = Judge(trace.operation, Path(place))
            seen: set[tuple[bytes, frozenset[str]]] = set()
            for state, acknowledged, where in self._states(trace, states, seed):
                key = digest_of(state), acknowledged
                if key in seen:
                    continue
                seen.add(key)
                judge.judge(state, acknowledged, f"{where}, seed {seed}")
                if len(seen) == states:
                    break
        self.counts.update(judge.counts)
        self.counts["states"] += len(seen)
        self.wrong.update(judge.wrong)

    def _states(self, trace: Trace, most: int, seed: int) -> Iterator[tuple[State, frozenset[str], str]]:
        """First some of the extremes of every moment, then all of them, then drawn ones, of all moments in turn."""
        moments = sum(1 for _ in _moments(trace))
        for limit in (max(8, most // (2 * moments)), None):
            for disk, acknowledged, where in _moments(trace):
                for state in islice(disk.extremes(), limit):
                    yield state, acknowledged, where
        chance = random.Random(seed)
        rounds = max(1, 2 * most // max(1, moments))
        for _ in range(3):
            for disk, acknowledged, where in _moments(trace):
                for _ in range(rounds):
                    yield disk.drawn(chance), acknowledged, where


def _moments(trace: Trace) -> Iterator[tuple[Disk, frozenset[str], str]]:
    """The disk after each record, what was acknowledged before, and what was done last."""
    disk = Disk(trace.top)
    for one in trace.before:
        disk.do(one)
    disk.settle()
    acknowledged: frozenset[str] = frozenset()
    yield disk, acknowledged, "at the start"
    for number, one in enumerate(trace.records):
        if one.what is What.MARKED:
            acknowledged |= {one.source.removeprefix("done ")}
        disk.do(one)
        yield disk, acknowledged, f"after record {number}, {one.what.name} {one.source} {one.target}"
