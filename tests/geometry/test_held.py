"""Who holds which cells, cell by cell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.geometry.model import counter, marked
from tests.geometry.strategies import boxes, placed_layouts, shapes
from ucpformat.geometry import Box, ExplicitHoldings, LocalBox, held_boxes, local_map_of, lower, seen_in


@given(st.data(), shapes(max_ndim=3, max_elements=60))
def test_every_cell_has_the_ranks_that_hold_it(data: st.DataObject, shape: tuple[int, ...]) -> None:
    """Two ways of holding one tensor: a layout, and boxes as ranks list them, which may overlap."""
    layout, place = data.draw(placed_layouts(shape))
    lowering = lower(layout, shape, place=place)
    holders = {layout.mesh.rank_of(coordinate): coordinate for coordinate in layout.mesh.coordinates()}
    some = frozenset(data.draw(st.sets(st.sampled_from(sorted(holders)))))
    listed = {100 + rank: data.draw(boxes(shape)) for rank in range(data.draw(st.integers(0, 3)))}
    explicit = ExplicitHoldings(
        shape,
        tuple(
            (rank, local_map_of(shape, box.shape, [LocalBox(box.offset, (0,) * box.ndim, box.shape)]))
            for rank, box in listed.items()
        ),
    )
    expected: dict[int, set[int]] = {}
    for rank in some:
        local_map = lowering.at(holders[rank])
        pieces = () if local_map is None else seen_in(local_map.pieces, lowering.view, shape)
        _add(expected, rank, [piece.box for piece in pieces], shape)
    for rank, box in listed.items():
        _add(expected, rank, [box], shape)
    found: dict[int, set[int]] = {}
    for held in held_boxes([(lowering, some), (explicit, frozenset(listed))]):
        for cell in counter(shape)[marked([held.box], shape) > 0].flat:
            assert cell not in found, "boxes are disjoint"
            found[int(cell)] = set(held.holders)
    assert found == expected


def _add(expected: dict[int, set[int]], rank: int, held: list[Box], shape: tuple[int, ...]) -> None:
    for cell in counter(shape)[marked(held, shape) > 0].flat:
        expected.setdefault(int(cell), set()).add(rank)
