"""A job that fails now and then, simulated: what its checkpoints and its log save, and what they cost."""

from __future__ import annotations

import random
from collections.abc import Sized
from dataclasses import asdict, dataclass
from math import ceil, floor, inf
from typing import TYPE_CHECKING

from ucpformat.cadence.amounts import is_number, require_kind, require_positive, require_seconds
from ucpformat.cadence.intervals import LogIntervals
from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["JobCosts", "JobOutcome", "best_interval", "failure_gaps", "simulate"]

_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class JobCosts:
    """What checkpoints, batches and recoveries take, in seconds.

    Attributes:
        full: training stops for a full checkpoint.
        write: from its begin until it is durable, of training.
        batch: training stops for a batch of the log.
        restart: from a failure until a checkpoint is loaded.
        replay: for a second of training that the log has.

    >>> ucp.cadence.JobCosts(full=2.0).batch
    0.0
    """

    full: float
    write: float = 0.0
    batch: float = 0.0
    restart: float = 0.0
    replay: float = 0.0


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of a job.

    Attributes:
        seconds: what it took.
        failures: how often it failed.
        lost: seconds of training that had to be made again.
        replayed: seconds of training that came back from the log.
        overhead: share of the time that was not training: ``seconds`` against the training alone, less 1.

    >>> costs = ucp.cadence.JobCosts(full=1.0)
    >>> intervals = ucp.cadence.LogIntervals(10.0, float("inf"))
    >>> ucp.cadence.simulate(100.0, costs, intervals, gaps=[1e9]).seconds
    109.0
    """

    seconds: float
    failures: int
    lost: float
    replayed: float
    overhead: float


def failure_gaps(mtbf: float, *, seed: int, count: int) -> list[float]:
    """Return seconds between failures that come at random: exponential, of mean ``mtbf``.

    Raises:
        UcpError: ``UCP-E-LIMIT`` for a time that is not above 0, and a count that is no number of gaps.

    >>> len(ucp.cadence.failure_gaps(100.0, seed=0, count=3))
    3
    """
    require_positive(mtbf=mtbf)
    if type(count) is not int or count < 0:
        raise error("UCP-E-LIMIT", f"count= is a number of gaps, not {count!r}", at="count")
    source = random.Random(seed)  # noqa: S311 - a simulation
    return [source.expovariate(1 / mtbf) for _ in range(count)]


def simulate(training: float, costs: JobCosts, intervals: LogIntervals, gaps: Sequence[float]) -> JobOutcome:
    """Run a job of so much training, which fails after each of ``gaps`` seconds, and once more begins over.

    Full checkpoints and batches come at multiples of their intervals of training; an infinite interval means none. What
    is durable when the job fails is not lost: the job loads the newest full checkpoint, replays the log behind it, and
    trains on. A job may fail while it recovers. Behind the last of ``gaps`` it does not fail.

    Args:
        training: seconds of training until the job is done.
        costs: seconds that things take.
        intervals: seconds of training between full checkpoints, and between batches.
        gaps: seconds between failures, as `failure_gaps` gives them.

    Raises:
        UcpError: ``UCP-E-LIMIT`` for training or an interval that is not above 0, and for what is below 0.

    >>> costs = ucp.cadence.JobCosts(full=1.0, restart=5.0)
    >>> found = ucp.cadence.simulate(100.0, costs, ucp.cadence.LogIntervals(10.0, float("inf")), gaps=[26.0])
    >>> found.failures, round(found.lost, 6), found.seconds
    (1, 4.0, 118.0)
    """
    require_positive(training=training)
    require_kind(JobCosts, costs=costs)
    require_kind(LogIntervals, intervals=intervals)
    require_seconds(**asdict(costs))
    if not (isinstance(gaps, Sized) and all(is_number(one) and one >= 0 for one in gaps)):
        raise error("UCP-E-LIMIT", f"gaps= are seconds, not {gaps!r}", at="gaps")
    if not (all(map(is_number, intervals)) and intervals.full > 0 and intervals.batch > 0):
        raise error("UCP-E-LIMIT", f"intervals are seconds above 0, not {intervals}", at="intervals")
    seconds = lost = replayed = 0.0
    failures = 0
    full = durable = 0.0
    failing = _with_end(gaps)
    left = next(failing)
    # What a checkpoint or a batch costs is paid, and what it keeps is durable, when the job has gone past its mark.
    position = 0.0
    recovery = 0.0
    while True:
        needed = recovery + _wall(position, training, costs, intervals)
        if needed <= left:
            return JobOutcome(seconds + needed, failures, lost, replayed, (seconds + needed) / training - 1)
        seconds += left
        failures += 1
        if left > recovery:
            reached = _reached(position, training, left - recovery, costs, intervals)
            # What was being written when the job failed before is not written any more.
            written = _last_durable(reached, intervals.full, costs.write)
            full = written if written > position else full
            durable = max(full, position, _last_durable(reached, intervals.batch, 0.0))
            lost += reached - durable
            position = durable
        replayed += position - full
        recovery = costs.restart + costs.replay * (position - full)
        left = next(failing)


def _with_end(gaps: Sequence[float]) -> Iterator[float]:
    yield from gaps
    yield inf


def _wall(start: float, end: float, costs: JobCosts, intervals: LogIntervals) -> float:
    """Return the seconds that training from one position to another takes, with what it saves on the way."""
    # What is at the very end is not saved: the job is done.
    fulls = _marks(start, end, intervals.full)
    batches = _marks(start, end, intervals.batch)
    return end - start + fulls * costs.full + batches * costs.batch


def _marks(start: float, end: float, interval: float) -> int:
    """Return how many multiples of the interval lie behind ``start``, and before ``end``."""
    if interval == inf:
        return 0
    last = floor(end / interval)
    return max(0, last - (last * interval >= end) - floor(start / interval))


def _reached(start: float, end: float, seconds: float, costs: JobCosts, intervals: LogIntervals) -> float:
    """Return the position that training comes to in so many seconds, by bisection; a save counts once it is made."""
    low, high = start, min(end, start + seconds)
    for _ in range(40):
        middle = (low + high) / 2
        if _wall(start, middle, costs, intervals) <= seconds:
            low = middle
        else:
            high = middle
    return low


def _last_durable(reached: float, interval: float, write: float) -> float:
    """Return the last multiple of the interval that was durable when training had gone past it, and so much further."""
    return 0.0 if interval == inf else max(0.0, (ceil((reached - write) / interval) - 1) * interval)


def best_interval(
    training: float, costs: JobCosts, gaps: Sequence[Sequence[float]], *, batch: float = inf, most: float
) -> tuple[float, float]:
    """Search for the interval of full checkpoints with the least mean time, by simulation.

    Args:
        training: seconds of training of each job.
        costs: seconds that things take.
        gaps: seconds between failures, of each job that is simulated.
        batch: seconds of training between batches of a log; without one, infinite.
        most: the greatest interval that is tried.

    Returns:
        the interval, and the mean overhead with it.

    Raises:
        UcpError: as `simulate`; ``UCP-E-LIMIT`` where no job is given.

    >>> gaps = [ucp.cadence.failure_gaps(1_000.0, seed=seed, count=200) for seed in range(8)]
    >>> best, overhead = ucp.cadence.best_interval(50_000.0, ucp.cadence.JobCosts(full=2.0), gaps, most=500.0)
    >>> 30 < best < 120  # young(2, 1000) is 63
    True
    """
    require_positive(most=most, jobs=len(gaps) if isinstance(gaps, Sized) else 0)

    def overhead(interval: float) -> float:
        intervals = LogIntervals(interval, batch)
        return sum(simulate(training, costs, intervals, one).overhead for one in gaps) / len(gaps)

    # The sum has one valley, with noise: first a wide look, then the golden section of what lies around its least.
    grid = [most * 0.75**number for number in range(24)]
    least = min(range(len(grid)), key=lambda number: overhead(grid[number]))
    low, high = grid[min(least + 2, len(grid) - 1)], grid[max(least - 2, 0)]
    while high - low > 0.01 * low:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if overhead(left) < overhead(right):
            high = right
        else:
            low = left
    middle = (low + high) / 2
    return min(((one, overhead(one)) for one in (middle, grid[least])), key=lambda one: one[1])
