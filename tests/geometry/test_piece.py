from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import boxes, coarse_maps, shapes
from ucpformat.geometry import Box, LocalMap, Piece, Strided, intersect_box


@given(st.data(), shapes(max_ndim=3, max_elements=80).filter(lambda shape: 0 not in shape))
def test_a_clipped_map_holds_the_cells_inside(data: st.DataObject, shape: tuple[int, ...]) -> None:
    pieces = data.draw(coarse_maps(shape))
    box = data.draw(boxes(shape))
    clipped = intersect_box(LocalMap((1,), pieces), box)
    whole = model.cells_of(pieces)
    assert model.cells_of(clipped) == {
        cell: place for cell, place in whole.items() if box.contains(Box(cell, (1,) * len(cell)))
    }


def test_the_scale_is_kept() -> None:
    piece = Piece(Box((2,), (4,)), Strided(10, (3,)), Fraction(1, 2))
    assert piece.clip(Box((3,), (9,))) == Piece(Box((3,), (3,)), Strided(13, (3,)), Fraction(1, 2))
    assert piece.clip(Box((0,), (2,))) is None
