"""Layouts from the boxes of fragments, which are all that DCP records."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
from hypothesis import given

from tests.conversion.formats.dcp.strategies import Box, shapes, tilings
from ucpformat.conversion.dcp_files.tensors import grid_layout
from ucpformat.geometry import lower


@st.composite
def grids(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A shape and the boxes of a grid over it, in any order."""
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=4)))
    cuts = [
        sorted({0, *draw(st.sets(st.integers(1, extent - 1), max_size=3) if extent > 1 else st.just(set()))})
        for extent in shape
    ]
    spans = [
        [(start, stop - start) for start, stop in itertools.pairwise((*starts, extent))]
        for starts, extent in zip(cuts, shape, strict=True)
    ]
    boxes = [
        (tuple(start for start, _ in cell), tuple(length for _, length in cell))
        for cell in itertools.product(*spans)
    ]
    return shape, draw(st.permutations(boxes))


def lowered(shape: tuple[int, ...], boxes: list[Box]) -> list[Box] | None:
    """The boxes that the layout puts at its coordinates, each held whole and dense."""
    layout = grid_layout(boxes, shape)
    if layout is None:
        return None
    lowering = lower(layout, shape)
    found = []
    for coordinate in itertools.product(*(range(axis.size) for axis in layout.mesh.axes)):
        local = lowering.at(coordinate)
        assert local is not None
        (piece,) = local.pieces
        assert local.shape == piece.box.shape
        found.append((piece.box.offset, piece.box.shape))
    return sorted(found)


@given(grids())
def test_a_grid_becomes_the_layout_that_has_its_boxes(grid: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, boxes = grid
    found = lowered(shape, boxes)
    assert found == (sorted(boxes) if len(boxes) > 1 else None)
    layout = grid_layout(boxes, shape)
    if layout is not None:
        assert all(axis.name == f"dim{axis.name[3:]}" and axis.size > 1 for axis in layout.mesh.axes)


@given(st.data(), shapes)
def test_a_layout_is_exact_or_none(data: st.DataObject, shape: tuple[int, ...]) -> None:
    """Empty fragments, which ranks without a share leave behind, change nothing."""
    boxes = data.draw(tilings(shape))
    solid = sorted(box for box in boxes if 0 not in box[1])
    found = lowered(shape, boxes)
    starts = [{offset[dim] for offset, _ in solid} for dim in range(len(shape))]
    is_grid = len(solid) > 1 and {offset for offset, _ in solid} == set(itertools.product(*starts))
    assert found == (solid if is_grid else None)


def test_a_pinwheel_is_no_grid() -> None:
    boxes: list[Box] = [
        ((0, 0), (1, 2)),
        ((0, 2), (2, 1)),
        ((2, 1), (1, 2)),
        ((1, 0), (2, 1)),
        ((1, 1), (1, 1)),
    ]
    assert grid_layout(boxes, (3, 3)) is None
