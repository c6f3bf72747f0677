from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import boxes, shapes, shapes_with_boxes
from ucpformat.errors import InvalidCheckpointError
from ucpformat.geometry import (
    Box,
    Runs,
    decompose_flat_range,
    row_major_strides,
    runs,
    strided_runs,
)


@given(shapes())
def test_strides_and_count_are_those_of_a_dense_array(shape: tuple[int, ...]) -> None:
    array = np.empty(shape, dtype=np.uint8)
    assert math.prod(shape) == array.size
    if array.size:
        assert row_major_strides(shape) == array.strides


@given(shapes_with_boxes(2))
def test_intersection_holds_the_common_cells(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, (one, other) = drawn
    common = one.intersect(other)
    both = (model.marked([one], shape) + model.marked([other], shape)) == 2
    if common is None:
        assert not both.any()
    else:
        assert not common.is_empty
        assert (model.marked([common], shape) == both).all()
    assert other.intersect(one) == common


@given(shapes_with_boxes(2))
def test_subtraction_leaves_the_other_cells_once(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, (one, hole) = drawn
    rest = one.subtract(hole)
    assert len(rest) <= max(1, 2 * len(shape))
    assert not any(box.is_empty for box in rest)
    expected = (model.marked([one], shape) == 1) & (model.marked([hole], shape) == 0)
    assert (model.marked(rest, shape) == expected).all()


@given(shapes_with_boxes(2))
def test_containment_and_relative_coordinates(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, (one, other) = drawn
    whole = Box.whole(shape)
    assert whole.contains(one)
    assert one.relative_to(whole) == one
    if one.contains(other):
        relative = other.relative_to(one)
        assert relative.translate(one.offset) == other
        assert Box.whole(one.shape).contains(relative)
    elif not other.is_empty:
        assert one.intersect(other) != other


@given(shapes_with_boxes(1))
def test_runs_are_the_elements_of_the_box(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, (box,) = drawn
    found = runs(box, shape)
    elements = [start + step for start in found for step in range(found.length)]
    assert elements == model.counter(shape)[model.slices(box)].reshape(-1).tolist()
    assert len(list(found)) == found.count
    assert len(found.loops) <= max(0, len(shape) - 1)
    if elements:
        assert found.span == (min(elements), max(elements) + 1)
    else:
        assert found == Runs(0, 0, ())
        assert found.span == (0, 0)


@given(shapes_with_boxes(1))
def test_runs_are_as_long_as_they_can_be(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, (box,) = drawn
    starts = list(found := runs(box, shape))
    assert all(later - earlier > found.length for earlier, later in pairwise(starts))


def test_runs_merge_loops_and_skip_extents_of_one() -> None:
    assert runs(Box((0, 0, 2), (4, 3, 4)), (4, 3, 8)) == Runs(2, 4, ((12, 8),))
    assert runs(Box((1, 0, 0), (1, 3, 8)), (4, 3, 8)) == Runs(24, 24, ())
    assert runs(Box((0, 1, 0), (4, 1, 3)), (4, 3, 8)) == Runs(8, 3, ((4, 24),))
    assert strided_runs(5, (2, 3), (1, 10)) == Runs(5, 1, ((2, 1), (3, 10)))
    assert strided_runs(5, (), ()) == Runs(5, 1, ())


@given(st.data(), shapes())
def test_flat_ranges_become_few_boxes_in_order(data: st.DataObject, shape: tuple[int, ...]) -> None:
    total = math.prod(shape)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    parts = decompose_flat_range(shape, start, stop)
    assert len(parts) <= max(1, 2 * len(shape) - 1)
    elements = [
        element for box in parts for element in model.counter(shape)[model.slices(box)].reshape(-1).tolist()
    ]
    assert elements == list(range(start, stop))


def test_flat_range_of_a_matrix_is_head_rows_and_tail() -> None:
    assert decompose_flat_range((4, 3), 1, 11) == [
        Box((0, 1), (1, 2)),
        Box((1, 0), (2, 3)),
        Box((3, 0), (1, 2)),
    ]
    assert decompose_flat_range((4, 3), 3, 9) == [Box((1, 0), (2, 3))]
    assert decompose_flat_range((4, 3), 1, 2) == [Box((0, 1), (1, 1))]
    assert decompose_flat_range((), 0, 1) == [Box((), ())]
    assert decompose_flat_range((0, 3), 0, 0) == []


def test_a_zero_dimensional_box_is_one_cell() -> None:
    point = Box.whole(())
    assert (point.ndim, point.size, point.stop, point.is_empty) == (0, 1, (), False)
    assert point.intersect(point) == point
    assert point.subtract(point) == ()
    assert point.contains(point)


@given(st.data(), shapes())
def test_size_counts_cells(data: st.DataObject, shape: tuple[int, ...]) -> None:
    box = data.draw(boxes(shape))
    assert box.size == model.marked([box], shape).sum()
    assert box.is_empty == (box.size == 0)
    assert box.ndim == len(shape)


@pytest.mark.parametrize(
    ("offset", "shape"),
    [((0,), ()), ((-1,), (1,)), ((0,), (-1,)), ((True,), (1,)), ((0,), (1.0,)), ([0], (1,))],
)
def test_what_is_no_box_is_refused(offset: tuple[int, ...], shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidCheckpointError, match="UCP-E-SHAPE"):
        Box(offset, shape)


def test_boxes_that_do_not_fit_are_refused() -> None:
    line, square = Box((1,), (2,)), Box((0, 0), (2, 2))
    for call in (
        lambda: line.intersect(square),
        lambda: line.contains(square),
        lambda: line.relative_to(square),
        lambda: line.subtract(square),
        lambda: line.translate((1, 1)),
        lambda: line.translate((-2,)),
        lambda: line.relative_to(Box((2,), (1,))),
        lambda: runs(line, (2,)),
        lambda: decompose_flat_range((2, 2), 3, 5),
        lambda: decompose_flat_range((2, 2), 3, 2),
        lambda: decompose_flat_range((2, 2), -1, 2),
    ):
        with pytest.raises(InvalidCheckpointError, match="UCP-E-SHAPE"):
            call()
