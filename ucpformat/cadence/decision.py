"""What measured times of steps and saves say about how often to save."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from ucpformat.cadence.amounts import is_number, require_kind, require_positive, require_seconds
from ucpformat.cadence.intervals import daly, exact_replay
from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ucpformat.jsonio import JsonValue

__all__ = ["Cadence", "Reason", "SaveTimes", "decide"]

Reason = Literal["overhead", "write", "failures", "log", "step"]

_WORDS: Final[Mapping[Reason, str]] = {
    "overhead": "checkpoints may take {share:.3g} % of the time",
    "write": "one is written at a time",
    "failures": "a failure comes every {mtbf:.3g} s",
    "log": "the log has the size of a checkpoint by then, or is as long as it may be",
    "step": "every step is cheap enough",
}


@dataclass(frozen=True, slots=True)
class SaveTimes:
    """Measured seconds of training and saving.

    Attributes:
        step: seconds of a training step while nothing is saved.
        stall: seconds that training stops for a checkpoint.
        write: seconds from its begin until it is durable.
        slowdown: seconds by which steps beside the writing take longer, for one checkpoint.

    >>> ucp.cadence.SaveTimes(step=0.5, stall=0.3, write=4.0, slowdown=0.2).cost
    0.5
    """

    step: float
    stall: float
    write: float
    slowdown: float = 0.0

    @property
    def cost(self) -> float:
        """Seconds of training that a checkpoint costs.

        >>> ucp.cadence.SaveTimes(step=0.5, stall=0.25, write=4.0).cost
        0.25
        """
        return self.stall + self.slowdown


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often to save, and why.

    Attributes:
        every: steps between checkpoints.
        reason: what is the cause that it is not less: the bound on the ``"overhead"``, the ``"write"`` of one
            checkpoint at a time, the optimum for ``"failures"``, the size of a ``"log"``; or ``"step"``, where it is 1.
        times: what was measured.
        max_overhead: share of the time that checkpoints may take.
        mtbf: mean seconds between failures, if they are known.
        replay: seconds of replay for a second of training, where an update log has the steps between.

    >>> times = ucp.cadence.SaveTimes(step=0.5, stall=0.3, write=4.0)
    >>> print(ucp.cadence.decide(times, max_overhead=0.03))
    every 20 steps: a step takes 0.5 s and a checkpoint 0.3 s of training, 4 s until it is durable; ...
    """

    every: int
    reason: Reason
    times: SaveTimes
    max_overhead: float
    mtbf: float | None = None
    replay: float | None = None

    def __str__(self) -> str:
        """Return a sentence that says what was decided, and why."""
        times = self.times
        often = f"every {self.every} steps" if self.every > 1 else "every step"
        why = _WORDS[self.reason].format(share=100 * self.max_overhead, mtbf=self.mtbf or 0)
        if self.replay is not None:
            why += f", and the log is replayed in {self.replay:.3g} of the time of training"
        return (
            f"{often}: a step takes {times.step:.3g} s and a checkpoint {times.cost:.3g} s of training,"
            f" {times.write:.3g} s until it is durable; {why}"
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the decision as an annotation of a checkpoint keeps it.

        >>> times = ucp.cadence.SaveTimes(step=0.5, stall=0.3, write=4.0)
        >>> ucp.cadence.decide(times, max_overhead=0.03).to_json()["every"]
        20
        """
        found: dict[str, JsonValue] = {
            "every": self.every,
            "reason": self.reason,
            "step_seconds": self.times.step,
            "stall_seconds": self.times.stall,
            "write_seconds": self.times.write,
            "slowdown_seconds": self.times.slowdown,
            "max_overhead": self.max_overhead,
        }
        if self.mtbf is not None:
            found["mtbf_seconds"] = self.mtbf
        return found if self.replay is None else found | {"replay": self.replay}

    @classmethod
    def from_json(cls, found: Any) -> Self | None:
        """Return what `to_json` was given; None for anything else, which is no decision of ours.

        >>> ucp.cadence.Cadence.from_json({"every": "now and then"}) is None
        True
        """
        if not isinstance(found, dict) or found.get("reason") not in [*_WORDS]:
            return None
        every, mtbf, replay = found.get("every"), found.get("mtbf_seconds"), found.get("replay")
        names = ("step_seconds", "stall_seconds", "write_seconds", "slowdown_seconds", "max_overhead")
        numbers = [found.get(name) for name in names]
        if type(every) is not int or every < 1 or not all(type(one) in (int, float) for one in numbers):
            return None
        if any(one is not None and type(one) not in (int, float) for one in (mtbf, replay)):
            return None
        *times, max_overhead = (float(one) for one in numbers if one is not None)
        return cls(every, found["reason"], SaveTimes(*times), max_overhead, mtbf, replay)


def decide(
    times: SaveTimes,
    *,
    max_overhead: float,
    mtbf: float | None = None,
    replay: float | None = None,
    log_steps: int | None = None,
) -> Cadence:
    """Return how often to save: no more often than the overhead allows, and than failures make worth while.

    A checkpoint begins when the one before it is durable. Its cost, against ``every`` steps, is at most
    ``max_overhead``. With ``mtbf`` it is no more often than `daly` says; without, as often as the two bounds allow, as
    CheckFreq does. Where an update log has the steps between, it is `exact_replay` in place of `daly`; and without
    ``mtbf`` no more often than after ``log_steps``, since nothing is gained but a shorter replay.

    Args:
        times: measured seconds.
        max_overhead: share of the time that checkpoints may take, as 0.03.
        mtbf: mean seconds between failures of the whole job, if they are known.
        replay: seconds of replay for a second of training, where an update log has the steps.
        log_steps: steps whose replay is worth another checkpoint, where failures are not known: such as those with
            which the log has grown to the size of one.

    Raises:
        UcpError: ``UCP-E-LIMIT`` for a number that is out of range.

    >>> times = ucp.cadence.SaveTimes(step=0.5, stall=0.3, write=40.0)
    >>> ucp.cadence.decide(times, max_overhead=0.03).reason
    'write'
    """
    require_shares(max_overhead, mtbf)
    require_kind(SaveTimes, times=times)
    require_seconds(stall=times.stall, write=times.write, slowdown=times.slowdown)
    if log_steps is not None:
        require_positive(log_steps=log_steps)
    if replay is not None:
        require_positive(replay=replay)
    require_positive(step=times.step)
    candidates: list[tuple[int, Reason]] = [
        (1, "step"),
        (ceil(times.cost / (max_overhead * times.step)), "overhead"),
        (ceil(times.write / times.step), "write"),
    ]
    if mtbf is not None and times.cost > 0:
        seconds = daly(times.cost, mtbf)
        if replay is not None:
            seconds = exact_replay(times.cost, times.cost, mtbf, replay).full
        candidates.append((round(seconds / times.step), "failures"))
    if mtbf is None and log_steps is not None:
        candidates.append((log_steps, "log"))
    every, reason = max(candidates, key=lambda one: one[0])
    return Cadence(every, reason, times, max_overhead, mtbf, replay)


def require_shares(max_overhead: float, mtbf: float | None) -> None:
    """Refuse what is no share of the time, or no time between failures.

    Raises:
        UcpError: ``UCP-E-LIMIT``, with the name of the argument.
    """
    if not (is_number(max_overhead) and 0 < max_overhead <= 1):
        message = f"max_overhead= is a share of the time, above 0 and at most 1, not {max_overhead!r}"
        raise error("UCP-E-LIMIT", message, at="max_overhead")
    if mtbf is not None and not (is_number(mtbf) and 0 < mtbf < float("inf")):
        raise error("UCP-E-LIMIT", f"mtbf= is a number of seconds above 0, not {mtbf!r}", at="mtbf")
