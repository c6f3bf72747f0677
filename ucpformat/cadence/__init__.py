"""How often to save: optimal intervals, a simulator of a job that fails, and what `CheckpointManager` decides by.

Everything here is arithmetic; nothing is measured, written or read. Times are in seconds, of any clock.

>>> cadence = ucp.cadence.decide(
...     ucp.cadence.SaveTimes(step=0.5, stall=0.3, write=4.0), max_overhead=0.03, mtbf=3600
... )
>>> cadence.every, cadence.reason
(93, 'failures')
"""

from ucpformat.cadence.copies import (
    CopySpeeds,
    DueCopy,
    NextCopy,
    SnapshotOutcome,
    next_copy,
    simulate_snapshot,
)
from ucpformat.cadence.decision import Cadence, SaveTimes, decide
from ucpformat.cadence.intervals import (
    LogIntervals,
    checkfreq,
    daly,
    exact_replay,
    lowdiff,
    pccheck,
    young,
)
from ucpformat.cadence.simulation import JobCosts, JobOutcome, best_interval, failure_gaps, simulate

__all__ = [
    "Cadence",
    "CopySpeeds",
    "DueCopy",
    "JobCosts",
    "JobOutcome",
    "LogIntervals",
    "NextCopy",
    "SaveTimes",
    "SnapshotOutcome",
    "best_interval",
    "checkfreq",
    "daly",
    "decide",
    "exact_replay",
    "failure_gaps",
    "lowdiff",
    "next_copy",
    "pccheck",
    "simulate",
    "simulate_snapshot",
    "young",
]
