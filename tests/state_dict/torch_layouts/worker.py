"""Six gloo ranks on which torch itself spreads marker tensors, each in several ways; run by `tests.processes.launch`.

A case is one way: what every rank really holds, and the layout that its live objects say. From one way to every other
way of the same tensor our plan must make, of what ranks hold, exactly what they hold there.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor._redistribute import redistribute_local_tensor

from tests.geometry.moves import moved
from tests.processes import join, leave
from ucpformat.geometry import Lowering, lower
from ucpformat.state_dict.tensors.local_tensors import TensorLayout
from ucpformat.state_dict.tensors.torch_fsdp import flat_parameters
from ucpformat.state_dict.tensors.torch_layouts import layout_of

SHAPES = [(12, 24), (7, 3), (5, 6), (1, 2)]
"""What divides and what does not: 7 rows over tp 2, then dp 3, is where split factors tell orders apart."""


@dataclass(frozen=True)
class Way:
    """One way to hold a tensor: its lowering, and the local arrays of all ranks that hold any."""

    name: str
    held: Lowering
    local: dict[int, np.ndarray[Any, Any]]


def marker(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(1, math.prod(shape) + 1, dtype=torch.float32).reshape(shape)


def divides(shape: tuple[int, ...]) -> bool:
    """Whether torch gathers a tensor of this shape however it is split; in others its own check of sizes fails."""
    return all(extent % 12 == 0 for extent in shape)


def gathered(name: str, held: TensorLayout, local: torch.Tensor) -> Way:
    """What all ranks say; they must agree on the layout."""
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, (held, local.detach().numpy().copy()))
    assert all(layout == held for layout, _ in said), name
    lowering = lower(held.layout, held.shape, place=held.place)
    arrays = {}
    for rank, (_, array) in enumerate(said):
        local_map = lowering.at(held.layout.mesh.coordinate_of(rank))
        assert local_map is not None
        # A rank without elements has them in any shape: FSDP2 says (0, 0) where tensor parallelism left (1, 0).
        assert local_map.shape == array.shape or local_map.size == array.size == 0, (name, rank, array.shape)
        arrays[rank] = array
    return Way(name, lowering, arrays)


def of_dtensor(name: str, tensor: Any) -> Way:
    return gathered(name, TensorLayout(layout_of(tensor), tuple(tensor.shape)), tensor.to_local())


def fsdp2(shape: tuple[int, ...], mesh: Any, name: str, *, dim: int | None) -> Way:
    """A weight under FSDP2, over tensor parallelism where ``dim`` says along which dim of the weight."""
    linear = nn.Linear(shape[1], shape[0], bias=False)
    with torch.no_grad():
        linear.weight.copy_(marker(shape))
    if dim is not None:
        local = distribute_tensor(linear.weight.detach(), mesh["tp"], [Shard(dim)])
        linear.weight = nn.Parameter(local)
    fully_shard(linear, mesh=mesh if dim is None else mesh["dp"])
    weight: Any = linear.weight
    if divides(shape):
        assert torch.equal(weight.full_tensor().detach(), marker(shape)), name
    return of_dtensor(name, weight)


def in_order(shape: tuple[int, ...], mesh: Any, dim: int, order: tuple[int, ...]) -> Way:
    """One dim split over both mesh dims in an order that the spec says outright; torch splits a replica so."""
    full = marker(shape)
    meta = TensorMeta(full.shape, full.stride(), full.dtype)
    replica = DTensorSpec(mesh, (Replicate(),) * 2, meta)
    spec = DTensorSpec(mesh, (Shard(dim),) * 2, meta, shard_order=(ShardOrderEntry(dim, order),))
    local = redistribute_local_tensor(full, replica, spec, use_graph_based_transform=True)
    tensor: Any = DTensor(local, spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return of_dtensor(f"{mesh.shape} dim {dim} in order {order}", tensor)


def dtensors(shape: tuple[int, ...]) -> list[Way]:
    full = marker(shape)
    ways = []
    for sizes in ((3, 2), (2, 3), (6,)):
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp")[: len(sizes)])
        some: list[list[Any]] = [
            [Shard(0)] * len(sizes),
            [Shard(-1)] * len(sizes),
            [Replicate()] * len(sizes),
        ]
        if len(sizes) == 2:
            some += [[Shard(1), Shard(0)], [Replicate(), Shard(0)], [Shard(1), Replicate()]]
            ways += [fsdp2(shape, mesh, f"fsdp2 {sizes} over tp{dim}", dim=dim) for dim in (0, 1)]
        # FSDP2 alone; with two dims of the mesh, hybrid.
        ways.append(fsdp2(shape, mesh, f"fsdp2 {sizes}", dim=None))
        for placements in some:
            found: Any = distribute_tensor(full, mesh, placements)
            ways.append(of_dtensor(f"{sizes} {placements}", found))
            if divides(shape):
                assert torch.equal(found.full_tensor(), full)
        if len(sizes) == 2:
            ways += [in_order(shape, mesh, dim, order) for dim in (0, 1) for order in ((0, 1), (1, 0))]
    return ways


def partial_sums() -> None:
    """Contributions of every rank, reduced by torch and by us, into shards over another mesh."""
    shape = (7, 3)
    mine = marker(shape) * (dist.get_rank() + 1)
    target = init_device_mesh("cpu", (3, 2), mesh_dim_names=("a", "b"))
    for sizes in ((2, 3), (6,)):
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp")[: len(sizes)])
        for op in ("sum", "avg", "max"):
            tensor: Any = DTensor.from_local(mine, mesh, [Partial(op)] * len(sizes), run_check=False)
            source = of_dtensor(f"partial {op} {sizes}", tensor)
            wanted: Any = distribute_tensor(tensor.full_tensor(), target, [Shard(0), Shard(1)])
            check(source, of_dtensor("wanted", wanted))
        mixed: Any = DTensor.from_local(
            mine[:, :1].contiguous(), mesh, [Partial("sum"), Shard(1)][: len(sizes)], run_check=False
        )
        if len(sizes) == 2:
            whole: Any = distribute_tensor(mixed.full_tensor(), target, [Shard(0), Shard(1)])
            check(of_dtensor("partial and shard", mixed), of_dtensor("wanted", whole))


class Net(nn.Module):
    """Parameters of lengths that no alignment divides, one without elements' worth of a block, and a tied one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 3)
        self.second = nn.Linear(3, 7, bias=False)
        self.third = nn.Linear(7, 3, bias=False)
        self.scale = nn.Parameter(torch.ones(1))
        self.tied = self.second.weight

    def marked(self) -> Net:
        with torch.no_grad():
            for place, parameter in enumerate(self.parameters()):
                parameter.copy_(marker(tuple(parameter.shape)) + 1000 * place)
        return self


