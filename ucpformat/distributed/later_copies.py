"""Copies that a save makes behind its call, while training goes on: each before the tensor may change.

What changes a tensor waits at a *fence* for the copies that it needs, and for no others. In which order they are made
is decided by `ucpformat.cadence.next_copy`, with fences expected when they came after the save before.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from ucpformat.cadence.copies import DueCopy, next_copy
from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ucpformat.distributed.local_state import SlotName
    from ucpformat.distributed.snapshot import Batch, Snapshot
    from ucpformat.errors import UcpError

__all__ = ["Fences", "LaterCopies", "Pacing"]

_AT_ONCE: Final = 1 << 22
"""Bytes that are copied in one go while training goes on, or one piece that is larger: so long a fence may wait."""
_AT_A_FENCE: Final = 1 << 26
"""And while training waits: several pieces, which are copied in several threads."""


class Fences(Protocol):
    """What changes tensors, and waits before it does; fences have numbers.

    A save calls `arm` when its call is about to return, `changed` once for each fence, when all of it is copied: in the
    thread that waits there, or at last in any; and `disarm` at the end, in any thread, once or twice. None of them
    raises.
    """

    def arm(self, wait: Callable[[int], None]) -> None:
        """Let ``wait`` be called with the number of a fence, each time before its tensors are changed."""
        ...

    def changed(self, fence: int) -> SlotName | None:
        """Return a slot behind a fence that was changed since the call, by what did not wait; None if there is none."""
        ...

    def disarm(self) -> None:
        """Let nothing wait any more."""
        ...


class Pacing:
    """How copies of one saver are paced: bytes a second, and seconds after which each fence came the last time."""

    def __init__(self, bandwidth: float | None = None) -> None:
        if bandwidth is not None and not 0 < bandwidth < inf:
            message = f"a bandwidth is a number of bytes a second above 0, not {bandwidth!r}"
            raise error("UCP-E-LIMIT", message, at="bandwidth")
        self.bandwidth = bandwidth or inf
        self.expected: dict[int, float] = {}


class LaterCopies:
    """Copies of one save; `run` makes them, in a thread of its own.

    ``groups`` has pieces of the snapshot by the fences at which they are waited for. `wait` is called at these, in
    any thread; `settle` before the commit; `stop` when nothing of it is needed any more.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        groups: Mapping[frozenset[int], Sequence[int]],
        fences: Fences,
        pacing: Pacing,
    ) -> None:
        self._snapshot = snapshot
        self._left = {group: deque(numbers) for group, numbers in groups.items() if numbers}
        """What nobody copies yet; from `begin` on in the order in which groups are expected to be waited for."""
        self._groups: dict[int, list[frozenset[int]]] = {}
        for group in self._left:
            for fence in group:
                self._groups.setdefault(fence, []).append(group)
        self._fences = fences
        self._pacing = pacing
        self._changed = threading.Condition()
        self._open = set[int]().union(*groups)
        self._waiting: set[int] = set()
        self._in_hand: frozenset[int] = frozenset()
        self._batches: dict[frozenset[int], list[Batch]] = {}
        self._copied = 0
        self._began = 0.0
        self._failure: UcpError | None = None
        self._is_over = False
        self.fenced = 0.0
        """Seconds for which training has waited at fences."""

    def begin(self) -> None:
        """Let fences wait from here on."""
        self._left = {group: self._left[group] for group in sorted(self._left, key=self._expected)}
        self._began = time.perf_counter()
        self._fences.arm(self.wait)

    def run(self, hand_on: Callable[[Batch], None]) -> None:
        """Copy all, unless it is stopped; ``hand_on`` gets each batch. Raises what copying raises."""
        while numbers := self._next():
            for batch in self._snapshot.batches(numbers):
                self._batches.setdefault(self._in_hand, []).append(batch)
                hand_on(batch)
            with self._changed:
                self._copied += sum(self._snapshot.sizes[number] for number in numbers)
                self._in_hand = frozenset()
                self._changed.notify_all()

    def _next(self) -> list[int]:
        """Return the pieces that go next, when their time has come; none when nothing is left."""
        with self._changed:
            while self._left and not self._is_over:
                # Those that are late come first of the others: they are in the order of these.
                waited_for = sorted(self._left_at(self._waiting), key=self._expected)
                groups = [*waited_for, next(iter(self._left))]
                now = time.perf_counter() - self._began
                heads = [
                    DueCopy(self._snapshot.sizes[self._left[group][0]], self._due(group, now))
                    for group in groups
                ]
                index, at = next_copy(heads, now=now, copied=self._copied, bandwidth=self._pacing.bandwidth)
                if at > now:
                    self._changed.wait(at - now)
                    continue
                self._in_hand = groups[index]
                return self._taken(self._in_hand)
        return []

    def _due(self, group: frozenset[int], now: float) -> float:
        """Return when a group is waited for, at the earliest: now, or when it was the last time."""
        if group & self._waiting:
            return 0.0
        # What is late is not waited for: it keeps to the bandwidth.
        return max(self._expected(group), now + 1e-9)

    def _expected(self, group: frozenset[int]) -> float:
        return min(self._pacing.expected.get(fence, inf) for fence in group)

    def _taken(self, group: frozenset[int]) -> list[int]:
        left = self._left[group]
        most = _AT_A_FENCE if group & self._waiting else _AT_ONCE
        numbers = [left.popleft()]
        nbytes = self._snapshot.sizes[numbers[0]]
        while left and nbytes + self._snapshot.sizes[left[0]] <= most:
            nbytes += self._snapshot.sizes[left[0]]
            numbers.append(left.popleft())
        if not left:
            del self._left[group]
        return numbers

    def _left_at(self, fences: Iterable[int]) -> list[frozenset[int]]:
        return [group for fence in fences for group in self._groups.get(fence, ()) if group in self._left]

    def _needs(self, fence: int) -> bool:
        return not self._is_over and (fence in self._in_hand or bool(self._left_at([fence])))

    def wait(self, fence: int) -> None:
        """Return when everything is copied that is waited for at a fence, or nothing will be any more."""
        if self._is_over or fence not in self._open:
            return
        began = time.perf_counter()
        with self._changed:
            self._pacing.expected[fence] = began - self._began
            self._waiting.add(fence)
            self._changed.notify_all()
            while self._needs(fence):
                self._changed.wait()
            self._waiting.discard(fence)
            self._pass(fence)
            self.fenced += time.perf_counter() - began
        for group in self._groups.get(fence, ()):
            for batch in self._batches.get(group, ()):
                batch.copied.hold()

    def wait_for_all(self) -> None:
        """Wait at all fences: whatever was saved may change then."""
        for fence in sorted(self._open):
            self.wait(fence)

    def _pass(self, fence: int) -> None:
        """Note that a fence is passed: what changes from here on is copied."""
        if fence not in self._open or self._is_over:
            return
        self._open.discard(fence)
        slot = self._fences.changed(fence)
        if slot is not None and self._failure is None:
            message = (
                "this tensor was changed behind the save by something that did not wait; name all that changes it in "
                "fence=, call staged() before you change it, or save without fence="
            )
            self._failure = error("UCP-E-MISMATCH", message, at="/".join(slot))

    def settle(self) -> None:
        """Judge, when all is copied, whether all copies are of the state that was saved.

        Raises:
            MismatchError: ``UCP-E-MISMATCH`` for a tensor that was changed before its fence.
        """
        with self._changed:
            for fence in sorted(self._open):
                self._pass(fence)
        self.stop()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Copy no more, and let nobody wait."""
        self.disown()
        with self._changed:
            self._changed.notify_all()

    def disown(self) -> None:
        """Do as `stop` does in a process that was forked, where others may hold the lock for ever."""
        self._is_over = True
        self._fences.disarm()
