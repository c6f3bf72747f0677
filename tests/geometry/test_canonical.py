"""The canonical list of pieces (SPEC 13; UCP-R-021)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import ALL_KINDS, coarse_maps, lowerings, recut, shapes
from ucpformat.errors import LayoutError
from ucpformat.geometry import Box, Piece, Strided, canonical


def line(start: int, length: int, local: int, stride: int = 1) -> Piece:
    return Piece(Box((start,), (length,)), Strided(local, (stride,)))


@given(st.data(), shapes(max_ndim=3, max_elements=80).filter(lambda shape: 0 not in shape))
def test_the_form_is_that_of_the_definition(data: st.DataObject, shape: tuple[int, ...]) -> None:
    pieces = data.draw(coarse_maps(shape))
    expected = model.canonical_by_cells(model.cells_of(pieces), len(shape))
    assert canonical(pieces, shape) == tuple(expected)


@given(st.data(), shapes(max_ndim=4, max_elements=200).filter(lambda shape: 0 not in shape))
def test_the_form_does_not_depend_on_the_cutting(data: st.DataObject, shape: tuple[int, ...]) -> None:
    pieces = data.draw(coarse_maps(shape))
    form = canonical(pieces, shape)
    assert canonical(data.draw(recut(pieces)), shape) == form
    assert canonical(form, shape) == form
    assert list(form) == sorted(form, key=lambda piece: piece.box.offset)


@given(st.data(), shapes())
def test_cut_up_lowerings_come_back(data: st.DataObject, shape: tuple[int, ...]) -> None:
    lowering = data.draw(lowerings(shape, ALL_KINDS))
    for region in lowering.regions()[:4]:
        pieces = region.local_map.pieces
        assert canonical(data.draw(recut(pieces)), lowering.view) == pieces


def test_a_single_index_takes_the_step_to_the_next_one() -> None:
    # Greedy from below: 0 and 1 make a pair with step 5, and 2 does not fit it.
    expected = (line(0, 2, 0, 5), line(2, 2, 6, 1))
    assert canonical([line(0, 1, 0), line(1, 3, 5)], (4,)) == expected
    assert canonical([line(3, 1, 7), line(0, 1, 0), line(1, 2, 5)], (4,)) == expected


def test_backward_steps_and_other_scales_do_not_merge() -> None:
    backward = [line(0, 1, 5, 0), line(1, 1, 4, 0)]
    assert canonical(backward, (2,)) == tuple(backward)
    half = Piece(Box((1,), (1,)), Strided(1, (0,)), Fraction(1, 2))
    assert canonical([half, line(0, 1, 0, 0)], (2,)) == (line(0, 1, 0, 0), half)


def test_strides_that_do_not_ascend_are_taken_apart() -> None:
    assert canonical([line(0, 2, 3, 0)], (2,)) == (line(0, 1, 3, 0), line(1, 1, 3, 0))
    assert canonical([line(0, 2, 3, -1)], (2,)) == (line(0, 1, 3, 0), line(1, 1, 2, 0))


def test_empty_pieces_say_nothing() -> None:
    assert canonical([line(0, 0, 9)], (0,)) == ()
    assert canonical([Piece(Box((), ()), Strided(3, ()))], ()) == (Piece(Box((), ()), Strided(3, ())),)


def test_large_extents_cost_nothing() -> None:
    rows, columns = 2**50, 2**40
    parts = [
        Piece(Box((0, 0), (rows, 7)), Strided(0, (columns, 1))),
        Piece(Box((0, 7), (rows, columns - 7)), Strided(7, (columns, 1))),
    ]
    assert canonical(parts, (rows, columns)) == (
        Piece(Box((0, 0), (rows, columns)), Strided(0, (columns, 1))),
    )


def test_cells_held_twice_or_outside_are_refused() -> None:
    for pieces in ([line(0, 2, 0), line(1, 2, 1)], [line(0, 1, 0), line(0, 1, 0)], [line(2, 2, 0)]):
        with pytest.raises(LayoutError, match="UCP-E-COVER"):
            canonical(pieces, (3,))
