"""Explanations: every label of a picture is who holds the cell, every shape is that of the local tensor."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import placed_layouts, shapes
from tests.geometry.test_transfer import mesh
from ucpformat.drawing.picture import lines_of, picture_of
from ucpformat.errors import LayoutError
from ucpformat.geometry import (
    BlockRule,
    Blocks,
    BufferPlace,
    Concat,
    Flatten,
    Join,
    Layout,
    LocalOnly,
    Mesh,
    MeshAxis,
    Only,
    Pad,
    Partial,
    Permute,
    RaggedAxis,
    Scale,
    Shard,
    Step,
    View,
    lower,
)
from ucpformat.planning import explain, rank_words
from ucpformat.planning.explain import step_words

ALL = "view pad concat scale partial"


def holders_of(layout: Layout, shape: tuple[int, ...], place: BufferPlace | None) -> dict[int, set[int]]:
    """The ranks that hold each cell, cell by cell."""
    found: dict[int, set[int]] = {cell: set() for cell in range(int(np.prod(shape, dtype=int)))}
    for coordinate in layout.mesh.coordinates():
        held = model.held(layout, shape, coordinate, place)
        for cell in () if held is None else held.reshape(-1).tolist():
            if cell >= 0:
                found[cell].add(layout.mesh.rank_of(coordinate))
    return found


@given(st.data(), shapes(max_ndim=3, max_elements=300))
def test_every_label_is_who_holds_the_cell(data: st.DataObject, shape: tuple[int, ...]) -> None:
    layout, place = data.draw(placed_layouts(shape, kinds=ALL))
    found = explain(layout, shape, place)
    picture = picture_of(found.lowering, found.regions)
    if 0 in shape:
        assert picture is None
        return
    assert picture is not None
    holders = holders_of(layout, shape, place)
    # One cell of the drawing stands for all elements along the dims that are not shown.
    grid = np.moveaxis(model.counter(shape), picture.dims, range(len(picture.dims)))
    shown = [1, 1, *grid.shape[: len(picture.dims)]][-2:]
    logical = grid.reshape(*shown, math.prod(grid.shape[len(picture.dims) :]))
    rows, columns = picture.rows, picture.columns
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (0, logical.shape[0], 0, logical.shape[1])
    for row, ranks in enumerate(picture.holders):
        for column, label in enumerate(ranks):
            cells = logical[rows[row] : rows[row + 1], columns[column] : columns[column + 1]]
            chosen = cells.reshape(-1).tolist() if picture.is_exact else [int(cells[0, 0, 0])]
            assert all(holders[cell] == set(label) for cell in chosen)
            assert list(label) == sorted(label)
    lines = list(lines_of(picture))
    assert len({len(line) for line in lines[1:]}) == 1
    drawn = "".join(lines)
    assert all(str(label[0]) in drawn for ranks in picture.holders for label in ranks if label)


@given(st.data(), shapes(max_elements=200))
def test_shapes_behind_the_steps_lead_to_the_local_tensor(
    data: st.DataObject, shape: tuple[int, ...]
) -> None:
    layout, place = data.draw(placed_layouts(shape, kinds=ALL))
    rank = layout.mesh.rank_at(data.draw(st.integers(0, layout.mesh.size - 1)))
    for found in (explain(layout, shape, place), explain(layout, shape, place, rank=rank)):
        assert len(found.steps) == len(layout.steps)
        assert all(step.words for step in found.steps)
        for number, step in enumerate(found.steps, 1):
            head = Layout(layout.mesh, layout.steps[:number])
            held = model.held(head, shape, found.coordinate, place)
            assert step.shape == (None if held is None else held.shape)
    assert found.rank == rank


def test_axes_that_nobody_names_replicate() -> None:
    grid = mesh(pp=2, dp=2, sp=2, tp=2)
    found = explain(Layout(grid, (Only("pp", (1,)), Shard("tp", 0), Partial("sp", "mean"))), (4,))
    assert (found.rank, found.coordinate, found.replicated) == (8, (1, 0, 0, 0), ("dp",))
    assert explain(Layout(grid), (0,)).rank == 0
    with pytest.raises(LayoutError):
        explain(Layout(grid), (4,), rank=99)


RAGGED = Mesh((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (4, 2)), MeshAxis("tp", 2)))
OWN = (None, (), (Shard("tp", 0, "balanced"),), ())


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Shard("tp", 1, "even"), "dim 1 is split over the 2 positions of tp, in equal parts"),
        (
            Shard("dp", 0),
            "dim 0 is split over dp, which has 4, 2 positions by pp, in parts of the quotient rounded up",
        ),
        (Shard("tp", 0, (3, 0)), "dim 0 is split over the 2 positions of tp, in parts of 3, 0"),
        (Blocks(0, (4, 1)), "dim 0 is cut into blocks of 4, 1; what follows acts inside each"),
        (
            Blocks(0, (4, 1, 2, 1), OWN),
            (
                "dim 0 is cut into blocks of 4, 1, 2, 1; what follows acts inside each, but block 1, 3 is kept "
                "whole; block 2 is split over tp, in parts that differ by one at most"
            ),
        ),
        (
            Blocks(1, BlockRule("even", 3)),
            "dim 1 is cut into 3 blocks, in equal parts; what follows acts inside each",
        ),
        (Join(0), "the blocks of dim 0 are joined to one"),
        (Flatten(), "the tensor becomes one-dimensional, row by row"),
        (Only("pp", (0, 3)), "only position 0, 3 of pp holds it"),
        (View((2, 3)), "it is seen as 2x3, in the same order of elements"),
        (View(()), "it is seen as scalar, in the same order of elements"),
        (Permute((1, 0)), "its dims are taken in the order 1, 0"),
        (Pad(0, to=8), "dim 0 is padded at its end to 8"),
        (Pad(0, multiple=8), "dim 0 is padded at its end to a multiple of 8"),
        (Concat("g"), "it lies in the buffer 'g', nobody says where"),
        (Partial("sp", "mean"), "ranks along sp hold contributions, whose mean is the tensor"),
        (Scale(Fraction(1, 2)), "every value is 1/2 times the logical one"),
        (LocalOnly(), "every rank has an entry of its own along dim 0"),
        (
            Shard("tp", 0, (1,) * 9),
            "dim 0 is split over the 2 positions of tp, in parts of 1, 1, 1, 1, 1, 1, 1, 1, ...",
        ),
    ],
)
def test_steps_in_words(step: Step, words: str) -> None:
    assert step_words(step, RAGGED) == words


def test_places_in_words() -> None:
    assert step_words(Concat("g"), RAGGED, BufferPlace((4,), (12,))).endswith("from element 4 on, of 12")
    place = BufferPlace((0, 4), (12, 12), ("pp",))
    assert step_words(Concat("g"), RAGGED, place).endswith("at another place along pp")


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((3,), "rank 3"),
        ((3, 4), "ranks 3 and 4"),
        ((0, 1, 2, 3, 8), "ranks 0 to 3 and 8"),
        ((0, 2, 4), "ranks 0, 2 and 4"),
        (tuple(range(0, 40, 2)), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and others, 20 in all"),
    ],
)
def test_ranks_in_words(ranks: tuple[int, ...], words: str) -> None:
    assert rank_words(ranks) == words


def picture(layout: Layout, shape: tuple[int, ...]) -> list[str]:
    found = explain(layout, shape)
    made = picture_of(found.lowering, found.regions)
    assert made is not None
    return list(lines_of(made))


def test_a_grid() -> None:
    layout = Layout(mesh(dp=2, r=2, c=3), (Shard("r", 0), Shard("c", 1, (2, 0, 6))))
    assert picture(layout, (8, 8)) == [
        "   0     2",
        "  ┌─────┬──────┐",
        "0 │ 0,6 │ 2,8  │",
        "  ├─────┼──────┤",
        "4 │ 3,9 │ 5,11 │",
        "  └─────┴──────┘",
    ]


def test_cells_of_one_holder_are_not_parted() -> None:
    layout = Layout(mesh(dp=3), (Flatten(), Shard("dp", 0, (6, 5, 5))))
    assert picture(layout, (4, 4)) == [
        "   0   2   3",
        "  ┌───────────┐",
        "0 │ 0   0   0 │",
        "  │   ┌───────┤",
        "1 │ 0 │ 1   1 │",
        "  ├───┘   ┌───┤",
        "2 │ 1   1 │ 2 │",
        "  ├───────┘   │",
        "3 │ 2   2   2 │",
        "  └───────────┘",
    ]


def test_a_small_tensor_in_another_view_is_drawn_cell_by_cell() -> None:
    heads = Layout(mesh(tp=2), (View((2, 2, 2)), Permute((1, 0, 2)), Shard("tp", 0)))
    assert picture(heads, (8,))[1:] == [
        " ┌───────┬───────┬───────┬───────┐",
        " │ 0   0 │ 1   1 │ 0   0 │ 1   1 │",
        " └───────┴───────┴───────┴───────┘",
    ]


def test_one_dim_and_replicated_blocks() -> None:
    layout = Layout(mesh(dp=2, tp=2), (Blocks(0, (4, 2, 2), (None, (), ())), Shard("tp", 0)))
    assert picture(layout, (8,)) == [
        "  0     2     4",
        " ┌─────┬─────┬──────┐",
        " │ 0,2 │ 1,3 │ 0 +3 │",
        " └─────┴─────┴──────┘",
    ]


def test_large_tensors_are_scaled_down_without_a_look_at_every_cell() -> None:
    layout = Layout(mesh(tp=2), (View((1 << 30, 2, 16)), Permute((1, 0, 2)), Shard("tp", 0)))
    found = explain(layout, (1 << 30, 32))
    made = picture_of(found.lowering, found.regions)
    assert made is not None
    assert (len(made.rows), len(made.columns), made.is_exact) == (17, 9, False)
    assert set(made.holders) == {((0,),) * 4 + ((1,),) * 4}


def test_no_picture_without_elements() -> None:
    lowering = lower(Layout(mesh(tp=2)), (0, 3))
    assert picture_of(lowering, lowering.regions()) is None
