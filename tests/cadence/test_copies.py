"""Copies behind a save: no order is better than theirs, and the simulator waits as long as a count of seconds says."""

from __future__ import annotations

from itertools import permutations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.cadence import CopySpeeds, DueCopy, next_copy, simulate_snapshot
from ucpformat.errors import UcpError


def counted(
    order: list[DueCopy], alone: int, beside: int, *, memory: float = inf, write: float = inf
) -> tuple[int, int]:
    """Copy in a given order, second by second; return how many seconds the call took, and fences."""
    call = fenced = trained = 0
    left = [copy.nbytes for copy in order]
    place = held = 0
    writing: list[list[float]] = []
    bounded = memory < sum(left)
    while place < len(order):
        due = min(copy.due for copy in order[place:])
        waits = due <= trained
        if left[place] == order[place].nbytes and held + left[place] <= memory:
            held += left[place]
            begun = True
        else:
            begun = left[place] < order[place].nbytes
        if begun:
            left[place] -= alone if waits else beside
        if due == 0:
            call += 1
        elif waits:
            fenced += 1
        else:
            trained += 1
        if writing:
            writing[0][0] -= write
            if writing[0][0] <= 0:
                held -= int(writing.pop(0)[1])
        if left[place] == 0:
            if bounded:
                writing.append([order[place].nbytes, order[place].nbytes])
            place += 1
    return call, fenced


def copies(alone: int, beside: int) -> st.SearchStrategy[list[DueCopy]]:
    """Copies that take whole seconds at either speed, and some due when training waits already."""
    unit = alone * beside
    one = st.builds(
        DueCopy,
        st.integers(1, 4).map(lambda count: count * unit),
        st.sampled_from([0, 0, 3, 5, 8, 13, 21, 34, 55]),
    )
    return st.lists(one, min_size=1, max_size=5)


# At equal speeds, so that a fence that comes in the midst of a copy leaves whole seconds of it.
SPEEDS = st.sampled_from([(1, 1), (2, 2), (3, 3)])


def by_due(found: list[DueCopy]) -> list[DueCopy]:
    return sorted(found, key=lambda copy: copy.due)


@given(SPEEDS.flatmap(lambda speeds: st.tuples(st.just(speeds), copies(*speeds))))
def test_the_simulator_waits_as_long_as_is_counted(case: tuple[tuple[int, int], list[DueCopy]]) -> None:
    (alone, beside), found = case
    outcome = simulate_snapshot(found, CopySpeeds(alone, beside))
    assert (outcome.call, outcome.fenced) == pytest.approx(counted(by_due(found), alone, beside))
    assert outcome.peak == sum(copy.nbytes for copy in found)


@given(copies(1, 1), st.sampled_from([1, 2, 4]))
def test_the_simulator_waits_for_room(found: list[DueCopy], pieces: int) -> None:
    """Where all copies are alike, so that the room of one is that of any other."""
    alike = [DueCopy(4, copy.due) for copy in found]
    memory = 4 * pieces
    outcome = simulate_snapshot(alike, CopySpeeds(1, 1, write=0.5), memory=memory)
    assert (outcome.call, outcome.fenced) == pytest.approx(
        counted(by_due(alike), 1, 1, memory=memory, write=0.5)
    )
    assert outcome.peak == min(memory, 4 * len(alike))


@given(SPEEDS.flatmap(lambda speeds: st.tuples(st.just(speeds), copies(*speeds))))
def test_no_order_lets_training_wait_for_less(case: tuple[tuple[int, int], list[DueCopy]]) -> None:
    (alone, beside), found = case
    outcome = simulate_snapshot(found, CopySpeeds(alone, beside))
    # What is due within the call is copied there by any order: nobody trains meanwhile.
    at_once = [copy for copy in found if copy.due == 0]
    later = [copy for copy in found if copy.due > 0]
    least = min(sum(counted([*at_once, *order], alone, beside)) for order in permutations(later))
    assert outcome.stall == pytest.approx(least)


