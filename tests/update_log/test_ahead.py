"""What a thread makes ahead: the same items, within the bound, and no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.update_log.ahead import made_ahead


@given(sizes=st.lists(st.integers(0, 9), max_size=30), most=st.integers(0, 20), taken=st.integers(0, 30))
def test_items_come_in_order_and_are_never_more_than_the_bound(
    sizes: list[int], most: int, taken: int
) -> None:
    made: list[int] = []
    given_back: list[int] = []
    before = threading.active_count()

    def source() -> Iterator[tuple[int, int]]:
        for item in enumerate(sizes):
            made.append(item[1])
            yield item

    with made_ahead(source(), lambda item: item[1], most_bytes=most) as items:
        for item in items:
            given_back.append(item[1])
            # One more is in the hand of the thread, which waits for room.
            held = sum(made[len(given_back) : -1])
            assert held <= most or len(made) - len(given_back) <= 2
            if len(given_back) == taken:
                break
    assert given_back == sizes[: len(given_back)]
    assert len(given_back) == min(len(sizes), taken or len(sizes))
    assert threading.active_count() == before


def test_what_the_source_raises_comes_at_its_place() -> None:
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("three")

    with made_ahead(source(), lambda _: 1, most_bytes=9) as items:
        assert [next(items), next(items)] == [1, 2]
        with pytest.raises(KeyError, match="three"):
            next(items)
