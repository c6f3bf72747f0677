"""Host memory in which snapshots lie until they are written: one array of bytes, used as a ring, kept between saves."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.storage.host_memory import ALIGNMENT as PAGE
from ucpformat.storage.host_memory import aligned
from ucpformat.storage.stores.local_pack import LEAST_BYTES as LARGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

__all__ = ["ALIGNMENT", "Arena", "extent", "host_bytes"]

ALIGNMENT: Final = 64
_GROWTH: Final = 1 << 21


def extent(sizes: Iterable[int]) -> int:
    """Return what regions of so many bytes each take up, one after another."""
    end = 0
    for nbytes in sizes:
        end += _lead(end, nbytes) + _rounded(nbytes)
    return end


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _lead(position: int, nbytes: int) -> int:
    """Return what is left free before a region: a large one begins where a device takes it without another copy."""
    return -position % PAGE if nbytes >= LARGE else 0


def host_bytes(nbytes: int) -> NDArray[np.uint8]:
    """Return pageable memory."""
    return np.empty(nbytes, np.uint8)


class Arena:
    """Regions are taken by one thread and given back by another, in the same order.

    ``limit`` is the most bytes that it may have; without one it grows to the largest snapshot. ``allocate`` makes the
    array. It never shrinks before `close`.
    """

    def __init__(
        self, *, limit: int | None = None, allocate: Callable[[int], NDArray[np.uint8]] = host_bytes
    ) -> None:
        self._allocate = allocate
        self._limit = limit
        self._changed = threading.Condition()
        self._taken: deque[int] = deque()
        self._head = 0
        self._used = 0
        self._abandoned = False
        self.memory: NDArray[np.uint8] = host_bytes(0)
        self.allocations = 0

    @property
    def nbytes(self) -> int:
        """The size of the array, which is the most that was ever needed."""
        return self.memory.nbytes

    def prepare(self, needed: int) -> bool:
        """Make room for a snapshot of so many bytes, while no region is taken; return whether it fits at once."""
        self._taken.clear()
        self._head = self._used = 0
        self._abandoned = False
        wanted = -(-needed // _GROWTH) * _GROWTH
        if self._limit is not None:
            wanted = min(wanted, self._limit // ALIGNMENT * ALIGNMENT)
        if wanted > self.nbytes:
            # The old array goes first: there is never room for both.
            self.memory = host_bytes(0)
            self.memory = aligned(self._allocate(wanted + PAGE), wanted)
            self.allocations += 1
        return needed <= self.nbytes

    def take(self, nbytes: int, *, block: bool = True) -> int | None:
        """Return the first byte of a region; None without room if ``block`` is False, or if none is given back.

        Raises:
            UcpError: ``UCP-E-LIMIT`` for a region larger than the arena.
        """
        size = _rounded(nbytes)
        if size > self.nbytes:
            message = f"a part of {nbytes} bytes does not fit into an arena of {self.nbytes}; raise its limit"
            raise error("UCP-E-LIMIT", message)
        with self._changed:
            while not self._abandoned:
                if not self._used:
                    self._head = 0
                # A region is one run: what is left at the end of the array is skipped where it is too little.
                lead = _lead(self._head, nbytes)
                wraps = self._head + lead + size > self.nbytes
                gap = self.nbytes - self._head if wraps else lead
                if self._used + gap + size <= self.nbytes:
                    start = 0 if wraps else self._head + lead
                    self._head = start + size
                    self._used += gap + size
                    self._taken.append(gap + size)
                    return start
                if not block:
                    return None
                self._changed.wait()
        return None

    def give(self, count: int) -> None:
        """Give the oldest ``count`` regions back."""
        with self._changed:
            for _ in range(count):
                self._used -= self._taken.popleft()
            self._changed.notify_all()

    def abandon(self) -> None:
        """End all waits: no more regions are given back."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def close(self) -> None:
        """Let go of the memory."""
        self.memory = host_bytes(0)