@given(
    st.lists(st.builds(DueCopy, st.integers(1, 50), st.floats(0, 20)), min_size=1, max_size=6),
    st.floats(1, 50),
    st.floats(1, 50),
    st.floats(0.1, 1),
    st.one_of(st.just(inf), st.floats(0.5, 50)),
    st.one_of(st.just(inf), st.floats(50, 200)),
)
def test_nothing_is_copied_after_its_deadline(
    found: list[DueCopy], alone: float, beside: float, training: float, bandwidth: float, memory: float
) -> None:
    """Training stands still at a fence until all that is due is copied, whatever it is that copies wait for."""
    speeds = CopySpeeds(alone, beside, training, write=20.0)
    outcome = simulate_snapshot(found, speeds, bandwidth=bandwidth, memory=memory)
    total = sum(copy.nbytes for copy in found)
    assert outcome.peak <= min(memory, total)
    assert outcome.seconds >= total / max(alone, beside) * (1 - 1e-9)
    last = max(copy.due for copy in found)
    # Copies end when training reaches the last fence, and has waited: at the latest.
    assert outcome.seconds <= outcome.stall + last / training + 1e-6
    now = copied = 0
    left = list(found)
    while left:
        index, at = next_copy(left, now=now, copied=copied, bandwidth=bandwidth)
        assert left[index].due == min(copy.due for copy in left)
        assert at == (now if left[index].due <= now else max(now, copied / bandwidth))
        copied += left.pop(index).nbytes


@given(copies(1, 1), st.floats(0, 9))
def test_what_a_call_takes_besides_copies_only_adds_to_it(found: list[DueCopy], call: float) -> None:
    without, outcome = (simulate_snapshot(found, CopySpeeds(2, 1), call=one) for one in (0.0, call))
    assert outcome.call == pytest.approx(without.call + call)
    assert (outcome.fenced, outcome.peak) == pytest.approx((without.fenced, without.peak))
    with pytest.raises(UcpError, match="call= is a number of seconds"):
        simulate_snapshot(found, CopySpeeds(2, 1), call=-1.0)


def test_a_bandwidth_is_kept_to_until_something_is_due() -> None:
    speeds = CopySpeeds(alone=10.0, beside=10.0)
    slow = [DueCopy(10, 100.0)] * 4
    assert simulate_snapshot(slow, speeds).seconds == 4
    # Each begins when the bandwidth has room for all before it.
    assert simulate_snapshot(slow, speeds, bandwidth=5.0).seconds == pytest.approx(7)
    outcome = simulate_snapshot([DueCopy(10, 3.0)] * 4, speeds, bandwidth=1.0)
    assert (outcome.fenced, outcome.seconds) == pytest.approx((3, 6))


def test_what_slows_training_down_puts_its_fence_off() -> None:
    outcome = simulate_snapshot([DueCopy(10, 2.0)], CopySpeeds(alone=10.0, beside=2.5, training=0.5))
    assert outcome.fenced == 0
    assert outcome.seconds == 4


@pytest.mark.parametrize(
    ("copies_", "speeds", "options", "at"),
    [
        ([DueCopy(1, 0.0)], CopySpeeds(0.0, 1.0), {}, "speeds"),
        ([DueCopy(1, 0.0)], CopySpeeds(1.0, 1.0, 1.5), {}, "speeds"),
        ([DueCopy(1, 0.0)], CopySpeeds(1.0, 1.0), {"bandwidth": 0.0}, "speeds"),
        ([DueCopy(8, 0.0)], CopySpeeds(1.0, 1.0), {"memory": 7.0}, "memory"),
    ],
)
def test_what_is_out_of_range(
    copies_: list[DueCopy], speeds: CopySpeeds, options: dict[str, float], at: str
) -> None:
    with pytest.raises(UcpError) as caught:
        simulate_snapshot(copies_, speeds, **options)
    assert (caught.value.code, caught.value.at) == ("UCP-E-LIMIT", at)


def test_nothing_to_copy_takes_no_time() -> None:
    assert simulate_snapshot([], CopySpeeds(1.0, 1.0)).stall == 0
