from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import boxes, shapes
from ucpformat.errors import InvalidCheckpointError
from ucpformat.geometry import Box, ChunkGrid, chunk_grid, exact_cover, runs


@st.composite
def grids(draw: st.DrawFn) -> ChunkGrid:
    return chunk_grid(draw(shapes()), draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(1, 400)))


def indices(grid: ChunkGrid) -> list[tuple[int, ...]]:
    return [grid.index_of(position) for position in range(grid.count)]


@given(grids())
def test_chunks_tile_the_array(grid: ChunkGrid) -> None:
    parts = [grid.chunk_box(index) for index in indices(grid)]
    assert parts == [grid.box_at(position) for position in range(grid.count)]
    assert not any(box.is_empty for box in parts)
    assert exact_cover(parts, grid.shape) is None


@given(grids())
def test_every_chunk_is_one_run_from_its_start(grid: ChunkGrid) -> None:
    expected = 0
    for index in indices(grid):
        box = grid.chunk_box(index)
        found = runs(box, grid.shape)
        assert (found.first, found.length, found.loops) == (grid.chunk_start(index), box.size, ())
        # In C order the runs follow each other.
        assert found.first == expected
        expected += box.size


@given(st.data(), shapes(), st.sampled_from([1, 2, 4, 8]), st.integers(1, 400))
def test_chunks_stay_below_the_target_and_are_even(
    data: st.DataObject, shape: tuple[int, ...], item_size: int, chunk_bytes: int
) -> None:
    grid = chunk_grid(shape, item_size, chunk_bytes)
    size = Box.whole(grid.chunk_shape).size * item_size
    assert size <= max(chunk_bytes, item_size)
    for count, extent, chunk in zip(grid.counts, shape, grid.chunk_shape, strict=True):
        # No smaller extent would do with as many chunks.
        assert chunk == 1 or -(-extent // (chunk - 1)) > count


@given(st.data(), grids())
def test_positions_and_indices_are_a_bijection(data: st.DataObject, grid: ChunkGrid) -> None:
    found = indices(grid)
    assert [grid.position_of(index) for index in found] == list(range(grid.count))
    assert found == sorted(found)
    assert len({grid.key(index) for index in found}) == grid.count


@given(st.data(), grids())
def test_the_chunks_for_a_box_are_those_it_meets(data: st.DataObject, grid: ChunkGrid) -> None:
    box = data.draw(boxes(grid.shape))
    expected = [
        position
        for position in range(grid.count)
        if grid.chunk_box(grid.index_of(position)).intersect(box) is not None
    ]
    assert list(grid.chunks_for(box)) == expected


@given(st.data(), shapes())
def test_any_grid_tiles_its_array(data: st.DataObject, shape: tuple[int, ...]) -> None:
    grid = ChunkGrid(shape, tuple(data.draw(st.integers(1, 9)) for _ in shape))
    assert (model.marked(map(grid.chunk_box, indices(grid)), shape) == 1).all()
    for index in indices(grid):
        assert grid.chunk_start(index) == model.counter(shape)[grid.chunk_box(index).offset]


@pytest.mark.parametrize(
    ("shape", "item_size", "chunk_bytes", "chunk_shape"),
    [
        ((), 4, 16, ()),
        ((0,), 4, 16, (1,)),
        ((4097, 256), 4, 4096 * 1024, (2049, 256)),
        ((10,), 4, 16, (4,)),
        ((10,), 32, 16, (1,)),
        ((3, 8, 4), 1, 16, (1, 4, 4)),
        ((3, 0, 4), 1, 16, (3, 1, 4)),
        ((5, 100), 1, 16, (1, 15)),
        ((7, 2, 2), 2, 10**6, (7, 2, 2)),
    ],
)
def test_known_grids(
    shape: tuple[int, ...], item_size: int, chunk_bytes: int, chunk_shape: tuple[int, ...]
) -> None:
    assert chunk_grid(shape, item_size, chunk_bytes).chunk_shape == chunk_shape


def test_keys_are_those_of_zarr() -> None:
    assert chunk_grid((), 4, 16).key(()) == "c"
    assert chunk_grid((3, 8), 1, 4).key((2, 1)) == "c/2/1"
    assert (chunk_grid((), 4, 16).count, chunk_grid((0, 3), 4, 16).count) == (1, 0)
    assert chunk_grid((0, 3), 4, 16).counts == (0, 1)


def test_what_is_no_grid_or_chunk_is_refused() -> None:
    grid = chunk_grid((4, 4), 1, 4)
    for call in (
        lambda: ChunkGrid((4,), (0,)),
        lambda: ChunkGrid((4,), (1, 1)),
        lambda: ChunkGrid((-4,), (1,)),
        lambda: ChunkGrid((4,), (-1,)),
        lambda: chunk_grid((-4,), 1, 1),
        lambda: chunk_grid((4,), 0, 1),
        lambda: chunk_grid((4,), 1, 0),
        lambda: grid.chunk_box((4, 0)),
        lambda: grid.chunk_box((0,)),
        lambda: grid.chunk_start((-1, 0)),
        lambda: grid.key((0, 1)),
        lambda: grid.position_of((0, 1)),
        lambda: grid.index_of(4),
        lambda: grid.index_of(-1),
        lambda: grid.chunks_for(Box((3, 0), (2, 1))),
    ):
        with pytest.raises(InvalidCheckpointError, match="UCP-E-SHAPE"):
            call()