def flat_parameters_of(rank: int) -> dict[str, list[Way]]:
    """FSDP1 over six ranks and as a hybrid over three, aligned and not, each with what a step made of the states."""
    grids = [
        (ShardingStrategy.FULL_SHARD, init_device_mesh("cpu", (6,), mesh_dim_names=("fsdp",))),
        (ShardingStrategy.FULL_SHARD, None),
        (ShardingStrategy.HYBRID_SHARD, init_device_mesh("cpu", (2, 3), mesh_dim_names=("hsdp", "fsdp"))),
        (ShardingStrategy.HYBRID_SHARD, init_device_mesh("cpu", (3, 2), mesh_dim_names=("hsdp", "fsdp"))),
    ]
    ways: dict[str, list[Way]] = {}
    for strategy, mesh in grids:
        for original in (False, True):
            for dtype in (torch.float32, torch.float64)[: 1 + original]:
                unit: Any = FullyShardedDataParallel(
                    Net().marked().to(dtype),
                    device_mesh=mesh,
                    sharding_strategy=strategy,
                    use_orig_params=original,
                    device_id=torch.device("cpu"),
                )
                check_metadata(unit, rank)
                for name, held in flat_parameters(unit).items():
                    name_of_way = f"fsdp1 {strategy} {original} {dtype}"
                    way = gathered(name_of_way, held, unit._handle.flat_param)
                    ways.setdefault(name, []).append(way)
    return ways


def check_metadata(unit: Any, rank: int) -> None:
    """The shard metadata that FSDP keeps says what of each parameter this rank has: so do our pieces."""
    theirs = unit._handle.shard_metadata()
    said = dict(zip(theirs.param_names, theirs.param_offsets, strict=True))
    for name, held in flat_parameters(unit).items():
        local_map = lower(held.layout, held.shape, place=held.place).at(held.layout.mesh.coordinate_of(rank))
        assert local_map is not None
        first, last = said.get(name, (0, -1))
        assert local_map.mapped == last - first + 1, name


def check(source: Way, target: Way) -> None:
    found = moved(source.held, source.local, target.held)
    # Of a buffer, only what this tensor has in it is ours.
    for region in target.held.regions():
        mine = np.zeros(region.local_map.size, bool)
        for piece in region.local_map.pieces:
            strides = tuple(stride * mine.itemsize for stride in piece.local.strides)
            np.lib.stride_tricks.as_strided(mine[piece.local.offset :], piece.box.shape, strides)[...] = True
        for rank in region.holders:
            theirs = target.local[rank].reshape(-1)
            np.testing.assert_array_equal(
                found[rank][mine], theirs[mine], f"{source.name} -> {target.name} on {rank}"
            )


def main() -> None:
    # What FSDP1 and functorch warn about their own futures is not our subject.
    warnings.simplefilter("ignore")
    rank, world = join()
    assert world == 6
    compared = 0
    for shape in SHAPES:
        ways = dtensors(shape)
        # Each rank looks at its share of the pairs.
        pairs = [(source, target) for source in ways for target in ways if source is not target]
        for source, target in pairs[rank::world]:
            check(source, target)
            compared += 1
    partial_sums()
    for ways in flat_parameters_of(rank).values():
        for source in ways:
            for target in ways[rank::world]:
                check(source, target)
                compared += 1
    assert compared > 500
    leave()


if __name__ == "__main__":
    main()
