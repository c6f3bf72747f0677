"""One rank of eight: what torch itself contradicts, FSDP2 over tensor parallelism of extents that do not divide."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # by FSDP2, when it is applied
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

import ucpformat
from tests.integrations.torch_dcp.worker import check, local_of
from tests.processes import join, leave
from ucpformat.integrations.torch_dcp import (
    UcpLoadPlanner,
    UcpSavePlanner,
    UcpStorageReader,
    UcpStorageWriter,
)

ROWS = 9  # over tp 2: 5 and 4; those over dp 4: 2, 2, 1, 0 and 1, 1, 1, 1


def everywhere(condition: bool) -> bool:
    """Whether it holds on all ranks."""
    found = torch.tensor(int(condition))
    dist.all_reduce(found, op=dist.ReduceOp.MIN)
    return bool(found.item())


def job(seed: int) -> tuple[dict[str, Any], torch.Tensor]:
    """A divided state dict, and the weight as it was before."""
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, ROWS, bias=False))
    whole = net.state_dict()["0.weight"].detach().clone()
    parallelize_module(net, mesh["tp"], {"0": ColwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    state: dict[str, Any] = dict(net.state_dict())
    check(everywhere(torch.equal(state["0.weight"].full_tensor(), whole)), "torch gathers another tensor")
    return state, whole


def came_back(loader: Callable[[dict[str, Any]], object], whole: torch.Tensor) -> bool:
    state, _ = job(1)
    loader(state)
    return everywhere(torch.equal(state["0.weight"].full_tensor(), whole))


def refused(step: Callable[[], object]) -> bool:
    try:
        step()
    except (CheckpointException, ucpformat.UcpError):
        return True
    return False


def uneven(root: Path) -> None:
    state, whole = job(0)
    save(state, storage_writer=FileSystemWriter(str(root / "stock.dcp")))
    check(
        not came_back(
            lambda into: load(into, storage_reader=FileSystemReader(str(root / "stock.dcp"))), whole
        ),
        "DCP by itself has learnt to store this: say so in docs/torch.md",
    )
    stock = UcpStorageWriter(root / "stock.ucp")
    check(
        everywhere(refused(lambda: save(state, storage_writer=stock))), "the stock planner's boxes were taken"
    )
    dist.barrier()
    check(not (root / "stock.ucp" / "ucp.json").exists(), "a root document is there")

    save(state, storage_writer=UcpStorageWriter(root / "ours.ucp"), planner=UcpSavePlanner())
    ucpformat.save(root / "native.ucp", state)
    for name in ("ours", "native"):
        with ucpformat.open(root / f"{name}.ucp") as checkpoint:
            check(
                torch.equal(torch.from_numpy(checkpoint["0.weight"]["value"].read()), whole),
                f"{name}: stored",
            )
        check(came_back(partial(ucpformat.load, root / f"{name}.ucp"), whole), f"{name}: natively")
        by_planner = partial(
            load, storage_reader=UcpStorageReader(root / f"{name}.ucp"), planner=UcpLoadPlanner()
        )
        check(came_back(by_planner, whole), f"{name}: by our planner")
    into, _ = job(2)
    again = UcpStorageReader(root / "ours.ucp")
    check(
        everywhere(refused(lambda: load(into, storage_reader=again))), "the stock planner's boxes were read"
    )


def twice_strided() -> None:
    """Two strided shards of one dim: torch distributes them as their layout says, and gathers something else."""
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("a", "b", "c"))
    full = torch.arange(16, dtype=torch.float32) + 1
    gathered = []
    for factors in ((2, 2), (4, 2), (4, 4)):
        placements: list[Placement] = [_StridedShard(0, split_factor=one) for one in factors]
        for divided in ([*placements, Replicate()], [Replicate(), *placements]):
            made: DTensor = distribute_tensor(full, mesh, divided)
            check(torch.equal(made.to_local(), local_of(made, full)), f"{divided} lies otherwise")
            gathered.append(everywhere(torch.equal(made.full_tensor(), full)))
    check(not any(gathered), "torch has learnt to gather these: say so in docs/torch.md")
    usual = distribute_tensor(full, mesh, [_StridedShard(0, split_factor=2), Shard(0), Replicate()])
    check(everywhere(torch.equal(usual.full_tensor(), full)), "one strided shard")


if __name__ == "__main__":
    join()
    warnings.simplefilter("ignore")
    uneven(Path(sys.argv[1]))
    twice_strided()
    leave()
