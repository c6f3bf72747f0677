from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import shapes_with_boxes
from ucpformat.geometry import Box, chunk_grid, decompose_flat_range, joined


@given(shapes_with_boxes(3))
def test_joined_boxes_hold_the_same_cells_once_each(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, boxes = drawn
    disjoint: list[Box] = []
    for box in boxes:
        rest = [box]
        for other in disjoint:
            rest = [part for one in rest for part in one.subtract(other)]
        disjoint += rest
    found = joined(disjoint)
    assert np.array_equal(model.marked(found, shape), model.marked(disjoint, shape))
    assert len(found) <= len([box for box in disjoint if not box.is_empty])
    assert joined(found) == found


@given(shapes_with_boxes(0), st.integers(1, 40))
def test_all_chunks_of_a_tensor_are_joined_to_the_whole(
    drawn: tuple[tuple[int, ...], list[Box]], size: int
) -> None:
    shape, _ = drawn
    grid = chunk_grid(shape, 1, size)
    found = joined([grid.box_at(chunk) for chunk in range(grid.count)])
    assert found == ([Box.whole(shape)] if math.prod(shape) else [])


def test_rows_that_continue_one_another_are_one_range() -> None:
    rows = [box for start in (0, 8, 16) for box in decompose_flat_range((6, 4), start, start + 4)]
    assert joined(rows[:1]) == [Box((0, 0), (1, 4))]
    assert joined(rows) == rows
    assert joined([*rows, Box((1, 0), (1, 4))]) == [Box((0, 0), (3, 4)), Box((4, 0), (1, 4))]
