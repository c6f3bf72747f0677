"""Intervals between checkpoints that waste the least time, as publications derive them."""

from __future__ import annotations

from math import ceil, sqrt
from typing import NamedTuple

from ucpformat.cadence.amounts import require_positive, require_seconds

__all__ = ["LogIntervals", "checkfreq", "daly", "exact_replay", "lowdiff", "pccheck", "young"]


class LogIntervals(NamedTuple):
    """How much training lies between full checkpoints, and between batches of an update log.

    Attributes:
        full: seconds of training between full checkpoints.
        batch: seconds of training between durable batches.

    >>> ucp.cadence.LogIntervals(full=600.0, batch=2.0).full
    600.0
    """

    full: float
    batch: float


def young(cost: float, mtbf: float) -> float:
    """Return Young's interval: the seconds of training between checkpoints that waste the least, to first order.

    It takes failures to come at random, independently (exponential), rarely against the interval, with the training
    since the last checkpoint lost. It is the square root of ``2 * cost * mtbf`` (Young, CACM 17(9), 1974).

    Args:
        cost: seconds that training stops for a checkpoint.
        mtbf: mean seconds between failures of the whole job; that of one node, divided by the nodes.

    Raises:
        UcpError: ``UCP-E-LIMIT`` for what is not positive and finite.

    >>> round(ucp.cadence.young(cost=2, mtbf=10_000))
    200
    """
    require_positive(cost=cost, mtbf=mtbf)
    return sqrt(2 * cost * mtbf)


def daly(cost: float, mtbf: float) -> float:
    """Return Daly's interval: Young's with terms for failures that are not rare against the interval.

    Where a checkpoint costs more than twice the time between failures, it is that time (Daly, FGCS 22(3), 2006,
    equation 37).

    Args:
        cost: seconds that training stops for a checkpoint.
        mtbf: mean seconds between failures of the whole job.

    Raises:
        UcpError: ``UCP-E-LIMIT`` for what is not positive and finite.

    >>> round(ucp.cadence.daly(cost=2, mtbf=10_000)), round(ucp.cadence.daly(cost=250, mtbf=100))
    (199, 100)
    """
    require_positive(cost=cost, mtbf=mtbf)
    if cost >= 2 * mtbf:
        return mtbf
    ratio = cost / (2 * mtbf)
    return sqrt(2 * cost * mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost


def checkfreq(step: float, stall: float, write: float, max_overhead: float) -> int:
    """Return CheckFreq's interval in steps: as often as one write at a time and a bound on the overhead allow.

    A checkpoint is written while training goes on, so the next may begin when it is written; the published
    ``ceil((write - stall) / step)`` alone lets training stop for an unbounded share of the time, so that the share is
    bounded as well (Mohan et al., FAST '21).

    Args:
        step: seconds of a training step.
        stall: seconds that training stops for a checkpoint.
        write: seconds from its begin until it is durable.
        max_overhead: share of the time that checkpoints may take, as 0.03.

    Raises:
        UcpError: ``UCP-E-LIMIT`` for a number that is out of range.

    >>> ucp.cadence.checkfreq(step=0.5, stall=0.3, write=4.0, max_overhead=0.03)
    20
    """
    require_positive(step=step, max_overhead=max_overhead)
    require_seconds(stall=stall, write=write)
    return max(1, ceil((write - stall) / step), ceil(stall / (max_overhead * step)))


def pccheck(step: float, write: float, writers: int, slowdown: float) -> int:
    """Return PCcheck's interval in steps: as often as several checkpoints at a time can be written.

    Args:
        step: seconds of a training step.
        write: seconds that one checkpoint takes to be durable, while ``writers`` are being written.
        writers: how many checkpoints are written at a time; each more takes the room of one.
        slowdown: factor by which training may slow down, as 1.05 (Strati et al., ASPLOS '25).

    Raises:
        UcpError: ``UCP-E-LIMIT`` for a number that is out of range.

    >>> ucp.cadence.pccheck(step=0.5, write=4.0, writers=4, slowdown=1.05)
    2
    """
    require_positive(step=step, slowdown=slowdown, writers=writers)
    require_seconds(write=write)
    return max(1, ceil(write / (writers * slowdown * step)))


def lowdiff(cost: float, mtbf: float, merge: float) -> LogIntervals:
    """Return LowDiff's intervals: of full checkpoints, and of batches, each of which a recovery applies at once.

    One application for a batch of summed gradients is right for plain SGD alone: under Adam it moves elsewhere. Use
    `exact_replay`, which makes every step again. The optimum is that of ``cost / full + (batch / 2 + merge / 2 *
    (full / batch - 1)) / mtbf`` (Yao et al., SC '25, with their bandwidth, size and frequency as seconds).

    Args:
        cost: seconds that training stops for a full checkpoint.
        mtbf: mean seconds between failures of the whole job.
        merge: seconds that a recovery needs for one batch.

    Raises:
        UcpError: ``UCP-E-LIMIT`` for what is not positive and finite.

    >>> found = ucp.cadence.lowdiff(cost=2, mtbf=10_000, merge=0.5)
    >>> round(found.full), round(found.batch)
    (1474, 27)
    """
    require_positive(cost=cost, mtbf=mtbf, merge=merge)
    batch: float = (2 * cost * merge * mtbf) ** (1 / 3)
    full: float = (4 * cost**2 * mtbf**2 / merge) ** (1 / 3)
    return LogIntervals(full, batch)


def exact_replay(cost: float, batch_cost: float, mtbf: float, replay: float) -> LogIntervals:
    """Return intervals of full checkpoints and of batches for a log whose recovery makes every step again.

    A failure costs the training since the last batch, and for that since the last full checkpoint the time of its
    replay. So ``cost / full + batch_cost / batch + (replay * full / 2 + batch / 2) / mtbf`` is least at the square
    roots of ``2 * cost * mtbf / replay`` and ``2 * batch_cost * mtbf``: Young's interval, longer by how much faster a
    replay is than training, and Young's for batches. Assumptions are those of `young`.

    Args:
        cost: seconds that training stops for a full checkpoint.
        batch_cost: seconds that training stops for a batch.
        mtbf: mean seconds between failures of the whole job.
        replay: seconds of replay for a second of training, as 0.13.

    Raises:
        UcpError: ``UCP-E-LIMIT`` for what is not positive and finite.

    >>> found = ucp.cadence.exact_replay(cost=2, batch_cost=0.001, mtbf=10_000, replay=0.13)
    >>> round(found.full), round(found.batch, 1)
    (555, 4.5)
    """
    require_positive(cost=cost, batch_cost=batch_cost, mtbf=mtbf, replay=replay)
    return LogIntervals(sqrt(2 * cost * mtbf / replay), sqrt(2 * batch_cost * mtbf))
