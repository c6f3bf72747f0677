"""At which steps of a logged run a full checkpoint is saved."""

from __future__ import annotations

import json
import time
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Final

from ucpformat.cadence.decision import Cadence, decide, require_shares
from ucpformat.distributed.group import decided
from ucpformat.errors import error
from ucpformat.manager.pace import SaveTimer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from ucpformat.distributed.background_save import AsyncSave
    from ucpformat.distributed.group import Group

__all__ = ["FullPace"]

_MOST_STEPS: Final = 1000
_LEAST_BYTES: Final = 1 << 24
_MAX_OVERHEAD: Final = 0.03
_STEPS_KEPT: Final = 64


class FullPace:
    """Says when a full checkpoint is due: every so many steps, or by a rule of its own, with ``"auto"``.

    Where failures come every ``mtbf`` seconds, it is as often as `cadence.exact_replay` says of measured times, at no
    more than 3 % of the time; else when the log has grown to the size of a checkpoint, or has 1000 steps. Replay is
    taken to cost what the optimizer's steps do. All ranks of ``group`` are told alike.

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
        require_shares(_MAX_OVERHEAD, mtbf)
        self._full_every = full_every
        self._mtbf = mtbf
        self._group = group
        self._clock = clock
        self._timer = SaveTimer(clock)
        self._optimizer: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._most_bytes = _LEAST_BYTES
        self._saved_at = 0
        self._written = 0
        self._ask_at = 0
        self._answer: tuple[int, bool] = (-1, False)
        self._save: AsyncSave | None = None
        self.cadence: Cadence | None = None

    def begin(self, step: int, nbytes: int) -> None:
        """Begin with a state whose gradients have so many bytes."""
        self._saved_at = step
        self._most_bytes = max(3 * nbytes, _LEAST_BYTES)

    def made(self, make: Callable[[], object]) -> None:
        """Have the optimizer make a step, and measure it."""
        begin = self._clock()
        make()
        self._optimizer.append(self._clock() - begin)

    def is_due(self, step: int, written: int) -> bool:
        """Return whether a checkpoint is due at a step, behind which ``written`` bytes of the log are there."""
        since = step - self._saved_at
        if self._full_every is None:
            return False
        if self._full_every != "auto":
            return since >= self._full_every
        if self._mtbf is not None:
            return self._is_due_for_failures(step)
        # All ranks have to come to the same answer: what one of them has written, another does not know.
        if len(self._group.ranks) > 1:
            return since >= _MOST_STEPS
        return since >= _MOST_STEPS or written - self._written > self._most_bytes

    def _is_due_for_failures(self, step: int) -> bool:
        if self._answer[0] == step:
            return self._answer[1]
        self._note_commit()
        self._timer.step(step)
        is_due = False
        if step >= self._ask_at:
            found = json.loads(decided(self._group, lambda: json.dumps(self._look(step)).encode()))
            is_due, self._ask_at = found["due"], found["ask_at"]
            self.cadence = Cadence.from_json(found["cadence"])
        self._answer = step, is_due
        return is_due

    def _look(self, step: int) -> dict[str, object]:
        """Return whether a checkpoint is due, the step to ask at again, and the decision, as the first rank sees it."""
        times = self._timer.times()
        if times is None:
            # A save that is under way is measured when it ends; where there was none, one is made for its times.
            is_due = self._save is None and self._timer.is_warm
            return {"due": is_due, "ask_at": step + 1, "cadence": None}
        replay = min(1.0, max(median(self._optimizer) / times.step, 1e-6)) if self._optimizer else 1.0
        cadence = decide(times, max_overhead=_MAX_OVERHEAD, mtbf=self._mtbf, replay=replay)
        due = self._saved_at + cadence.every
        is_due = step >= due and self._save is None
        return {"due": is_due, "ask_at": max(step + 1, due), "cadence": cadence.to_json()}

    def _note_commit(self) -> None:
        if self._save is not None and self._save.done():
            self._save = None
            self._timer.committed()

    def saved(self, step: int, written: int, save: Callable[[], AsyncSave]) -> None:
        """Save a checkpoint of a step, and measure for how long training stops."""
        self._note_commit()
        self._saved_at, self._written, self._ask_at = step, written, step + 1
        self._timer.begin_save()
        try:
            self._save = save()
        finally:
            self._timer.end_save(is_under_way=self._save is not None)
