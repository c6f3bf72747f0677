"""Copies of a snapshot that are made while training goes on: which goes next, and how long training waits for them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from ucpformat.cadence.amounts import is_number, require_kind, require_seconds
from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CopySpeeds", "DueCopy", "NextCopy", "SnapshotOutcome", "next_copy", "simulate_snapshot"]


class DueCopy(NamedTuple):
    """A copy that is still to be made.

    Attributes:
        nbytes: its bytes.
        due: seconds of training from the save until the tensor may change: 0 where it has to be copied before the save
            returns, infinite where nothing changes it.

    >>> ucp.cadence.DueCopy(nbytes=1 << 20, due=0.2).due
    0.2
    """

    nbytes: int
    due: float


class NextCopy(NamedTuple):
    """The copy that goes next.

    Attributes:
        which: its place in the sequence.
        at: the time at which it may begin: now, later for the sake of the bandwidth, or infinite, which is as soon as
            there is room.

    >>> ucp.cadence.NextCopy(which=3, at=0.0).which
    3
    """

    which: int
    at: float


@dataclass(frozen=True, slots=True)
class CopySpeeds:
    """How fast tensors are copied and written, in bytes a second, and what training is left with.

    Attributes:
        alone: a copy while training waits for it.
        beside: a copy while training goes on.
        training: share of its speed that training has beside a copy.
        write: writing what was copied, which gives its memory back.

    >>> ucp.cadence.CopySpeeds(alone=8e9, beside=4e9).training
    1.0
    """

    alone: float
    beside: float
    training: float = 1.0
    write: float = inf


@dataclass(frozen=True, slots=True)
class SnapshotOutcome:
    """What became of a snapshot.

    Attributes:
        call: seconds for which the save kept its caller.
        fenced: seconds for which training waited behind it, before it changed what was not copied yet.
        seconds: from the begin of the save until all was copied.
        peak: the most bytes of copies that were in memory at once.

    >>> speeds = ucp.cadence.CopySpeeds(alone=100.0, beside=50.0)
    >>> found = ucp.cadence.simulate_snapshot([ucp.cadence.DueCopy(100, 1.0)], speeds)
    >>> found.call, found.fenced, found.seconds, found.peak
    (0.0, 0.5, 1.5, 100)
    """

    call: float
    fenced: float
    seconds: float
    peak: int

    @property
    def stall(self) -> float:
        """Seconds for which training stood still.

        >>> ucp.cadence.SnapshotOutcome(call=0.25, fenced=0.5, seconds=2.0, peak=1).stall
        0.75
        """
        return self.call + self.fenced


def next_copy(
    copies: Sequence[DueCopy], *, now: float, copied: int = 0, free: float = inf, bandwidth: float = inf
) -> NextCopy:
    """Return which copy goes next: that which is due first; of several, the first of them.

    Where all may begin at once, no other order lets training wait for less (Jackson's rule). `AsyncSaver` decides by
    this function, and so does `simulate_snapshot`.

    Args:
        copies: what is not copied yet, with ``due`` on the clock of ``now``; at least one.
        now: the time, in seconds since the save returned.
        copied: bytes that were copied behind the save.
        free: bytes of memory that are free.
        bandwidth: bytes a second to keep to. What is overdue does not wait for that.

    Raises:
        UcpError: ``UCP-E-LIMIT`` where there is no copy.

    >>> copies = [ucp.cadence.DueCopy(10, 3.0), ucp.cadence.DueCopy(10, 2.0)]
    >>> ucp.cadence.next_copy(copies, now=0.5, copied=40, bandwidth=20.0)
    NextCopy(which=1, at=2.0)
    """
    if not copies:
        raise error("UCP-E-LIMIT", "there is no copy left to choose from", at="copies")
    index = min(range(len(copies)), key=lambda one: copies[one].due)
    nbytes, due = copies[index]
    if nbytes > free:
        return NextCopy(index, inf)
    return NextCopy(index, now if due <= now else max(now, copied / bandwidth))


def simulate_snapshot(
    copies: Sequence[DueCopy],
    speeds: CopySpeeds,
    *,
    call: float = 0.0,
    memory: float = inf,
    bandwidth: float = inf,
) -> SnapshotOutcome:
    """Make a snapshot as `AsyncSaver` does with ``fence=``, and return for how long training waits.

    Training goes on when everything that is due at once is copied, and stops where a tensor is due that is not copied
    yet. One copy is made at a time, as a whole. What was copied is written in the same order, and gives its memory
    back when it is written.

    Args:
        copies: what has to be copied.
        speeds: how fast that is.
        call: seconds that the call of the save takes besides copies.
        memory: bytes of memory for copies, as ``arena_bytes=`` says.
        bandwidth: bytes a second that copies behind the save keep to, as ``bandwidth=`` says.

    Raises:
        UcpError: ``UCP-E-LIMIT`` for speeds that are not above 0, a call below 0, and for a copy that is larger than
            the memory.

    >>> speeds = ucp.cadence.CopySpeeds(alone=10.0, beside=10.0)
    >>> copies = [ucp.cadence.DueCopy(10, 0.0), ucp.cadence.DueCopy(20, 1.5), ucp.cadence.DueCopy(10, 9.0)]
    >>> found = ucp.cadence.simulate_snapshot(copies, speeds)
    >>> found.call, found.fenced, found.seconds
    (1.0, 0.5, 4.0)
    """
    require_kind(CopySpeeds, speeds=speeds)
    rates = (speeds.alone, speeds.beside, speeds.write, bandwidth, speeds.training, memory)
    if not all(map(is_number, rates)):
        raise error("UCP-E-LIMIT", f"speeds, bandwidth and memory are numbers, not {rates}", at="speeds")
    require_seconds(call=call)
    if not (min(speeds.alone, speeds.beside, speeds.write, bandwidth) > 0 and 0 < speeds.training <= 1):
        raise error(
            "UCP-E-LIMIT", f"speeds are above 0, that of training at most 1, not {speeds}", at="speeds"
        )
    if not all(is_number(one.nbytes) and one.nbytes >= 0 and is_number(one.due) for one in copies):
        raise error("UCP-E-LIMIT", "a copy has bytes, and seconds until it is due", at="copies")
    largest = max((one.nbytes for one in copies), default=0)
    if largest > memory:
        raise error("UCP-E-LIMIT", f"a copy of {largest} bytes needs more memory than {memory}", at="memory")
    run = _Run(list(copies), speeds, memory)
    run.call = call
    while run.left:
        ahead = [DueCopy(nbytes, run.behind + due - run.trained) for nbytes, due in run.left]
        index, at = next_copy(
            ahead, now=run.behind, copied=run.copied, free=memory - run.held, bandwidth=bandwidth
        )
        if at > run.behind:
            run.wait(at - run.behind)
        else:
            run.copy(index)
    return SnapshotOutcome(run.call, run.fenced, run.call + run.behind, run.peak)


class _Run:
    """The state of a simulation: seconds of the call, and behind it, of which training had ``trained``."""

    def __init__(self, left: list[DueCopy], speeds: CopySpeeds, memory: float) -> None:
        self.left = left
        self._speeds = speeds
        self._written: deque[tuple[float, int]] = deque()
        self._writes = memory < sum(one.nbytes for one in left)
        self.call = self.behind = self.trained = self.fenced = 0.0
        self.copied = self.held = self.peak = 0

    def copy(self, index: int) -> None:
        """Make a copy, at the speed that training leaves it."""
        nbytes, due = self.left[index]
        self.held += nbytes
        self.peak = max(self.peak, self.held)
        left = float(nbytes)
        while left > 0:
            speed = self._speeds.alone if self._fence() <= self.trained else self._speeds.beside
            seconds = min(left / speed, self._until_fence(self._speeds.training))
            left = 0.0 if seconds == left / speed else left - seconds * speed
            self._pass(seconds, self._speeds.training)
        del self.left[index]
        self.copied += nbytes if due > 0 else 0
        if self._writes:
            begin = max(self._clock, self._written[-1][0] if self._written else 0.0)
            self._written.append((begin + nbytes / self._speeds.write, nbytes))

    def wait(self, seconds: float) -> None:
        """Let time pass without a copy, but no longer than until a fence, or until there is more room."""
        room = self._written[0][0] - self._clock if self._written else inf
        self._pass(max(0.0, min(seconds, self._until_fence(1.0), room)), 1.0)

    @property
    def _clock(self) -> float:
        return self.call + self.behind

    def _fence(self) -> float:
        return min(one.due for one in self.left)

    def _until_fence(self, speed: float) -> float:
        """Return the seconds until training, at a share of its speed, has to wait; infinite where it does already."""
        ahead = self._fence() - self.trained
        return ahead / speed if ahead > 0 else inf

    def _pass(self, seconds: float, speed: float) -> None:
        fence = self._fence()
        if fence <= 0:
            self.call += seconds
        else:
            self.behind += seconds
            if fence <= self.trained:
                self.fenced += seconds
            elif seconds == self._until_fence(speed):
                self.trained = fence  # a sum of floats might miss it
            else:
                self.trained += seconds * speed
        while self._written and self._written[0][0] <= self._clock * (1 + 1e-12):
            self.held -= self._written.popleft()[1]
