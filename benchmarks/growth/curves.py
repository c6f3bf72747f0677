"""Curves: what was measured at each size, and the exponent that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from benchmarks.measure import Reading, measured
from benchmarks.tables import Row

__all__ = ["SCHEMA", "Curves", "Point", "best_of", "exponent", "rows"]

_T = TypeVar("_T")

SCHEMA: Final = "ucpformat-benchmark-growth-1"
FITTED: Final = 3
"""The largest sizes, to which an exponent is fitted: small ones show what everything costs once."""
LEAST: Final = 0.01
"""Seconds or MiB below which there is nothing to fit."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one size, by name; a name ends in its unit."""

    size: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Curves:
    """One run: points by case, in order of size."""

    command: str
    facts: dict[str, Any]
    over: str
    cases: dict[str, list[Point]]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Curves:
        """What `to_json` returned."""
        cases = {
            one["case"]: [
                Point(point["size"], {name: found for name, found in point.items() if name != "size"})
                for point in one["points"]
            ]
            for one in value["cases"]
        }
        return cls(value["command"], value["facts"], value["over"], cases)

    def to_json(self) -> dict[str, Any]:
        """Every value."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "facts": self.facts,
            "over": self.over,
            "cases": [
                {"case": case, "points": [{"size": point.size, **point.values} for point in points]}
                for case, points in self.cases.items()
            ],
        }


def best_of(repeats: int, work: Callable[[], _T]) -> tuple[_T, Reading]:
    """Do the work some times; what came of it, and the reading with the least processor time.

    The least, and not the median: neighbours on the machine only ever add to the processor time of planning.
    """
    found: list[_T] = []
    readings = []
    for _ in range(repeats):
        found.clear()
        readings.append(measured(lambda: found.append(work())))
    return found[0], min(readings, key=lambda reading: reading.cpu_seconds)


def exponent(points: Sequence[Point], name: str) -> float | None:
    """The power of the size that fits the last points best, or None where there is too little to fit."""
    found = [(point.size, point.values[name]) for point in points[-FITTED:] if name in point.values]
    if len({size for size, _ in found}) < 2 or min(value for _, value in found) < LEAST:
        return None
    logs = [(math.log(size), math.log(value)) for size, value in found]
    middle = [sum(values) / len(logs) for values in zip(*logs, strict=True)]
    spread = sum((x - middle[0]) ** 2 for x, _ in logs)
    return float(sum((x - middle[0]) * (y - middle[1]) for x, y in logs) / spread)


def rows(over: str, points: Sequence[Point]) -> list[Row]:
    """One case as a table: a row for each value, a column for each size, and the exponent."""
    names = [*dict.fromkeys(name for point in points for name in point.values)]
    head = [over, *(f"{point.size:,}" for point in points), "exponent"]
    return [head, *([name, *(_cell(point, name) for point in points), _fit(points, name)] for name in names)]


def _cell(point: Point, name: str) -> str:
    value = point.values.get(name)
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"


def _fit(points: Sequence[Point], name: str) -> str:
    found = exponent(points, name)
    return "" if found is None else f"{found:.2f}"
