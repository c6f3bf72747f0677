"""The ring in which snapshots lie: regions do not overlap while they are taken, and nobody waits for ever."""

from __future__ import annotations

import threading
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.distributed import arena as module
from ucpformat.distributed.arena import ALIGNMENT, Arena, extent
from ucpformat.errors import UcpError
from ucpformat.storage.host_memory import ALIGNMENT as PAGE


def test_what_is_skipped_at_the_end_is_taken_as_well() -> None:
    arena = Arena(limit=4 * ALIGNMENT)
    arena.prepare(1 << 20)
    assert [arena.take(ALIGNMENT) for _ in range(3)] == [0, ALIGNMENT, 2 * ALIGNMENT]
    arena.give(1)
    assert arena.take(2 * ALIGNMENT, block=False) is None, "one unit is free at either end"
    arena.give(1)
    assert arena.take(2 * ALIGNMENT, block=False) == 0


@given(st.lists(st.integers(1, 700) | st.none(), max_size=60), st.integers(12, 40))
def test_regions_that_are_taken_lie_apart(steps: list[int | None], units: int) -> None:
    """None gives the oldest region back; what does not fit yet is found out without waiting."""
    arena = Arena(limit=units * ALIGNMENT)
    assert not arena.prepare(1 << 30)
    taken: list[tuple[int, int]] = []
    for step in steps:
        if step is None:
            if taken:
                taken.pop(0)
                arena.give(1)
            continue
        start = arena.take(step, block=False)
        if start is None:
            assert taken, "an empty ring has room for whatever fits into it"
            continue
        assert start % ALIGNMENT == 0
        assert start + step <= arena.nbytes == units * ALIGNMENT
        for other, size in taken:
            assert start + step <= other or other + size <= start
        taken.append((start, step))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30))
def test_a_snapshot_that_fits_is_taken_at_once(sizes: list[int]) -> None:
    arena = Arena()
    for _ in range(3):
        assert arena.prepare(extent(sizes))
        assert None not in [arena.take(size, block=False) for size in sizes]
    assert arena.allocations == 1


@given(st.lists(st.integers(1, 9000), max_size=30), st.integers(0, PAGE - 1))
def test_large_regions_begin_at_pages(sizes: list[int], shift: int) -> None:
    """Whatever the memory begins at."""

    def memory(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        whole = np.empty(nbytes + 2 * PAGE, np.uint8)
        start = -whole.ctypes.data % PAGE + shift
        return whole[start : start + nbytes]

    with patch.object(module, "LARGE", 2000):
        arena = Arena(allocate=memory)
        assert arena.prepare(extent(sizes))
        end = 0
        for size in sizes:
            start = arena.take(size, block=False)
            assert start is not None
            assert start >= end
            end = start + size
            place = arena.memory.ctypes.data + start
            assert place % (PAGE if size >= 2000 else ALIGNMENT) == 0


def test_memory_grows_to_the_largest_and_stays() -> None:
    arena = Arena()
    for needed, size, allocations in ((1, 2 << 20, 1), (5 << 20, 6 << 20, 2), (1 << 20, 6 << 20, 2)):
        arena.prepare(needed)
        assert (arena.nbytes, arena.allocations) == (size, allocations)
    arena.close()
    assert arena.nbytes == 0


def test_whoever_waits_hears_of_room_and_of_the_end() -> None:
    arena = Arena(limit=1024)
    arena.prepare(4096)
    found: list[int | None] = [arena.take(1024)]

    def take_two() -> None:
        found.append(arena.take(1000))
        found.append(arena.take(1000))

    thread = threading.Thread(target=take_two)
    thread.start()
    arena.give(1)
    arena.abandon()
    thread.join(60)
    assert not thread.is_alive()
    assert found[0] == 0
    assert found[-1] is None


def test_what_is_larger_than_the_limit_is_refused() -> None:
    arena = Arena(limit=1024)
    arena.prepare(4096)
    with pytest.raises(UcpError, match="raise its limit") as caught:
        arena.take(1025)
    assert caught.value.code == "UCP-E-LIMIT"
