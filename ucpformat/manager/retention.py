"""Which checkpoints of a run are kept: the last ones, every so many steps, the best ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ucpformat.errors import error

__all__ = ["Retention"]


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept is what any of the rules keeps; without any, everything.

    ``last`` newest ones; those whose step is a multiple of ``every``; the ``best`` ones, of which ``metric`` is the
    least (``mode`` ``"min"``) or the greatest (``"max"``), the later one where two are equal. What has no such metric,
    or one that is not a finite number, is not among the best where others have it; where none has it, nobody knows
    which is best, and all are kept. The newest one is always kept.

    Raises:
        UcpError: ``UCP-E-LIMIT`` for numbers below one, ``UCP-E-MISMATCH`` for ``best`` without ``metric``, and for
            ``metric`` or ``mode`` without ``best``.
    """

    last: int | None = None
    every: int | None = None
    best: int | None = None
    metric: str | None = None
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        for name in ("last", "every", "best"):
            number = getattr(self, name)
            if number is not None and type(number) is not int:
                raise error("UCP-E-MISMATCH", f"how many is an integer, not {number!r}", at=name)
            if number is not None and number < 1:
                raise error(
                    "UCP-E-LIMIT", "keep at least one; leave the rule out to keep none by it", at=name
                )
        if (self.best is None) != (self.metric is None):
            raise error("UCP-E-MISMATCH", "`best` and `metric` go together: how many, by what", at="metric")
        if self.mode not in ("min", "max"):
            raise error("UCP-E-MISMATCH", f"the mode is min or max, not {self.mode!r}", at="mode")
        if self.mode != "min" and self.best is None:
            raise error(
                "UCP-E-MISMATCH", "`mode` says what is best by a metric: give `best` as well", at="mode"
            )

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever removed."""
        return self.last is None and self.every is None and self.best is None

    def ranked(self, steps: Iterable[int], metrics: Mapping[int, Mapping[str, float]]) -> list[int]:
        """Return the steps that have a finite metric, the best one first."""
        if self.metric is None:
            return []
        values = {step: metrics.get(step, {}).get(self.metric, math.nan) for step in steps}
        sign = 1 if self.mode == "min" else -1
        return [-step for _, step in sorted((sign * v, -s) for s, v in values.items() if math.isfinite(v))]

    def kept(self, steps: Iterable[int], metrics: Mapping[int, Mapping[str, float]]) -> set[int]:
        """Return the steps that are kept, of all that are committed."""
        ordered = sorted(steps)
        if self.keeps_all or self.is_unjudged(ordered, metrics):
            return set(ordered)
        return self._by_number(ordered) | set(self.ranked(ordered, metrics)[: self.best or 0])

    def is_unjudged(self, steps: Iterable[int], metrics: Mapping[int, Mapping[str, float]]) -> bool:
        """Return whether steps are kept only because none has the metric."""
        ordered = sorted(steps)
        return (
            self.best is not None
            and not self.ranked(ordered, metrics)
            and self._by_number(ordered) != set(ordered)
        )

    def _by_number(self, ordered: list[int]) -> set[int]:
        kept = set(ordered[-(self.last or 1) :])
        if self.every is not None:
            kept.update(step for step in ordered if step % self.every == 0)
        return kept
