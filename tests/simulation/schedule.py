"""Schedules of a few actors: every order of their operations within a bound, and faults, one choice after another.

An actor is a function that runs in a thread of its own, of which one runs at a time. Each operation on the medium
asks for a *decision*: who goes on, and whether the operation fails. A schedule is the list of decisions, and the next
one differs in the last decision that could be taken otherwise, so that all of them are met, each once.

Operations that nobody else can see the effect of, such as a write to a file without a name that others know, ask for
no decision: they commute with all others.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

__all__ = ["Bounds", "Explored", "Killed", "Schedule", "ViolationError", "World", "drawn", "explore"]


class ViolationError(AssertionError):
    """The invariant does not hold."""


class Killed(BaseException):  # nothing may catch it as an error
    """The process of an actor has died: nothing that it still tries has an effect."""


@dataclass(frozen=True)
class Bounds:
    """How far from running one actor after another a schedule may be.

    ``switches`` are those away from an actor that could go on; ``faults`` is how many operations may fail.
    """

    switches: int = 3
    faults: int = 0


class World(Protocol):
    """A medium and the actors that use it, made anew for each schedule."""

    def actors(self) -> Sequence[Callable[[], None]]:
        """What runs; whatever they raise but a violation ends the actor."""
        ...

    def check(self) -> None:
        """Raise a `ViolationError` where the invariant does not hold; called after every operation."""
        ...

    def finish(self) -> None:
        """What holds when all have ended, one way or another."""
        ...


class _Actor:
    """A thread that runs one function after another, when it has the baton."""

    def __init__(self) -> None:
        self.baton = threading.Lock()
        self.baton.acquire()
        self.work: Callable[[], None] = lambda: None
        self.is_dead = self.is_over = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            self.baton.acquire()
            if self.is_over:
                return
            self.work()


_ACTORS: Final[list[_Actor]] = []


@contextmanager
def _actors() -> Iterator[None]:
    """Threads for actors are kept from schedule to schedule, and no longer."""
    try:
        yield
    finally:
        while _ACTORS:
            actor = _ACTORS.pop()
            actor.is_over = True
            actor.baton.release()
            actor.thread.join()


@dataclass
class Schedule:
    """One schedule: what was decided so far, and then the first choice each time, or a drawn one."""

    bounds: Bounds
    prefix: Sequence[int] = ()
    chance: random.Random | None = None
    decisions: list[tuple[int, int]] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    violation: ViolationError | None = None

    def run(self, make: Callable[[Schedule], World]) -> None:
        """Run the actors of a new world to their end, or to the first violation."""
        self._switches, self._faults = self.bounds.switches, self.bounds.faults
        self._world = make(self)
        works = self._world.actors()
        while len(_ACTORS) < len(works):
            _ACTORS.append(_Actor())
        self._running = list(range(len(works)))
        self._late: list[Callable[[], None]] = []
        self._done = threading.Lock()
        self._done.acquire()
        for number, work in enumerate(works):
            _ACTORS[number].work = partial(self._act, number, work)
            _ACTORS[number].is_dead = False
        self.current = -1
        self._pass_on()
        self._done.acquire()
        self.current = -1
        if self.violation is None:
            self._apply_late()
            self._judge(self._world.finish)

    def _act(self, number: int, work: Callable[[], None]) -> None:
        try:
            work()
        except ViolationError as violation:
            self.violation = self.violation or violation
        except BaseException as reason:
            self.trace.append(f"{number}: ended by {reason!r}")
        self._running.remove(number)
        self._pass_on()

    def decide(self, options: int) -> int:
        """One of so many options; the first is what happens without any bound left."""
        if options == 1:
            return 0
        position = len(self.decisions)
        if position < len(self.prefix):
            chosen = self.prefix[position]
        else:
            chosen = 0 if self.chance is None else self.chance.randrange(options)
        self.decisions.append((options, chosen))
        return chosen

    def _pass_on(self) -> None:
        """Give the baton to somebody who runs, or end."""
        if not self._running:
            self._done.release()
            return
        chosen = self._running[self.decide(len(self._running)) if self.violation is None else 0]
        self.current = chosen
        _ACTORS[chosen].baton.release()

    def point(self, name: str) -> None:
        """An operation of the current actor comes: others may come first."""
        number = self.current
        if number < 0:
            return  # behind the end
        if self.violation is not None or _ACTORS[number].is_dead:
            raise Killed
        others = [one for one in self._running if one != number]
        options = 1 + (len(others) + len(self._late) if self._switches else 0)
        chosen = self.decide(options)
        if chosen > len(others):
            self._switches -= 1
            self._late.pop(chosen - len(others) - 1)()
            self.trace.append("a request from before is done")
            self._judge(self._world.check)
        elif chosen:
            self._switches -= 1
            self.current = others[chosen - 1]
            _ACTORS[self.current].baton.release()
            _ACTORS[number].baton.acquire()
            if self.violation is not None:
                raise Killed
        self.trace.append(f"{number}: {name}")

    def fault(self, kinds: Sequence[str]) -> str | None:
        """Which of these faults the operation meets that comes now, if any."""
        if not self._faults or self.current < 0:
            return None
        chosen = self.decide(1 + len(kinds))
        if not chosen:
            return None
        self._faults -= 1
        self.trace[-1] += f" ({kinds[chosen - 1]})"
        return kinds[chosen - 1]

    def kill(self) -> None:
        """The current actor dies here."""
        _ACTORS[self.current].is_dead = True
        raise Killed

    def later(self, request: Callable[[], None]) -> None:
        """Do this at some later time."""
        self._late.append(request)

    @property
    def awaits_late(self) -> bool:
        """Whether a request is still to be done."""
        return bool(self._late)

    def forget_late(self) -> None:
        """What was not done by now never will be."""
        self._late.clear()

    def _apply_late(self) -> None:
        while self._late:
            self._late.pop(0)()
            self._judge(self._world.check)

    def done(self) -> None:
        """The operation has happened: the invariant has to hold now."""
        if self.violation is None and not self._judge(self._world.check) and self.current >= 0:
            raise Killed

    def _judge(self, check: Callable[[], None]) -> bool:
        """Keep the first violation; returns whether the check found none."""
        try:
            check()
        except ViolationError as violation:
            self.violation = self.violation or violation
            return False
        return True


@dataclass(frozen=True)
class Explored:
    """How many schedules were run, whether those were all within the bounds, and the one that broke the invariant."""

    count: int
    is_all: bool
    broken: Schedule | None

    def require_whole(self) -> None:
        """Raise what was found, with the way to it."""
        if self.broken is not None:
            raise ViolationError(f"{self.broken.violation}\n" + "\n".join(self.broken.trace))


def explore(make: Callable[[Schedule], World], bounds: Bounds, most: int | None = None) -> Explored:
    """Run every schedule within the bounds, ``most`` at most, until one breaks the invariant."""
    prefix: list[int] | None = []
    count = 0
    with _actors():
        while prefix is not None and (most is None or count < most):
            schedule = Schedule(bounds, prefix)
            schedule.run(make)
            count += 1
            if schedule.violation is not None:
                return Explored(count, is_all=False, broken=schedule)
            prefix = _following(schedule.decisions)
    return Explored(count, is_all=prefix is None, broken=None)


def _following(decisions: Sequence[tuple[int, int]]) -> list[int] | None:
    for position in reversed(range(len(decisions))):
        options, chosen = decisions[position]
        if chosen + 1 < options:
            return [*(before for _, before in decisions[:position]), chosen + 1]
    return None


def drawn(make: Callable[[Schedule], World], bounds: Bounds, count: int, seed: int) -> Explored:
    """Run so many schedules whose every decision is drawn, until one breaks the invariant."""
    with _actors():
        for number in range(count):
            schedule = Schedule(bounds, chance=random.Random(f"{seed}/{number}"))
            schedule.run(make)
            if schedule.violation is not None:
                return Explored(number + 1, is_all=False, broken=schedule)
    return Explored(count, is_all=False, broken=None)
