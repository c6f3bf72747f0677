"""Lowering against DTensor's own local shards and offsets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.geometry import model
from ucpformat.geometry import (
    DTensorShard,
    Layout,
    LocalMap,
    Mesh,
    MeshAxis,
    Shard,
    Step,
    dtensor_steps,
    lower,
)

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

S0, S1, R = TorchShard(0), TorchShard(1), Replicate()
STRIDED = _StridedShard(0, split_factor=2)
WIDE = _StridedShard(0, split_factor=4)

CASES: list[tuple[tuple[int, ...], list[Any]]] = [
    ((4,), [S0]),
    ((4,), [S1]),
    ((4,), [STRIDED]),
    ((4,), [WIDE]),
    ((2, 3), [S0, S0]),
    ((2, 3), [S0, S1]),
    ((2, 3), [S1, R]),
    ((3, 2), [STRIDED, S0]),
    ((3, 2), [S1, STRIDED]),
    ((2, 2), [STRIDED, STRIDED]),
    ((2, 2, 2), [R, STRIDED, S0]),
    ((2, 2, 2), [S0, S0, S0]),
    # Strided behind uneven shards of the same dim, and several of them.
    ((2, 2), [S0, STRIDED]),
    ((3, 2), [S0, WIDE]),
    ((2, 3, 2), [STRIDED, S0, STRIDED]),
    ((2, 2, 2), [WIDE, STRIDED, S0]),
    ((2, 3), [TorchShard(-1), S0]),
]
# Even, uneven, fewer rows than ranks, one row, none.
SHAPES = [(24, 4), (9, 5), (7, 5), (11, 1), (2, 3), (1, 2), (0, 3), (3, 0)]


def steps_of(placements: list[Any], ndim: int) -> tuple[Step, ...]:
    """The placements as ours, on mesh axes ``a0``, ``a1``, ..."""
    return dtensor_steps(
        [
            DTensorShard(f"a{axis}", placement.dim, getattr(placement, "split_factor", 1))
            for axis, placement in enumerate(placements)
            if placement != R
        ],
        ndim,
    )


@contextmanager
def process_group(rank: int, world_size: int) -> Iterator[None]:
    dist.init_process_group(backend="fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("sizes", "placements"), CASES, ids=str)
def test_local_shards_are_those_of_dtensor(sizes: tuple[int, ...], placements: list[Any]) -> None:
    axes = tuple(MeshAxis(f"a{place}", size) for place, size in enumerate(sizes))
    mesh = Mesh(axes)
    compared = 0
    for rank in range(math.prod(sizes)):
        with process_group(rank, mesh.size):
            torch_mesh = init_device_mesh("cpu", sizes)
            for shape in SHAPES:
                compared += 1
                logical = model.counter(shape)
                theirs: Any = distribute_tensor(
                    torch.from_numpy(logical), torch_mesh, placements, src_data_rank=None
                )
                ours = lower(Layout(mesh, steps_of(placements, 2)), shape).at(mesh.coordinate_of(rank))
                assert ours is not None
                np.testing.assert_array_equal(model.local_array(ours, logical), theirs.to_local().numpy())
                local_shape, offset = compute_local_shape_and_global_offset(shape, torch_mesh, placements)
                assert ours.shape == tuple(local_shape)
                if ours.pieces:
                    assert first_cell(ours) == tuple(offset)
    assert compared == len(SHAPES) * mesh.size


def first_cell(local_map: LocalMap) -> tuple[int, ...]:
    return local_map.pieces[0].box.offset


def test_right_to_left_is_the_order_reversed() -> None:
    # FSDP over TP, as DTensor writes it and as the two shards in the order in which they were applied.
    axes = Mesh((MeshAxis("a0", 2), MeshAxis("a1", 2)))
    strided = steps_of([STRIDED, S0], 2)
    one = lower(Layout(axes, strided), (10, 3))
    other = lower(Layout(axes, (Shard("a1", 0), Shard("a0", 0))), (10, 3))
    assert one.regions() == other.regions()
