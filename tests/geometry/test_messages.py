"""Copies between two ranks: in an order that both know, cut to a size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import lowerings, shapes
from ucpformat.errors import LayoutError
from ucpformat.geometry import Copy, Exchange, Strided, cut_copy, in_message_order


@given(st.data(), shapes(max_elements=120))
def test_both_sides_list_the_same_copies_in_the_same_order(
    data: st.DataObject, shape: tuple[int, ...]
) -> None:
    exchange = Exchange(
        data.draw(lowerings(shape, "view pad concat scale partial")), data.draw(lowerings(shape))
    )
    try:
        plan = exchange.plan()
    except LayoutError:
        reject()
    given_to: dict[tuple[int, int], list[Copy]] = {}
    taken: dict[tuple[int, int], list[Copy]] = {}
    for rank in {copy.source_rank for copy in plan.copies} | {copy.target_rank for copy in plan.copies}:
        part = exchange.rank(rank)
        for copy in part.sends:
            given_to.setdefault((rank, copy.target_rank), []).append(copy)
        for copy in part.receives:
            taken.setdefault((copy.source_rank, rank), []).append(copy)
    assert given_to.keys() == taken.keys()
    for pair, copies in given_to.items():
        assert in_message_order(copies) == in_message_order(taken[pair])


@given(st.data(), shapes(max_ndim=4, max_elements=200), st.integers(1, 50))
def test_parts_are_small_and_make_the_whole_in_order(
    data: st.DataObject, shape: tuple[int, ...], most: int
) -> None:
    if 0 in shape:
        return
    dense = np.arange(int(np.prod(shape, dtype=int)))
    strides = tuple(np.array(dense.reshape(shape).strides, int) // dense.itemsize)
    place = Strided(data.draw(st.integers(0, 5)), tuple(map(int, strides)))
    copy = Copy(0, 1, shape, Strided(0, tuple(map(int, strides))), place)
    parts = list(cut_copy(copy, most))
    assert all(1 <= part.size <= most for part in parts)
    cells = [model.view(dense, part.shape, part.source).reshape(-1) for part in parts]
    assert np.concatenate(cells).tolist() == dense.tolist()
    for part in parts:
        assert part.target.offset - part.source.offset == place.offset
        assert (part.target.strides, part.source_rank, part.target_rank) == (place.strides, 0, 1)
    # No two neighbours would have fitted into one, but for the last of a row.
    assert len(parts) <= 2 * -(-copy.size // max(1, most // 2)) + len(shape)


@pytest.mark.parametrize(
    ("most", "shapes_"), [(12, [(2, 2, 3)]), (11, [(1, 2, 3)] * 2), (2, [(1, 1, 2), (1, 1, 1)] * 4)]
)
def test_cuts_follow_the_outermost_dims(most: int, shapes_: list[tuple[int, ...]]) -> None:
    copy = Copy(0, 1, (2, 2, 3), Strided(0, (6, 3, 1)), Strided(0, (6, 3, 1)))
    assert [part.shape for part in cut_copy(copy, most)] == shapes_
