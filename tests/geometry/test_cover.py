from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import boxes, nonempty_boxes, shapes, tilings
from ucpformat.errors import LayoutError
from ucpformat.geometry import (
    Blocks,
    Box,
    BoxIndex,
    CoverFault,
    Layout,
    Mesh,
    MeshAxis,
    Shard,
    check_cover,
    cover,
    covers,
    distinct_boxes,
    exact_cover,
    first_gap,
    first_overlap,
    lower,
)

SOLID = shapes(max_elements=200).filter(lambda shape: 0 not in shape)


@given(st.data(), SOLID)
def test_tilings_cover_exactly(data: st.DataObject, shape: tuple[int, ...]) -> None:
    parts = data.draw(tilings(Box.whole(shape)))
    assert exact_cover(parts, shape) is None
    check_cover(parts, shape)
    assert covers(parts + parts, shape) is None


@given(st.data(), SOLID)
def test_a_missing_part_is_a_gap(data: st.DataObject, shape: tuple[int, ...]) -> None:
    missing, *parts = data.draw(tilings(Box.whole(shape)))
    for fault in (exact_cover(parts, shape), covers(parts, shape)):
        assert fault is not None
        assert fault.kind == "gap"
        assert missing.contains(fault.box)
        assert not fault.box.is_empty


@given(st.data(), SOLID)
def test_an_extra_part_is_an_overlap(data: st.DataObject, shape: tuple[int, ...]) -> None:
    parts = data.draw(tilings(Box.whole(shape)))
    extra = data.draw(nonempty_boxes(shape))
    fault = exact_cover([*parts, extra], shape)
    assert fault is not None
    assert fault.kind == "overlap"
    assert extra.contains(fault.box)
    assert covers([*parts, extra], shape) is None


@given(st.data(), shapes(max_elements=200))
def test_verdicts_are_those_of_counting_cells(data: st.DataObject, shape: tuple[int, ...]) -> None:
    some = data.draw(st.lists(boxes(shape), max_size=6))
    count = model.marked(some, shape)
    assert (first_overlap(some) is None) == bool((count <= 1).all())
    assert (exact_cover(some, shape) is None) == bool((count == 1).all())
    assert (covers(some, shape) is None) == bool((count >= 1).all())
    gap = first_gap(some, shape)
    if gap is None:
        assert (count >= 1).all()
    else:
        assert (count[model.slices(gap)] == 0).all()
        assert gap.offset == tuple(np.argwhere(count == 0)[0].tolist())


@given(st.data(), SOLID.filter(bool))
def test_slabs_of_which_one_is_another(data: st.DataObject, shape: tuple[int, ...]) -> None:
    dim = data.draw(st.integers(0, len(shape) - 1))
    cuts = data.draw(st.sets(st.integers(0, shape[dim]), max_size=4)) | {0, shape[dim]}
    slabs = []
    for low, high in itertools.pairwise(sorted(cuts)):
        offset, extents = [0] * len(shape), list(shape)
        offset[dim], extents[dim] = low, high - low
        slabs.append(Box(tuple(offset), tuple(extents)))
    assert exact_cover(slabs, shape) is None
    assert exact_cover([*slabs, slabs[0]], shape) == CoverFault("overlap", slabs[0])
    for place in range(len(slabs)):
        some = slabs.copy()
        some[place] = data.draw(nonempty_boxes(shape))
        assert (exact_cover(some, shape) is None) == (some[place] == slabs[place])


def test_no_cells_have_no_gap() -> None:
    assert first_gap([], (3, 0)) is None
    assert exact_cover([Box((), ())], ()) is None
    assert exact_cover([Box((), ())] * 2, ()) == CoverFault("overlap", Box((), ()))


@given(st.data(), shapes(max_elements=200))
def test_the_index_finds_what_a_scan_finds(data: st.DataObject, shape: tuple[int, ...]) -> None:
    some = data.draw(st.lists(boxes(shape), max_size=8))
    wanted = data.draw(boxes(shape))
    expected = [place for place, box in enumerate(some) if box.intersect(wanted) is not None]
    assert BoxIndex(some).overlapping(wanted) == expected


def test_a_grid_of_thousands_is_no_effort() -> None:
    grid = [Box((row * 3, column * 5), (3, 5)) for row in range(60) for column in range(60)]
    assert exact_cover(grid, (180, 300)) is None
    assert exact_cover(grid[:1234] + grid[1235:], (180, 300)) == CoverFault("gap", grid[1234])


def test_boxes_that_leave_the_tensor() -> None:
    outside = Box((1,), (2,))
    assert exact_cover([outside], (2,)) == CoverFault("outside", outside)
    assert covers([Box((0,), (2,)), outside], (2,)) == CoverFault("outside", outside)


def test_the_error_names_the_place() -> None:
    with pytest.raises(LayoutError, match="gap at") as caught:
        check_cover([Box((0,), (1,))], (2,), at="/segments/3")
    assert (caught.value.code, caught.value.at) == ("UCP-E-COVER", "/segments/3")


def test_unequal_overlaps_are_for_sources_alone() -> None:
    mesh = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 2)))
    plain = distinct_boxes(lower(Layout(mesh, (Shard("tp", 0),)), (4,)))
    assert plain == [Box((0,), (2,)), Box((2,), (2,))]
    assert exact_cover(plain, (4,)) is None
    replicated = distinct_boxes(lower(Layout(mesh, (Blocks(0, (4, 2), (None, ())), Shard("tp", 0))), (6,)))
    assert exact_cover(replicated, (6,)) == CoverFault("overlap", Box((4,), (2,)))
    assert covers(replicated, (6,)) is None


def _stairs(side: int) -> list[Box]:
    """A tiling of a square by columns, each cut where it meets the diagonal: spans of all lengths, one in another."""
    upper = [Box((0, column), (column, 1)) for column in range(1, side)]
    return upper + [Box((column, column), (side - column, 1)) for column in range(side)]


@given(st.data(), st.integers(2, 12))
def test_boxes_that_lie_badly_are_judged_as_by_counting_cells(data: st.DataObject, side: int) -> None:
    """However few steps are allowed before a polynomial decides."""
    boxes = _stairs(side)
    for place in data.draw(st.lists(st.integers(0, len(boxes) - 1), max_size=2)):
        boxes[place] = data.draw(st.sampled_from(boxes))
    shape = (side, side)
    count = np.zeros(shape, int)
    for box in boxes:
        count[tuple(slice(start, stop) for start, stop in zip(box.offset, box.stop, strict=True))] += 1
    with patch.object(cover, "_STEPS", (data.draw(st.integers(0, 40)), 0)):
        fault = exact_cover(boxes, shape)
        assert (fault is None) == bool((count == 1).all())
        if fault is not None:
            assert (count == 0).any() if fault.kind == "gap" else (count > 1).any()
        assert (covers(boxes, shape) is None) == bool((count >= 1).all())


def test_boxes_that_lie_badly_cost_steps_in_proportion_to_their_number() -> None:
    """Each lies beside all others in one dim: 20,000 took two minutes."""
    for change, verdict in ((None, None), (0, "overlap"), (-1, "overlap")):
        boxes = _stairs(1000)
        if change is not None:
            boxes[change] = boxes[500]
        taken: list[int] = []
        take = cover._Steps.take

        def counted(steps: cover._Steps, count: int, take: Any = take, taken: Any = taken) -> None:
            taken.append(count)
            take(steps, count)

        with patch.object(cover._Steps, "take", counted):
            fault = exact_cover(boxes, (1000, 1000))
        assert (fault and fault.kind) == verdict
        assert sum(taken) < 100 * len(boxes)
