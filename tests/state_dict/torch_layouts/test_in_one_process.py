"""What needs no other process: torch's objects under its fake process group, and boxes of objects that list them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor.placement_types import _MaskPartial, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.geometry.model import local_array
from tests.geometry.moves import moved
from tests.state_dict.torch_layouts.boxes import box_description, boxed_holdings
from ucpformat.errors import UcpError
from ucpformat.geometry import (
    BlockRule,
    Blocks,
    Flatten,
    Join,
    Layout,
    Lowering,
    Mesh,
    MeshAxis,
    lower,
    shard_order,
    sub_parameter_steps,
)
from ucpformat.geometry import (
    Partial as PartialStep,
)
from ucpformat.geometry import (
    Shard as ShardStep,
)
from ucpformat.geometry.vocabulary import DTensorShard
from ucpformat.state_dict.tensors.torch_fsdp import flat_parameters
from ucpformat.state_dict.tensors.torch_layouts import boxes_of, layout_of

MASKED: Any = _MaskPartial(offset_shape=torch.Size([4]))  # type: ignore[no-untyped-call]


@pytest.fixture
def eight() -> Iterator[Any]:
    dist.init_process_group(backend="fake", rank=0, world_size=8, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    finally:
        dist.destroy_process_group()


def made(mesh: Any, placements: list[Any]) -> Any:
    return DTensor.from_local(torch.zeros(2, 3), mesh, placements, run_check=False)


def test_placements_become_steps(eight: Any) -> None:
    assert layout_of(made(eight, [Replicate(), Replicate()])) == Layout(
        Mesh((MeshAxis("dp", 4), MeshAxis("tp", 2)))
    )
    assert layout_of(made(eight, [Partial("avg"), Shard(-1)])).steps == (
        PartialStep("dp", "mean"),
        ShardStep("tp", 1),
    )
    assert layout_of(made(eight, [_StridedShard(0, split_factor=2), Shard(0)])).steps == (
        ShardStep("tp", 0),
        ShardStep("dp", 0),
    )
    # A factor that is no size came of a view, and is a step of its own.
    assert layout_of(made(eight, [_StridedShard(0, split_factor=3), Shard(0)])).steps == (
        Blocks(0, BlockRule("ceil", 3)),
        ShardStep("dp", 0),
        Join(0),
        ShardStep("tp", 0),
    )


def test_a_mesh_has_torchs_names_and_ranks(eight: Any) -> None:
    part = eight["tp"]
    assert layout_of(made(part, [Shard(0)])).mesh == Mesh((MeshAxis("tp", 2),))
    unnamed = init_device_mesh("cpu", (2, 4))
    assert [axis.name for axis in layout_of(made(unnamed, [Shard(0), Shard(1)])).mesh.axes] == [
        "dim0",
        "dim1",
    ]
    columns = eight["dp"]
    assert layout_of(made(columns, [Shard(0)])).mesh == Mesh((MeshAxis("dp", 4),), (0, 2, 4, 6))


@pytest.mark.parametrize("placement", [Partial("min"), Partial("product"), MASKED])
def test_reductions_that_the_format_lacks_are_refused(eight: Any, placement: Any) -> None:
    with pytest.raises(UcpError, match="redistribute the tensor first") as refusal:
        layout_of(made(eight, [placement, Replicate()]))
    assert refusal.value.code == "UCP-E-LAYOUT"


@pytest.mark.parametrize("factors", [(a, b, c) for a in (1, 2, 3, 6) for b in (1, 2, 3) for c in (1, 2)])
def test_orders_are_those_that_torch_reads_from_split_factors(factors: tuple[int, int, int]) -> None:
    """``DTensorSpec`` decodes factors by itself: what it finds we find, and nothing where it finds nothing."""
    sizes = {"a": 2, "b": 3, "c": 2}
    dist.init_process_group(backend="fake", rank=0, world_size=12, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2, 3, 2))
        theirs = DTensorSpec._maybe_convert_StridedShard_to_shard_order(
            tuple(Shard(0) if factor == 1 else _StridedShard(0, split_factor=factor) for factor in factors),
            mesh,
        )
    finally:
        dist.destroy_process_group()
    ours = shard_order(
        [DTensorShard(axis, 0, factor) for axis, factor in zip("abc", factors, strict=True)], sizes, 1
    )
    assert ours == (None if theirs is None else tuple("abc"[axis] for axis in theirs[0].mesh_dims))


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("is_hybrid", [False, True])
def test_flat_parameters(eight: Any, *, original: bool, is_hybrid: bool) -> None:
    whole = init_device_mesh("cpu", (8,), mesh_dim_names=("fsdp",))
    net = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unit: Any = FullyShardedDataParallel(
            net,
            device_mesh=eight if is_hybrid else whole,
            sharding_strategy=ShardingStrategy.HYBRID_SHARD if is_hybrid else ShardingStrategy.FULL_SHARD,
            use_orig_params=original,
            device_id=torch.device("cpu"),
        )
    for name, held in flat_parameters(unit).items():
        local = lower(held.layout, held.shape, place=held.place).at(held.layout.mesh.coordinate_of(0))
        assert local is not None
        assert local.shape == tuple(unit._handle.flat_param.shape), name
    assert list(flat_parameters(unit)) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    unit._handle.flat_param._param_extensions = [object()]
    with pytest.raises(UcpError, match="tensor parallelism"):
        flat_parameters(unit)


def test_what_is_no_flat_parameter_is_refused(eight: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copied: Any = FullyShardedDataParallel(
            nn.Linear(2, 2), sharding_strategy=ShardingStrategy.NO_SHARD, device_id=torch.device("cpu")
        )
        groups: Any = FullyShardedDataParallel(
            nn.Linear(2, 2),
            process_group=(eight.get_group("tp"), eight.get_group("dp")),
            sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            device_id=torch.device("cpu"),
        )
        plain: Any = FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu"))
    for unit in (copied, groups):
        with pytest.raises(UcpError) as refusal:
            flat_parameters(unit)
        assert refusal.value.code == "UCP-E-LAYOUT"
    assert flat_parameters(plain)["weight"].layout.mesh == Mesh((MeshAxis("fsdp", 8),), tuple(range(8)))


@dataclass
class Listed:
    """A local tensor with the four attributes of torch's ``CheckpointableTensor``, which torch 2.13 lacks."""

    array: np.ndarray[Any, Any]
    global_shape: tuple[int, ...]
    global_offsets: tuple[tuple[int, ...], ...]
    local_offsets: tuple[tuple[int, ...], ...]
    local_sizes: tuple[tuple[int, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(int, self.array.shape))


def listed(lowering: Lowering, full: np.ndarray[Any, Any]) -> dict[int, Listed]:
    found = {}
    for coordinate in lowering.layout.mesh.coordinates():
        local = lowering.at(coordinate)
        assert local is not None
        said = box_description(local, lowering.shape)
        found[coordinate[0]] = Listed(
            local_array(local, full),
            said.global_shape,
            said.global_offsets,
            said.local_offsets,
            said.local_sizes,
        )
    return found


def fused(degree: int) -> Lowering:
    return lower(Layout(Mesh((MeshAxis("tp", degree),)), sub_parameter_steps("tp", 0, (8, 4, 4))), (16, 3))


def test_listed_boxes_change_their_degree() -> None:
    full = np.arange(48).reshape(16, 3)
    before, after = listed(fused(2), full), listed(fused(4), full)
    source, target = boxed_holdings(before), boxed_holdings(after)
    assert source.maps == tuple((rank, fused(2).at((rank,))) for rank in range(2))
    found = moved(source, {rank: tensor.array for rank, tensor in before.items()}, target)
    for rank, tensor in after.items():
        np.testing.assert_array_equal(found[rank], tensor.array.reshape(-1))


def test_boxes_that_do_not_go_together_are_refused() -> None:
    array = np.zeros((4, 2))
    good = Listed(array, (4, 2), ((0, 0),), ((),), ((4, 2),))
    shape, local_map = boxes_of(good)
    assert (shape, local_map.mapped) == ((4, 2), 8)
    with pytest.raises(UcpError, match="one entry for each box"):
        boxes_of(Listed(array, (4, 2), ((0, 0),), (), ((4, 2),)))
    twice = Listed(array, (4, 2), ((0, 0), (1, 0)), ((0, 0), (2, 0)), ((2, 2), (2, 2)))
    with pytest.raises(UcpError) as refusal:
        boxes_of(twice)
    assert refusal.value.code == "UCP-E-COVER"
    with pytest.raises(UcpError, match="different global shapes"):
        boxed_holdings({0: good, 1: Listed(array, (5, 2), ((0, 0),), ((),), ((4, 2),))})
    flat = lower(Layout(Mesh((MeshAxis("dp", 2),)), (Flatten(), ShardStep("dp", 0))), (5, 3)).at((0,))
    assert flat is not None
    with pytest.raises(UcpError, match="no box of the local tensor"):
        box_description(flat, (5, 3))
