"""One rank of a job that logs its steps, or recovers from a log, under DDP, FSDP2, or FSDP2 with tensor parallelism.

Arguments: the run, the parallelism (``one``, ``ddp``, ``fsdp``, ``fsdp-tp``), the step to end with, where the first
rank writes the whole state, and ``feedback`` for a compressor with error feedback and a value of each rank's own.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import ucpformat as ucp
from tests.processes import join, leave

WIDTH = 6


def made() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(5, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 2))


def spread(model: nn.Sequential, kind: str) -> nn.Module:
    """The model under a parallelism."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    world = dist.get_world_size()
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
        fully_shard(model, mesh=mesh)
    elif kind == "fsdp-tp":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
    return model


def whole(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach().clone()


class Cursor:
    """What each rank has of its own."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def state_dict(self) -> dict[str, int]:
        return {"rank": self.rank}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.rank = state["rank"]


def main(run: str, kind: str, stop: str, out: str, feedback: str = "") -> None:
    rank, _ = join()
    model = spread(made(), kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    compressor = ucp.TopK(0.3, error_feedback=True) if feedback else None
    cursor = Cursor(rank)
    state: dict[str, Any] = {"cursor": cursor} if feedback == "own" else {}
    recovery = ucp.recover(run, model, optimizer, state=state, compressor=compressor)
    residuals = dict(compressor.residuals or {}) if compressor else {}
    recovered = {name: whole(one) for name, one in residuals.items()}
    assert recovery.exactness == "bitwise"
    # Also of parameters of which this rank holds nothing, as the third of three does of a bias of two.
    assert {int(one["step"]) for one in optimizer.state.values()} <= {recovery.step}
    options: dict[str, Any] = {"batch": 2, "full_every": 4, "check_every": 1, "residuals_every": 3}
    with ucp.UpdateLog(
        run, model, optimizer, state=state, compressor=compressor, after=recovery, **options
    ) as log:
        for step in range(log.steps, int(stop)):
            optimizer.zero_grad()
            # All ranks see the same data, so that every world size trains alike, but for roundings of sums.
            data = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
            model(data).square().mean().backward()
            log.step()
        log.flush()
    tensors = {name: whole(one) for name, one in model.state_dict().items()}
    residuals = dict(compressor.residuals or {}) if compressor else {}
    found = {
        "state": tensors,
        "recovered": recovery.step,
        "checked": recovery.checked,
        "continuation": recovery.continuation,
        "residuals": {name: whole(one) for name, one in residuals.items()},
        "recovered_residuals": recovered,
    }
    if rank == 0:
        torch.save(found, out)
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
