"""At which steps a run saves: every so many, or as often as measured times of steps and saves say."""

from __future__ import annotations

import json
import time
from collections import deque
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar

from ucpformat.cadence import decision
from ucpformat.cadence.decision import Cadence, SaveTimes, require_shares
from ucpformat.distributed.group import decided
from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Callable

    from ucpformat.distributed.group import Group
    from ucpformat.jsonio import JsonValue

__all__ = ["CADENCE", "MAX_OVERHEAD", "Pace", "SaveTimer"]

CADENCE: Final = "org.ucpformat.cadence"
"""Annotation of a root document: how often its run saved then, and why (`Cadence.to_json`)."""
MAX_OVERHEAD: Final = 0.03
"""The share of the time that checkpoints may take, unless it is given."""
_WARM_UP_STEPS: Final = 4
"""So many steps are measured before the first save: the first ones are often slow."""
_STEPS_KEPT: Final = 64
_SAVES_KEPT: Final = 5


class Save(Protocol):
    """A save that was begun, such as an `AsyncSave`."""

    def done(self) -> bool:
        """Return whether it has ended; by then `Pace.committed` was called, unless it has failed."""
        ...


SaveT = TypeVar("SaveT", bound=Save)


class SaveTimer:
    """Measures steps and saves of a training loop, by medians of the last few.

    `step` comes when a step has ended, `begin_save` and `end_save` around the call that saves, and `committed`, from
    any thread, when that checkpoint is durable: within the call, later, or never. ``clock`` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._mark: tuple[int, float] | None = None
        self._paused = 0.0
        self._begin = 0.0
        self._writes: deque[float] = deque(maxlen=_SAVES_KEPT)
        self._stalls: deque[float] = deque(maxlen=_SAVES_KEPT)
        self._slowdowns: deque[float] = deque(maxlen=_SAVES_KEPT)
        self._steps: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._disturbed: list[tuple[int, float]] = []
        self._is_disturbed = False
        self.is_saving = False

    def step(self, step: int) -> None:
        """Note that a step has ended; what comes again, or is earlier, only begins a new measurement."""
        now = self._clock()
        if self._mark is not None and step > self._mark[0]:
            count = step - self._mark[0]
            each = (now - self._mark[1] - self._paused) / count
            if self._is_disturbed:
                self._disturbed.append((count, each))
            else:
                self._steps.append(each)
        self._is_disturbed = self.is_saving
        if not self.is_saving and self._disturbed and self._steps:
            usual = median(self._steps)
            self._slowdowns.append(max(0.0, sum(count * (each - usual) for count, each in self._disturbed)))
            self._disturbed = []
        self._mark, self._paused = (step, now), 0.0

    def begin_save(self) -> None:
        """Note that training stops for a save."""
        self._begin = self._clock()
        self._is_disturbed = self.is_saving = True

    def end_save(self, *, is_under_way: bool) -> None:
        """Note that training goes on, and whether the checkpoint is still being written, or will never be."""
        stall = self._clock() - self._begin
        self._paused += stall
        if is_under_way or not self.is_saving:
            self._stalls.append(stall)
        else:
            self.is_saving = False

    def committed(self) -> None:
        """Note that the checkpoint is durable."""
        self._writes.append(self._clock() - self._begin)
        self.is_saving = False

    @property
    def is_warm(self) -> bool:
        """Whether enough steps were measured."""
        return len(self._steps) >= _WARM_UP_STEPS - 1

    def times(self) -> SaveTimes | None:
        """Return what was measured; None as long as no step, or no save."""
        if not (self._steps and self._stalls and self._writes):
            return None
        step = max(median(self._steps), 1e-9)
        return SaveTimes(step, median(self._stalls), median(self._writes), median(self._slowdowns or [0.0]))


class Pace:
    """Says at which steps all ranks of a run save.

    ``decide`` says what times mean for a run, where `cadence.decide` alone does not know enough of it.

    Raises:
        UcpError: ``UCP-E-LIMIT`` for numbers out of range; ``UCP-E-MISMATCH`` for an option without effect.
    """

    def __init__(
        self,
        every: int | Literal["auto"] | None,
        max_overhead: float | None,
        mtbf: float | None,
        *,
        timer: SaveTimer | None = None,
        decide: Callable[[SaveTimes], Cadence] | None = None,
    ) -> None:
        if every not in ("auto", None) and not (type(every) is int and every > 0):
            raise error(
                "UCP-E-LIMIT", f'every= is a number of steps above 0, or "auto", not {every!r}', at="every"
            )
        for name, value in (("max_overhead", max_overhead), ("mtbf", mtbf)):
            if value is not None and every != "auto":
                message = (
                    f'{name}= is about checkpoints as often as measured times say: give every="auto" as well'
                )
                raise error("UCP-E-MISMATCH", message, at=name)
        share = MAX_OVERHEAD if max_overhead is None else max_overhead
        require_shares(share, mtbf)
        self._every = every
        self._decide = decide or partial(decision.decide, max_overhead=share, mtbf=mtbf)
        self._timer = timer or SaveTimer()
        self._ask_at: int | None = None
        self._saved_at: int | None = None
        self._answer: tuple[int | None, bool] = (None, False)
        self._save: Save | None = None
        self.cadence: Cadence | None = None

    def is_due(self, step: int, group: Group) -> bool:
        """Return whether to save at a step, as all ranks agree; they meet at some steps alone, all at the same."""
        if self._every is None:
            message = 'the manager was not told how often to save: give every=N, or every="auto"'
            raise error("UCP-E-MISMATCH", message, at="every")
        if type(step) is not int:
            raise error("UCP-E-MISMATCH", f"a step is a whole number, not {step!r}", at="step")
        if self._every != "auto":
            return step % self._every == 0
        if step == self._answer[0]:
            return self._answer[1]
        last = self._answer[0]
        self._timer.step(step)
        if self._ask_at is None or (last is not None and step < last):
            # A run that goes back measures on, and saves by the new steps.
            self._ask_at, self._saved_at = step + _WARM_UP_STEPS, None
        is_due = False
        if step >= self._ask_at:
            is_due, self._ask_at, cadence = json.loads(
                decided(group, lambda: json.dumps(self._look(step)).encode())
            )
            self.cadence = Cadence.from_json(cadence)
        self._answer = step, is_due
        return is_due

    def _look(self, step: int) -> tuple[bool, int, JsonValue]:
        """Return whether a save is due, the step to ask at again, and the decision, as the first rank sees it."""
        is_under_way = self._is_under_way()  # before times are looked at: it may end between
        times = self._timer.times()
        found = None if times is None else self._decide(times)
        told = None if found is None else found.to_json()
        saved_at = self._saved_at
        if saved_at is not None and is_under_way:
            # When it is due at the earliest; of a first one, of which nothing is known, ever more seldom.
            due = 2 * step - saved_at if found is None else saved_at + found.every
            return False, max(step + 1, due), told
        if found is None or saved_at is None:
            return (True, step + 1, told) if self._timer.is_warm else (False, step + 1, told)
        due = saved_at + found.every
        return (True, step + 1, told) if step >= due else (False, due, told)

    def timed(self, step: int, save: Callable[[], SaveT]) -> SaveT:
        """Save a step, and measure what training stops for it; `committed` comes from within, or later."""
        self._saved_at, self._ask_at = step, step + 1
        self._timer.begin_save()
        self._save = None
        try:
            self._save = found = save()
        finally:
            self._timer.end_save(is_under_way=self._is_under_way())
        return found

    def _is_under_way(self) -> bool:
        return self._save is not None and not self._save.done()

    def committed(self) -> None:
        """Note, from any thread, that the checkpoint is durable."""
        self._timer.committed()
