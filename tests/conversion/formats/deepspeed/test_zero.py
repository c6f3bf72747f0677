"""ZeRO's buffers as layouts; what DeepSpeed itself does is compared in tests/frameworks_live/deepspeed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.conversion.formats.deepspeed.zero.layouts import (
    partition_places,
    partition_size,
    round_robin_order,
    shared_places,
    zero_mesh,
)
from ucpformat.errors import UcpError
from ucpformat.geometry import BufferPlace, MeshAxis, Shard, covers, distinct_boxes, lower

SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=6)


@given(shapes=SHAPES, dp=st.integers(1, 5), data=st.data())
def test_a_shared_group_is_dense_aligned_and_whole(
    shapes: list[tuple[int, ...]], dp: int, data: st.DataObject
) -> None:
    paddings = data.draw(st.none() | st.lists(st.integers(0, 7), min_size=len(shapes), max_size=len(shapes)))
    placed = shared_places(zero_mesh(dp), shapes, group="g", paddings=paddings)
    end = 0
    for number, ((layout, place), shape) in enumerate(zip(placed, shapes, strict=True)):
        assert place.offsets == (end,)
        end += math.prod(shape) + (paddings[number] if paddings else 0)
        lowering = lower(layout, shape, place=place)
        assert covers(distinct_boxes(lowering), shape) is None
    (total,) = placed[0][1].totals
    assert total % (2 * dp) == 0
    assert end <= total < end + 2 * dp


@given(shapes=SHAPES, dp=st.integers(1, 5))
def test_partitions_are_equal_on_all_ranks(shapes: list[tuple[int, ...]], dp: int) -> None:
    placed = partition_places(zero_mesh(dp), shapes, group="g")
    end = 0
    for (layout, place), shape in zip(placed, shapes, strict=True):
        assert place.offsets == (end,)
        end += partition_size(shape, dp)
        assert covers(distinct_boxes(lower(layout, shape, place=place)), shape) is None
    assert placed[0][1].totals == (end,)


@given(count=st.integers(0, 20), dp=st.integers(1, 6))
def test_round_robin_order_is_a_permutation(count: int, dp: int) -> None:
    order = round_robin_order(count, dp)
    assert sorted(order) == list(range(count))
    assert [place % dp for place in order] == sorted(place % dp for place in order)


def test_tensor_parallel_parts_of_a_group_lie_one_after_another() -> None:
    """Two tensor-parallel ranks of uneven width: each has buffers of its own length."""
    mesh = zero_mesh(2, MeshAxis("tp", 2))
    steps = [(Shard("tp", 0, (3, 2)),), ()]
    (_, first), (layout, second) = shared_places(mesh, [(5, 4), (3,)], group="g", steps=steps)
    assert first == BufferPlace((0, 0), (16, 12), ("tp",))
    assert second == BufferPlace((12, 8), (16, 12), ("tp",))
    local = lower(layout, (3,), place=second).at((1, 1))
    assert local is not None
    assert local.shape == (6,)
    assert [piece.local.offset for piece in local.pieces] == [2]


def test_lists_that_do_not_fit_are_refused() -> None:
    mesh = zero_mesh(2)
    with pytest.raises(UcpError, match="as many paddings"):
        shared_places(mesh, [(1,), (2,)], group="g", paddings=[1])
    with pytest.raises(UcpError, match="as many lists of steps"):
        partition_places(mesh, [(1,), (2,)], group="g", steps=[()])
