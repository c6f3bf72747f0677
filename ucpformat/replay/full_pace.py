"""At which steps of a logged run a full checkpoint is saved: by `manager.pace`, which here knows of the log."""

from __future__ import annotations

import time
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Final

from ucpformat.cadence.decision import decide, require_shares
from ucpformat.errors import error
from ucpformat.manager.pace import MAX_OVERHEAD, Pace, SaveTimer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from ucpformat.cadence.decision import Cadence, SaveTimes
    from ucpformat.distributed.background_save import AsyncSave
    from ucpformat.distributed.group import Group

__all__ = ["FullPace", "LogGrowth"]

_MOST_STEPS: Final = 1000
_LEAST_BYTES: Final = 1 << 24
_STEPS_KEPT: Final = 64


class LogGrowth:
    """How fast the log of a rank grows, against a checkpoint of all ranks.

    ``checkpoint_bytes`` returns the bytes of a checkpoint, and ``written_bytes`` what this rank has logged since it
    began at ``first_step``, of the ``share`` of what all ranks log.
    """

    def __init__(
        self,
        first_step: int,
        share: float,
        checkpoint_bytes: Callable[[], int],
        written_bytes: Callable[[], int],
    ) -> None:
        self._first_step = first_step
        self._share = share
        self._checkpoint_bytes = checkpoint_bytes
        self._written_bytes = written_bytes

    def steps(self, step: int) -> int:
        """Return after how many steps the log of all ranks has the size of a checkpoint, as seen at a step."""
        written = self._written_bytes()
        if not (written and self._share):
            return _MOST_STEPS
        each = written / self._share / max(1, step - self._first_step)
        return max(1, min(_MOST_STEPS, int(max(self._checkpoint_bytes(), _LEAST_BYTES) / each)))


class _Told:
    """A save that tells, when it is asked, that it has ended."""

    def __init__(self, save: AsyncSave, committed: Callable[[], None]) -> None:
        self._save = save
        self._committed = committed
        self._is_told = False

    def done(self) -> bool:
        """Return whether the save has ended."""
        if not self._is_told and self._save.done():
            self._is_told = True
            self._committed()
        return self._is_told


class FullPace:
    """Says when a full checkpoint is due: every so many steps since the last one, or with ``"auto"`` as times say.

    It is then at no more than 3 % of the time, and no more often than a recovery makes worth while: where failures come
    every ``mtbf`` seconds, as `cadence.exact_replay` says, else when the log has grown to the size of a checkpoint, or
    has 1000 steps. Replay is taken to cost what the optimizer's steps do. All ranks of ``group`` are told alike, what
    the first one sees.

    Raises:
        UcpError: ``UCP-E-MISMATCH`` for ``mtbf`` without ``"auto"``, ``UCP-E-LIMIT`` for one that is no time.
    """

    def __init__(
        self,
        full_every: int | Literal["auto"] | None,
        mtbf: float | None,
        group: Group,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if mtbf is not None and full_every != "auto":
            message = 'mtbf= is about checkpoints as often as measured times say: leave full_every= at "auto"'
            raise error("UCP-E-MISMATCH", message, at="mtbf")
        require_shares(MAX_OVERHEAD, mtbf)
        self._full_every = full_every
        self._mtbf = mtbf
        self._group = group
        self._clock = clock
        self._optimizer: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._pace = Pace("auto", MAX_OVERHEAD, mtbf, timer=SaveTimer(clock), decide=self._decide)
        self._growth: LogGrowth | None = None
        self._step = self._saved_at = 0
        self._save: _Told | None = None

    @property
    def cadence(self) -> Cadence | None:
        """How often checkpoints are saved, and why; None where that was not decided here, or not yet."""
        return self._pace.cadence

    def begin(self, step: int, growth: LogGrowth) -> None:
        """Begin with a state, behind which a log grows."""
        self._saved_at, self._growth = step, growth

    def made(self, make: Callable[[], object]) -> None:
        """Have the optimizer make a step, and measure it."""
        begin = self._clock()
        make()
        self._optimizer.append(self._clock() - begin)

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due at a step."""
        if self._full_every is None:
            return False
        if self._full_every != "auto":
            return step - self._saved_at >= self._full_every
        if self._save is not None:
            self._save.done()
        self._step = step
        return self._pace.is_due(step, self._group)

    def _decide(self, times: SaveTimes) -> Cadence:
        replay = min(1.0, max(median(self._optimizer) / times.step, 1e-6)) if self._optimizer else 1.0
        log_steps = self._growth.steps(self._step) if self._growth and self._mtbf is None else None
        return decide(times, max_overhead=MAX_OVERHEAD, mtbf=self._mtbf, replay=replay, log_steps=log_steps)

    def saved(self, step: int, save: Callable[[], AsyncSave]) -> None:
        """Save a checkpoint of a step, and measure for how long training stops."""
        self._saved_at = step
        self._save = self._pace.timed(step, lambda: _Told(save(), self._pace.committed))
