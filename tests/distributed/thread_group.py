"""A group of threads of one process, which stand for ranks."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ucpformat.distributed.group import Bytes

__all__ = ["ThreadGroup", "run_threads"]

_T = TypeVar("_T")


class _Shared:
    """What the threads of a group have in common: what each gave in every round, and who is gone."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._rounds: list[dict[int, bytes]] = []
        self._mail: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)
        self._gone: set[int] = set()
        self._at_work: set[int] = set()
        self._others: list[_Shared] = []

    def exchange(self, number: int, rank: int, data: bytes) -> list[bytes]:
        """Give data in a round, and wait for those of all others."""
        with self._changed:
            if number == len(self._rounds):
                self._rounds.append({})
            given = self._rounds[number]
            given[rank] = data
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(given) == self.size or self._gone - given.keys())
            if len(given) < self.size:
                raise error("UCP-E-RANK", "a thread of the group is gone")
            return [given[other] for other in range(self.size)]

    def post(self, source: int, target: int, data: bytes) -> None:
        """Send a message from one rank to another."""
        with self._changed:
            self._mail[source, target].append(data)
            self._changed.notify_all()

    def collect(self, source: int, target: int) -> bytes:
        """Wait for the next message from one rank to another."""
        with self._changed:
            mail = self._mail[source, target]
            self._changed.wait_for(lambda: mail or source in self._gone)
            if not mail:
                raise error("UCP-E-RANK", "a thread of the group is gone")
            return mail.popleft()

    def leave(self, rank: int) -> None:
        """End waits for this rank, here and in the groups that were made of this one."""
        with self._changed:
            self._gone.add(rank)
            self._changed.notify_all()
            others = list(self._others)
        for other in others:
            other.leave(rank)

    def begin(self, rank: int) -> bool:
        """Count a rank as at work, unless it is gone."""
        with self._changed:
            if rank in self._gone:
                return False
            self._at_work.add(rank)
            return True

    def end(self, rank: int) -> None:
        """Count a rank as at work no more."""
        with self._changed:
            self._at_work.discard(rank)
            self._changed.notify_all()

    def dismiss(self) -> None:
        """Let all ranks leave, and wait until those at work have ended."""
        for rank in range(self.size):
            self.leave(rank)
        with self._changed:
            self._changed.wait_for(lambda: not self._at_work)

    def other(self, number: int) -> _Shared:
        """Return the group that was made of this one as the ``number``-th."""
        with self._changed:
            while len(self._others) <= number:
                self._others.append(_Shared(self.size))
                self._others[-1]._gone |= self._gone
            return self._others[number]


class ThreadGroup:
    """One thread's view of its group.

    ``rounds`` counts what all took part in, ``sent`` the bytes that it gave there; ``messages`` and ``exchanged`` are
    messages to other ranks, and their bytes.
    """

    def __init__(self, shared: _Shared, rank: int) -> None:
        self._shared = shared
        self.rank = rank
        self.ranks = range(shared.size)
        self.rounds = 0
        self.sent = 0
        self._made = 0
        self.messages = 0
        self.exchanged = 0

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return what every thread gave."""
        self.rounds += 1
        self.sent += len(data)
        return self._shared.exchange(self.rounds - 1, self.rank, data)

    def gather(self, data: bytes) -> list[bytes] | None:
        """Gather as `all_gather`, for the first thread."""
        found = self.all_gather(data)
        return found if self.rank == 0 else None

    def broadcast(self, data: bytes) -> bytes:
        """Return what the first thread gave."""
        return self.all_gather(data if self.rank == 0 else b"")[0]

    def another(self) -> ThreadGroup:
        """Return another group of the same threads."""
        self._made += 1
        return ThreadGroup(self._shared.other(self._made - 1), self.rank)

    def exchange(self, sends: Mapping[int, Bytes], receives: Mapping[int, Bytes]) -> None:
        """Exchange messages with other threads."""
        for rank, message in sends.items():
            if message.size:
                self.messages += 1
                self.exchanged += message.size
                self._shared.post(self.rank, rank, message.tobytes())
        for rank, memory in receives.items():
            if memory.size:
                memory[:] = np.frombuffer(self._shared.collect(rank, self.rank), np.uint8)

    def leave(self) -> None:
        """Leave the group: waiting for this thread, now or later, raises an error."""
        self._shared.leave(self.rank)


def run_threads(size: int, work: Callable[[ThreadGroup], _T]) -> list[_T | BaseException]:
    """Run ``work`` in ``size`` threads that form a group; what each returned or raised, in order of rank.

    Where the calling thread is interrupted, threads that wait for one another get ``UCP-E-RANK``, and none is at work
    when the interrupt goes on.
    """
    shared = _Shared(size)

    def run(rank: int) -> _T | BaseException:
        if not shared.begin(rank):
            return error("UCP-E-RANK", "the group was interrupted")
        group = ThreadGroup(shared, rank)
        try:
            return work(group)
        except BaseException as failure:
            group.leave()
            return failure
        finally:
            shared.end(rank)

    with ThreadPoolExecutor(size) as pool:
        try:
            return list(pool.map(run, range(size)))
        finally:
            # An interrupt may come while a thread starts, of which the pool does not know then.
            shared.dismiss()
