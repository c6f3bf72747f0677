"""One rank of a gloo job that saves; one of the ranks is killed when it is about to touch a file or the group."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor
from torch.distributed.device_mesh import init_device_mesh

import ucpformat as ucp
import ucpformat.state_dict.tensors.device_copier
import ucpformat.state_dict.tensors.torch_layouts
from tests.processes import die_at

FAILED = 3
UNREGISTERED = 4


def state(number: int) -> dict[str, Any]:
    """DTensors that a mesh shards, and what is the same on all ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(700 * 3, dtype=torch.float32).reshape(700, 3) + number
    return {
        "model": {
            "w": torch.distributed.tensor.distribute_tensor(
                whole, mesh, [torch.distributed.tensor.Shard(0)], src_data_rank=None
            ),
            "norm": torch.full((900,), float(number)),
        },
        "number": number,
    }


CALLS = (
    (os, ("open", "pwritev", "fsync", "link", "unlink", "mkdir", "close")),
    (dist, ("all_gather", "gather", "broadcast")),
)


def work(directory: Path, task: dict[str, Any]) -> int:
    """Save; the status to end with."""
    # Gloo notices deaths at once where groups are made already; this is for what it does not notice.
    dist.init_process_group(
        "gloo",
        init_method=os.environ["UCP_RENDEZVOUS"],
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=100),
    )
    content = state(task["number"])
    try:
        with ucp.CheckpointManager(directory, asynchronous=task["asynchronous"]) as manager:
            if dist.get_rank() == task["victim"]:
                die_at(task["point"], CALLS)
            manager.save(task["number"], content, chunk_bytes=1024)
            for tensor in (content["model"]["w"].to_local(), content["model"]["norm"]):
                tensor.fill_(-1)
            manager.wait()
    except BaseException as failure:
        print(f"{type(failure).__name__}: {failure}")
        return FAILED if isinstance(failure, ucp.UcpError) else UNREGISTERED
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    # The rank is a process of its own again: `launch` takes the death of one of its own for a failure of the test.
    child = os.fork()
    if child == 0:
        ended = FAILED
        try:
            ended = work(Path(sys.argv[1]), json.loads(sys.argv[2]))
        finally:
            sys.stdout.flush()
            os._exit(ended)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    number = json.loads(sys.argv[2])["number"]
    Path(sys.argv[1], f"ended-{number}-{os.environ['RANK']}").write_text(str(status))
    os._exit(0)
