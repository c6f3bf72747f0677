"""One rank of four: stock DCP saves and loads on this format, under parallelism, with strided shards, in background."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import ucpformat
from tests.conversion.training_jobs import differences, make_job
from tests.processes import join, leave
from ucpformat.geometry import extract, lower
from ucpformat.integrations.torch_dcp import (
    UcpLoadPlanner,
    UcpSavePlanner,
    UcpStorageReader,
    UcpStorageWriter,
)
from ucpformat.state_dict.tensors.torch_layouts import layout_of

JOBS = ["fsdp_tp", "hsdp", "ep"]

Saver = Callable[[dict[str, Any], Path], None]


def check(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def save_dcp(state: dict[str, Any], path: Path) -> None:
    save(state, storage_writer=UcpStorageWriter(path, chunk_bytes=1024))


def save_in_thread(state: dict[str, Any], path: Path) -> None:
    found: Any = async_save(state, storage_writer=UcpStorageWriter(path))
    getattr(found, "upload_completion", found).result()


def save_in_process(state: dict[str, Any], path: Path) -> None:
    found: Any = async_save(
        state,
        storage_writer=UcpStorageWriter(path),
        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
    )
    getattr(found, "upload_completion", found).result()


def parallelism(root: Path) -> None:
    """Every job saves by DCP; DCP and the native way load it into the next job."""
    for number, (source, target) in enumerate(zip(JOBS, [*JOBS[1:], JOBS[0]], strict=True)):
        made, other = make_job(source, number), make_job(target, 50 + number)
        expected = made.whole()
        path = root / f"{source}.ucp"
        save_dcp(made.state, path)
        load(other.state, storage_reader=UcpStorageReader(path))
        check(not differences(expected, other.whole()), f"{source} into {target} by DCP")
        again = make_job(target, 70 + number)
        ucpformat.load(path, again.state)
        check(not differences(expected, again.whole()), f"{source} into {target} natively")
        native = root / f"{source}-native.ucp"
        ucpformat.save(native, made.state)
        fresh = make_job(target, 90 + number)
        load(fresh.state, storage_reader=UcpStorageReader(native))
        check(not differences(expected, fresh.whole()), f"{source}, saved natively, into {target} by DCP")


def background(root: Path, savers: dict[str, Saver]) -> None:
    """What `async_save` writes, in a thread or a process, is what was there when it was called."""
    for name, saver in savers.items():
        made, other = make_job("fsdp_tp", 1), make_job("hsdp", 2)
        expected = made.whole()
        saver(made.state, root / f"{name}.ucp")
        load(other.state, storage_reader=UcpStorageReader(root / f"{name}.ucp"))
        check(not differences(expected, other.whole()), name)


def local_of(tensor: DTensor, full: torch.Tensor) -> torch.Tensor:
    """What this rank has of ``full`` by the layout of a DTensor."""
    lowering = lower(layout_of(tensor), tuple(full.shape))
    local_map = lowering.at(lowering.layout.mesh.coordinate_of(dist.get_rank()))
    assert local_map is not None
    local = torch.zeros(local_map.shape)
    flat, whole = local.view(-1), full.reshape(-1)
    for move in extract(local_map, lowering.view):
        flat.as_strided(move.shape, move.target.strides, move.target.offset).copy_(
            whole.as_strided(move.shape, move.source.strides, move.source.offset)
        )
    return local


def strided(full: torch.Tensor, mesh: Any, placements: list[Placement]) -> DTensor:
    """A DTensor of ``full`` whose locals are those of its layout; torch itself says that they are right."""
    empty = DTensor.from_local(
        torch.empty(0), mesh, placements, run_check=False, shape=full.shape, stride=full.stride()
    )
    made = DTensor.from_local(
        local_of(empty, full), mesh, placements, run_check=False, shape=full.shape, stride=full.stride()
    )
    check(torch.equal(made.full_tensor(), full), f"torch sees another tensor under {placements}")
    return made


def strided_shards(root: Path) -> None:
    """Strided shards on every axis, of every dim, with factors that torch cannot store."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    cases: dict[str, list[Placement]] = {
        "left": [_StridedShard(0, split_factor=2), Replicate()],
        "right": [Replicate(), _StridedShard(1, split_factor=3)],
        "usual": [_StridedShard(0, split_factor=2), Shard(0)],
        "behind": [Shard(0), _StridedShard(0, split_factor=2)],
        "both": [_StridedShard(0, split_factor=2), _StridedShard(1, split_factor=2)],
        "mixed": [_StridedShard(1, split_factor=4), Shard(0)],
    }
    full = torch.arange(8 * 12, dtype=torch.float32).reshape(8, 12) + 1
    state: dict[str, Any] = {
        name: strided(full * (1 + number), mesh, placements)
        for number, (name, placements) in enumerate(cases.items())
    }
    state["plain"] = torch.arange(3)
    save(state, storage_writer=UcpStorageWriter(root / "s.ucp"), planner=UcpSavePlanner())
    with ucpformat.open(root / "s.ucp") as checkpoint:
        for number, name in enumerate(cases):
            check(torch.equal(torch.from_numpy(checkpoint[name]["value"].read()), full * (1 + number)), name)
    names = list(cases)
    into: dict[str, Any] = {
        name: strided(torch.zeros_like(full), mesh, cases[names[number - 1]])
        for number, name in enumerate(names)
    }
    into["plain"] = torch.zeros(3, dtype=torch.int64)
    load(into, storage_reader=UcpStorageReader(root / "s.ucp"), planner=UcpLoadPlanner())
    for number, name in enumerate(names):
        check(torch.equal(into[name].full_tensor(), full * (1 + number)), f"{name} loaded otherwise")
    check(torch.equal(into["plain"], state["plain"]), "plain")
    ucpformat.save(root / "n.ucp", state)
    for name in names:
        into[name].to_local().zero_()
    ucpformat.load(root / "n.ucp", into)
    for number, name in enumerate(names):
        check(torch.equal(into[name].full_tensor(), full * (1 + number)), f"{name} loaded natively")


def refusals(root: Path) -> None:
    """All ranks hear of a failure, and nothing is left that looks like a checkpoint."""
    broken = {"w": torch.ones(2), "bad": object()} if dist.get_rank() == 2 else {"w": torch.ones(2)}
    for path in (root / "r.ucp", root / "r.ucp"):
        try:
            save(dict(broken), storage_writer=UcpStorageWriter(path))
        except CheckpointException:
            pass
        else:
            raise AssertionError("an object that is not plain was saved")
        dist.barrier()
        check(not (path / "ucp.json").exists(), "a root document is there")
    part = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        state = {"w": torch.full((3,), 5.0)}
        ucpformat.save(root / "g.ucp", state, group=part)
        state["w"].zero_()
        ucpformat.load(root / "g.ucp", state, group=part)
        check(state["w"].tolist() == [5.0] * 3, "a part of the ranks")


if __name__ == "__main__":
    join()
    place = Path(sys.argv[1])
    parallelism(place)
    background(place, {"thread": save_in_thread})
    if os.environ.get("UCP_MATRIX") == "full":  # it starts as many processes again
        background(place, {"process": save_in_process})
    strided_shards(place)
    refusals(place)
    leave()
