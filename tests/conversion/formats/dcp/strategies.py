"""Hypothesis strategies: shapes, boxes, ways to cut a shape into boxes."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st

Box = tuple[tuple[int, ...], tuple[int, ...]]

shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)


@st.composite
def boxes_of(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """A box inside ``shape``, possibly empty."""
    offset = tuple(draw(st.integers(0, extent)) for extent in shape)
    return offset, tuple(draw(st.integers(0, extent - o)) for extent, o in zip(shape, offset, strict=True))


@st.composite
def tilings(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Boxes that cover ``shape`` exactly, made by cutting boxes in two again and again."""
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6)) if shape else 0):
        offset, extent = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(0, extent[dim]))
        lower = (offset, (*extent[:dim], cut, *extent[dim + 1 :]))
        upper = (
            (*offset[:dim], offset[dim] + cut, *offset[dim + 1 :]),
            (*extent[:dim], extent[dim] - cut, *extent[dim + 1 :]),
        )
        boxes += [lower, upper]
    return draw(st.permutations(boxes))


def index_of(offset: tuple[int, ...], extent: tuple[int, ...]) -> Any:
    """The numpy index of a box; a view also for 0-d arrays."""
    return (..., *(slice(o, o + n) for o, n in zip(offset, extent, strict=True)))
