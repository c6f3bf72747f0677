"""Which copy behind a save goes next: what is waited for, then what is expected to be, of few fences or many."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from ucpformat.cadence import DueCopy
from ucpformat.distributed import later_copies
from ucpformat.distributed.later_copies import LaterCopies, Pacing

Groups = dict[frozenset[int], list[int]]


class NoFences:
    """Fences that nothing waits at but the test."""

    def arm(self, wait: Callable[[int], None]) -> None:
        """Do nothing."""

    def changed(self, fence: int) -> None:
        """Say that nothing was changed."""

    def disarm(self) -> None:
        """Do nothing."""


def copies_of(groups: Groups, expected: dict[int, float]) -> LaterCopies:
    """Copies of pieces of one byte, each of which is copied by itself."""
    pieces = sum(map(len, groups.values()))
    snapshot: Any = SimpleNamespace(sizes=[1] * pieces)
    pacing = Pacing()
    pacing.expected = dict(expected)
    later = LaterCopies(snapshot, groups, NoFences(), pacing)
    with patch.object(later_copies, "_AT_ONCE", 1), patch.object(later_copies, "_AT_A_FENCE", 1):
        later.begin()
    return later


def taken(later: LaterCopies) -> int:
    with patch.object(later_copies, "_AT_ONCE", 1), patch.object(later_copies, "_AT_A_FENCE", 1):
        (number,) = later._next()
    return number


@st.composite
def groups_of_fences(draw: st.DrawFn) -> Groups:
    fences = draw(st.lists(st.frozensets(st.integers(0, 5), min_size=1, max_size=3), min_size=1, unique=True))
    groups: Groups = {}
    count = 0
    for one in fences:
        size = draw(st.integers(1, 3))
        groups[one] = list(range(count, count + size))
        count += size
    return groups


@given(
    groups=groups_of_fences(),
    expected=st.dictionaries(st.integers(0, 5), st.sampled_from([0.0, 1e3, 2e3, 3e3])),
    waits=st.lists(st.none() | st.integers(0, 5)),
)
def test_what_is_waited_for_goes_first_and_the_rest_as_expected(
    groups: Groups, expected: dict[int, float], waits: list[int | None]
) -> None:
    later = copies_of(groups, expected)
    of_piece = {number: group for group, numbers in groups.items() for number in numbers}
    left = {group: list(numbers) for group, numbers in groups.items()}

    def seconds(group: frozenset[int]) -> float:
        return min(expected.get(fence, inf) for fence in group)

    for number in range(len(of_piece)):
        if number < len(waits) and (fence := waits[number]) is not None:
            later._waiting = {fence}
        found = taken(later)
        waited_for = [group for group in left if group & later._waiting]
        assert seconds(of_piece[found]) == min(map(seconds, waited_for or left))
        assert not waited_for or of_piece[found] in waited_for
        assert left[of_piece[found]].pop(0) == found  # those of one fence in their order
        if not left[of_piece[found]]:
            del left[of_piece[found]]
        later._in_hand = frozenset()
        assert [later._needs(fence) for fence in range(6)] == [
            any(fence in group for group in left) for fence in range(6)
        ]
    assert later._next() == []


def test_what_goes_next_is_found_among_many_fences_as_fast_as_among_few() -> None:
    """By what is looked at, not by the clock: an optimizer for each layer has as many fences as there are layers."""

    def looked_at(fences: int) -> int:
        later = copies_of({frozenset({one}): [one] for one in range(fences)}, {})
        with patch.object(later_copies, "DueCopy", wraps=DueCopy) as due:
            for _ in range(fences):
                taken(later)
        return due.call_count

    assert looked_at(200) == 10 * looked_at(20)
