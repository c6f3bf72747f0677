"""Four gloo ranks that send one another parts of tensors; run by `tests.processes.launch`."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, zeros
from torch.distributed.tensor.placement_types import Placement

import ucpformat
from tests.processes import join, leave
from ucpformat import Compressor, Flatten, Layout, Mesh, MeshAxis, TensorLayout
from ucpformat.geometry import BufferPlace, Concat
from ucpformat.geometry import Shard as ShardStep

SHAPES = {"a": (7, 6), "b": (8, 3), "c": (5,)}


def marker(name: str, kind: torch.dtype) -> torch.Tensor:
    shape = SHAPES[name]
    return (torch.arange(torch.Size(shape).numel()) % 50 + ord(name)).to(kind).reshape(shape)


def spread(mesh: DeviceMesh, *placements: Placement, kind: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    return {name: distribute_tensor(marker(name, kind), mesh, placements) for name in SHAPES}


def empty(mesh: DeviceMesh, *placements: Placement, kind: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    return {
        name: zeros(shape, dtype=kind, device_mesh=mesh, placements=placements)
        for name, shape in SHAPES.items()
    }


def check(state: dict[str, Any], kind: torch.dtype = torch.bfloat16) -> None:
    for name in SHAPES:
        found = state[name]
        whole = found.full_tensor() if isinstance(found, DTensor) else found
        assert torch.equal(whole, marker(name, kind)), (name, whole)


def placements_speak() -> None:
    line, grid = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    ways: list[tuple[DeviceMesh, tuple[Placement, ...]]] = [
        (line, (Shard(0),)),
        (line, (Replicate(),)),
        (grid, (Replicate(), Shard(0))),
        (grid, (Shard(0), Shard(0))),
    ]
    for source in ways:
        for target in ways:
            into = empty(target[0], *target[1])
            assert ucpformat.redistribute(spread(source[0], *source[1]), into=into, message_bytes=16) is into
            check(into)


def pending_sums_are_made() -> None:
    """As torch makes them, of numbers that no order of summation rounds."""
    line = init_device_mesh("cpu", (4,))
    state = {
        name: DTensor.from_local(marker(name, torch.float32) * (dist.get_rank() + 1), line, (Partial(),))
        for name in SHAPES
    }
    into = empty(line, Shard(0), kind=torch.float32)
    ucpformat.redistribute(state, into=into)
    for name in SHAPES:
        assert torch.equal(into[name].full_tensor(), state[name].full_tensor())


def a_trainer_feeds_a_server() -> None:
    """FSDP2 on two ranks, plain tensors on the other two; no rank is on both sides."""
    rank = dist.get_rank()
    halves = [DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])]
    torch.manual_seed(3)
    model = nn.Linear(6, 5)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    if rank < 2:
        fully_shard(model, mesh=halves[0])
    state = model.state_dict() if rank < 2 else None
    into = {name: torch.zeros_like(value) for name, value in expected.items()} if rank > 1 else {}
    reports: list[Any] = []
    ucpformat.redistribute(state, into=into, report=reports.append)
    for name, value in into.items():
        assert torch.equal(value, expected[name])
    nbytes = sum(value.nbytes for value in expected.values())

    assert reports[0].received == (nbytes if rank > 1 else 0)


def a_subgroup_moves_into_flat_buffers() -> None:
    """Ranks 1 and 3 alone, into ZeRO's flat buffer, which is made."""
    group = dist.new_group([1, 3])
    if dist.get_rank() in (1, 3):
        mesh = Mesh((MeshAxis("dp", 2),), (3, 1))
        flat = Layout(mesh, (Flatten(), Concat("g"), ShardStep("dp", 0, "even")))
        places = {"a": 0, "b": 42}
        found = ucpformat.redistribute(
            {"n": 5, **{name: marker(name, torch.float16) for name in places}},
            target_layouts={
                name: TensorLayout(flat, SHAPES[name], BufferPlace((first,), (70,)))
                for name, first in places.items()
            },
            group=group,
        )
        assert found["n"] == 5
        assert found["a"] is found["b"]
        buffer = torch.cat([*(marker(name, torch.float16).reshape(-1) for name in places), torch.zeros(4)])
        position = 0 if dist.get_rank() == 3 else 35
        assert torch.equal(found["a"], buffer[position : position + 35].to(torch.float16))
    dist.barrier()


def copies_that_differ_are_one_ranks() -> None:
    """A buffer of each rank's own, as DistributedDataParallel has them, and a replicated DTensor that drifted."""
    rank = dist.get_rank()
    line = init_device_mesh("cpu", (4,))
    mean = marker("a", torch.float32) + rank
    into = {"mean": zeros(SHAPES["a"], dtype=torch.float32, device_mesh=line, placements=(Shard(0),))}
    ucpformat.redistribute({"mean": mean}, into=into)
    assert torch.equal(into["mean"].full_tensor(), marker("a", torch.float32))
    drifted = {"w": DTensor.from_local(mean, line, (Replicate(),))}
    for state in ({"mean": mean}, drifted):
        wanted = {name: torch.zeros_like(mean) for name in state}
        with pytest.raises(ucpformat.UcpError, match="ranks 0 and 1 hold different copies;") as caught:
            ucpformat.redistribute(state, into=wanted, replicas="check")
        assert (caught.value.code, caught.value.at) == ("UCP-E-MISMATCH", *state)


def chunks_of_several_writers(directory: str) -> None:
    """In storage plain, and compressed, also in the background, over rows and columns that cut every chunk."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    zstd = Compressor("zstd", {"level": 3, "checksum": False})
    for number, placements in enumerate(
        [(Shard(0), Shard(0)), (Shard(0), Replicate()), (Replicate(), Shard(0))]
    ):
        state = spread(grid, *placements, kind=torch.float32)
        state["square"] = distribute_tensor(
            torch.arange(64.0 * 64).reshape(64, 64), grid, (Shard(1), Replicate())
        )
        path = f"{directory}/{number}.ucp"
        if number == 0:
            with ucpformat.AsyncSaver() as saver:
                saver.save(path, state, storage="plain", chunk_bytes=1024).wait()
        else:
            compressor = zstd if number == 2 else None
            ucpformat.save(path, state, storage="plain", chunk_bytes=1024, compressor=compressor)
        into = empty(grid, Replicate(), Shard(0), kind=torch.float32)
        into["square"] = torch.zeros(64, 64)
        ucpformat.load(path, into, read_once=True)
        check(into, torch.float32)
        assert torch.equal(into["square"], torch.arange(64.0 * 64).reshape(64, 64))
        assert list(ucpformat.validate(path)) == []


if __name__ == "__main__":
    join()
    chunks_of_several_writers(sys.argv[1])
    placements_speak()
    pending_sums_are_made()
    a_trainer_feeds_a_server()
    a_subgroup_moves_into_flat_buffers()
    copies_that_differ_are_one_ranks()
    leave()
