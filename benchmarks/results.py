"""Readings of a run, their medians, and ratios between contenders that ran in turn."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.measure import Footprint, Reading

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.facts import Facts

__all__ = ["Ratio", "Run", "Series", "Task", "quartiles"]

SCHEMA = "ucpformat-benchmark-1"


class Task(NamedTuple):
    """What was done: ``save``, ``save durable`` or ``load``."""

    contender: str
    what: str


@dataclass(frozen=True, slots=True)
class Series:
    """Readings of one task, one per round, in order."""

    readings: list[Reading] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Median."""
        return median(reading.seconds for reading in self.readings)

    @property
    def cpu_seconds(self) -> float:
        """Median."""
        return median(reading.cpu_seconds for reading in self.readings)

    @property
    def peak_bytes(self) -> int:
        """Median."""
        return int(median(reading.peak_bytes for reading in self.readings))


class Ratio(NamedTuple):
    """How many times faster: the median over rounds of the ratio within a round, and the middle half."""

    middle: float
    low: float
    high: float


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Where the middle half of the values begins and ends."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return ordered[quarter], ordered[-1 - quarter]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a benchmark: how, where, and what came out."""

    command: str
    facts: Facts
    nbytes: int
    arrays: int
    notes: dict[str, str]
    series: dict[Task, Series]
    footprints: dict[str, Footprint]

    def contenders(self) -> list[str]:
        """Names, in order of the tables."""
        return list(self.notes)

    def rate(self, task: Task) -> float:
        """Median rate in GB/s (10^9 bytes)."""
        return self.nbytes / self.series[task].seconds / 1e9

    def ratio(self, task: Task, other: str) -> Ratio:
        """How many times faster a contender did a task than ``other``, round by round."""
        pairs = zip(self.series[task].readings, self.series[Task(other, task.what)].readings, strict=True)
        values = [theirs.seconds / ours.seconds for ours, theirs in pairs]
        return Ratio(median(values), *quartiles(values))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        """What `to_json` returned."""
        found = {one["name"]: one for one in value["contenders"]}
        return cls(
            value["command"],
            value["facts"],
            value["state"]["bytes"],
            value["state"]["arrays"],
            {name: one["note"] for name, one in found.items()},
            {
                Task(name, what): Series([Reading(**reading) for reading in readings])
                for name, one in found.items()
                for what, readings in one["tasks"].items()
            },
            {name: Footprint(one["stored_bytes"], one["objects"]) for name, one in found.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Everything that was read, so that other statistics can be had from it."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "facts": self.facts,
            "state": {"bytes": self.nbytes, "arrays": self.arrays},
            "contenders": [
                {
                    "name": name,
                    "note": note,
                    "stored_bytes": self.footprints[name].nbytes,
                    "objects": self.footprints[name].objects,
                    "tasks": {
                        task.what: [asdict(reading) for reading in series.readings]
                        for task, series in self.series.items()
                        if task.contender == name
                    },
                }
                for name, note in self.notes.items()
            ],
        }
