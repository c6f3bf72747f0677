from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import coarse_maps, views_of
from ucpformat.errors import UcpError
from ucpformat.geometry import Box, Piece, Strided, canonical, common_refinement, row_major_strides, seen_in

COUNTS = st.sampled_from([1, 2, 4, 6, 7, 8, 12, 24, 30, 36, 48, 60])


@given(st.data(), COUNTS)
def test_a_map_is_the_same_in_every_view(data: st.DataObject, count: int) -> None:
    shape, view = data.draw(views_of(count)), data.draw(views_of(count))
    pieces = data.draw(coarse_maps(shape))
    seen = seen_in(pieces, shape, view)
    assert linear(seen, view) == linear(pieces, shape)
    if shape != view:
        assert canonical(seen, view) == seen
    assert canonical(seen_in(seen, view, shape), shape) == canonical(pieces, shape)


def linear(pieces: tuple[Piece, ...], shape: tuple[int, ...]) -> dict[int, object]:
    strides = row_major_strides(shape)
    return {sum(map(int.__mul__, cell, strides)): value for cell, value in model.cells_of(pieces).items()}


@given(st.data(), COUNTS)
def test_a_common_refinement_has_the_cuts_of_both(data: st.DataObject, count: int) -> None:
    shape, other = data.draw(views_of(count)), data.draw(views_of(count))
    both = common_refinement(shape, other)
    wanted = cuts(shape) | cuts(other)
    chain = sorted(wanted)
    if both is None:
        assert any(high % low for low, high in pairwise(chain))
        assert common_refinement(other, shape) is None
    else:
        assert math.prod(both) == count
        assert cuts(both) == wanted
        assert common_refinement(both, other) == common_refinement(both, shape) == both


def cuts(shape: tuple[int, ...]) -> set[int]:
    return {stride for stride in row_major_strides(shape) if 1 < stride < math.prod(shape)}


def test_a_shape_is_its_own_refinement_with_its_dims_of_extent_one() -> None:
    assert common_refinement((1, 6, 1), (3, 2)) == (1, 3, 2, 1)
    assert common_refinement((0, 4), (2, 0)) == (0, 4)
    assert common_refinement((2, 3), (3, 2)) is None


def test_views_without_a_common_refinement_go_through_runs() -> None:
    column = (Piece(Box((0, 1), (2, 1)), Strided(0, (1, 0))),)
    assert seen_in(column, (2, 3), (3, 2)) == (
        Piece(Box((0, 1), (1, 1)), Strided(0, (0, 0))),
        Piece(Box((2, 0), (1, 1)), Strided(1, (0, 0))),
    )


def test_empty_maps_are_empty_in_every_view() -> None:
    assert seen_in((), (0, 3), (3, 0)) == ()
    assert seen_in((), (2, 3), (3, 2)) == ()


def test_too_many_runs_are_refused_and_not_spelled_out() -> None:
    rows = 1 << 40
    column = (Piece(Box((0, 1), (rows, 1)), Strided(0, (1, 0))),)
    with pytest.raises(UcpError, match="UCP-E-LIMIT"):
        seen_in(column, (rows, 2), (2 * rows,))
    grid = (Piece(Box((0, 0, 0, 0), (1 << 11, 1, 1 << 11, 1)), Strided(0, (1 << 11, 0, 1, 0))),)
    with pytest.raises(UcpError, match="UCP-E-LIMIT"):
        seen_in(grid, (1 << 11, 2, 1 << 11, 2), (1 << 12, 1 << 12))
