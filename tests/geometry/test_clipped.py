"""Moves cut to boxes carry out, box by box, what they carry out at once."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry.model import Array, slices, view
from tests.geometry.strategies import shapes, tilings, views_of
from ucpformat.geometry import (
    Box,
    Move,
    Strided,
    clipped_move,
    row_major_strides,
    source_boxes,
)


@st.composite
def moves(draw: st.DrawFn) -> tuple[Move, tuple[int, ...], tuple[int, ...]]:
    """A box of a permuted view of one tensor, to a box of a permuted view of another; and the shapes of both."""
    inner = draw(shapes(max_ndim=3, max_elements=60).filter(lambda shape: 0 not in shape))
    sides = []
    for _ in range(2):
        order = draw(st.permutations(range(len(inner))))
        around = tuple(inner[dim] + draw(st.integers(0, 3)) for dim in order)
        start = tuple(draw(st.integers(0, around[place] - inner[dim])) for place, dim in enumerate(order))
        dense = row_major_strides(around)
        strides = tuple(dense[order.index(dim)] for dim in range(len(inner)))
        place = Strided(sum(map(int.__mul__, start, dense)), strides)
        # The tensor itself is any view of that memory.
        sides.append((place, draw(views_of(math.prod(around)))))
    return Move(inner, sides[0][0], sides[1][0]), sides[0][1], sides[1][1]


def carried_out(parts: list[Move], source: Array, size: int) -> Array:
    found = np.full(size, -1)
    for part in parts:
        view(found, part.shape, part.target)[...] = view(source, part.shape, part.source)
    return found


@given(st.data(), moves())
def test_targets_are_filled_box_by_box(
    data: st.DataObject, drawn: tuple[Move, tuple[int, ...], tuple[int, ...]]
) -> None:
    move, source_shape, shape = drawn
    source = np.arange(math.prod(source_shape))
    whole = carried_out([move], source, math.prod(shape)).reshape(shape)
    for box in data.draw(tilings(Box.whole(shape))):
        parts = list(clipped_move(move, shape, box))
        assert sum(math.prod(part.shape) for part in parts) == int((whole[slices(box)] >= 0).sum())
        found = carried_out(parts, source, box.size)
        np.testing.assert_array_equal(found.reshape(box.shape), whole[slices(box)])


@given(moves())
def test_sources_are_read_in_boxes(drawn: tuple[Move, tuple[int, ...], tuple[int, ...]]) -> None:
    move, shape, target_shape = drawn
    source = np.arange(math.prod(shape))
    wanted = carried_out([move], source, math.prod(target_shape))
    found = np.full(wanted.shape, -1)
    for box, part in source_boxes(move, shape):
        assert box.size <= 2 * math.prod(part.shape)
        memory = np.ascontiguousarray(source.reshape(shape)[slices(box)]).reshape(-1)
        target = view(found, part.shape, part.target)
        assert (target == -1).all()
        target[...] = view(memory, part.shape, part.source)
    np.testing.assert_array_equal(found, wanted)


@st.composite
def combs(draw: st.DrawFn) -> tuple[Move, tuple[int, ...]]:
    """Loops within loops that go along one dim of a tensor of two, in steps that leave room; and its shape."""
    rows = draw(st.integers(1, 3))
    inner, outer = draw(st.integers(2, 3)), draw(st.integers(2, 3))
    near = draw(st.integers(1, 2))
    far = (inner - 1) * near + draw(st.integers(1, 5))
    first = draw(st.integers(0, 2))
    extent = first + (outer - 1) * far + (inner - 1) * near + 1 + draw(st.integers(0, 2))
    counts = (rows, outer, inner)
    order = draw(st.permutations(range(3)))
    place = Strided(first, tuple((extent, far, near)[dim] for dim in order))
    move = Move(tuple(counts[dim] for dim in order), place, place)
    return move, (rows, extent)


@given(combs())
def test_combs_are_cut_at_every_place(drawn: tuple[Move, tuple[int, ...]]) -> None:
    move, shape = drawn
    source = np.arange(math.prod(shape))
    whole = carried_out([move], source, source.size).reshape(shape)
    for low, high in itertools.combinations(range(shape[1] + 1), 2):
        box = Box((0, low), (shape[0], high - low))
        parts = list(clipped_move(move, shape, box))
        assert sum(math.prod(part.shape) for part in parts) == int((whole[slices(box)] >= 0).sum())
        found = carried_out(parts, source, box.size)
        np.testing.assert_array_equal(found.reshape(box.shape), whole[slices(box)])


@given(combs(), st.integers(1, 9))
def test_sparse_combs_are_read_in_several_boxes(drawn: tuple[Move, tuple[int, ...]], apart: int) -> None:
    move, (rows, extent) = drawn
    # The comb again, that many times as wide, so that most of its box is not wanted.
    place = replace(move.source, strides=tuple(apart * step for step in move.source.strides))
    move, shape = replace(move, source=place), (rows, apart * extent)
    source = np.arange(math.prod(shape))
    wanted = carried_out([move], source, rows * extent)
    found = np.full(wanted.shape, -1)
    sizes = []
    for box, part in source_boxes(move, shape):
        memory = source.reshape(shape)[slices(box)].reshape(-1)
        view(found, part.shape, part.target)[...] = view(memory, part.shape, part.source)
        sizes.append((box.size, math.prod(part.shape)))
    np.testing.assert_array_equal(found, wanted)
    assert all(size <= 2 * count for size, count in sizes)
    assert sum(count for _, count in sizes) == math.prod(move.shape)
    assert apart < 3 or len(sizes) > 1


def test_nothing_moves_nothing() -> None:
    empty = Move((0, 3), Strided(0, (3, 1)), Strided(0, (3, 1)))
    assert list(clipped_move(empty, (0, 3), Box((0, 0), (0, 3)))) == []
    assert list(source_boxes(empty, (0, 3))) == []
