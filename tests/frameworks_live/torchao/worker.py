"""One rank of two: AdamW8bit of torchao over FSDP2, saved and loaded, and loaded by a single process."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchao.optim import AdamW8bit

import ucpformat
from tests.processes import join, leave
from ucpformat.integrations.torchao import block_layouts


def job(seed: int, divide: bool) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    if divide:
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = AdamW8bit(model.parameters(), lr=0.01)
    for step in range(3):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    return {"model": model, "optim": optimizer}


def states(made: dict[str, Any]) -> dict[str, torch.Tensor]:
    found = {}
    state: Any = get_optimizer_state_dict(made["model"], made["optim"])["state"]
    for name, slots in state.items():
        for slot, value in slots.items():
            local = value.to_local() if hasattr(value, "to_local") else value
            for part in ("codes", "scale", "qmap") if hasattr(local, "codes") else ():
                found[f"{name}.{slot}.{part}"] = getattr(local, part).clone()
    return found


if __name__ == "__main__":
    rank, _ = join()
    warnings.simplefilter("ignore")
    torch.compiler.set_stance("force_eager")
    path = Path(sys.argv[1], "s.ucp")
    made, other = job(0, True), job(1, True)
    expected = states(made)
    if not expected:
        raise AssertionError("no state has few bits")
    ucpformat.save(path, made, layouts=block_layouts(made))
    ucpformat.load(path, other, layouts=block_layouts(other))
    found = states(other)
    if any(not torch.equal(expected[name], found[name]) for name in expected):
        raise AssertionError("states differ")
    single = job(2, False)
    ucpformat.load(path, single, layouts=block_layouts(single))
    for name, whole in states(single).items():
        parts = [torch.empty_like(expected[name]) for _ in range(2)]
        dist.all_gather(parts, expected[name])
        if not torch.equal(whole, parts[0] if name.endswith("qmap") else torch.cat(parts)):
            raise AssertionError(f"{name} differs in a single process")
    leave()
