"""Ranks of FSDP2: they save by this package and by stock DCP, and load what the other number of ranks saved.

``launch("tests.versions.fsdp_worker", [FOLDER, "save" or "load"], world)``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ucpformat as ucp
from tests.processes import join, leave

dcp: Any = checkpoint


def state(world: int) -> dict[str, Any]:
    """A net of 7 x 5 and 3 x 7 over ``world`` ranks, and its optimizer after a step."""
    torch.manual_seed(3)
    net: Any = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    for layer in net:
        fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))
    fully_shard(net, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for parameter in net.parameters():  # no pass forward: FSDP2 of torch 2.6 gathers on a GPU alone
        parameter.grad = parameter.detach() * 2
    optimizer.step()
    model, optim = get_state_dict(net, optimizer)
    return {"model": model, "optim": optim}


def full(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """All tensors, whole, by dotted name."""
    found = {}
    for name, value in state["model"].items():
        found[f"model.{name}"] = value.full_tensor()
    for name, members in state["optim"]["state"].items():
        found |= {f"{name}.{slot}": value.full_tensor() for slot, value in members.items() if slot != "step"}
    return found


def main() -> None:
    rank, world = join()
    folder, what = Path(sys.argv[1]), sys.argv[2]
    held = state(world)
    if what == "save":
        expected = full(held)
        ucp.save(folder / "a.ucp", held)
        dcp.save(held, checkpoint_id=folder / "a.dcp")
        if rank == 0:
            torch.save(expected, folder / "expected.pt")
    else:
        for name in ("a.ucp", "b.ucp"):
            for tensor in held["model"].values():
                tensor.to_local().zero_()
            ucp.load(folder / name, held)
            expected = torch.load(folder / "expected.pt", weights_only=True)
            for name, whole in full(held).items():
                assert torch.equal(whole, expected[name]), name
    leave()


if __name__ == "__main__":
    main()
