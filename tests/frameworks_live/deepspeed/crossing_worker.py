"""Ranks of two jobs: ZeRO-3 by DeepSpeed, and FSDP2 x tensor parallelism by torch, which goes on where the first was.

``python -m tests.frameworks_live.deepspeed.crossing_worker zero|fsdp FOLDER`` under `tests.processes.launch`.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.processes import join, leave

STEPS, MORE = 4, 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.up = nn.Linear(16, 40)
        self.down = nn.Linear(40, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 32)

    def forward(self, ids: torch.Tensor) -> Any:
        hidden = self.embed(ids)
        return self.head(self.norm(hidden + self.down(torch.relu(self.up(hidden)))))


def groups(net: nn.Module) -> list[dict[str, Any]]:
    return [
        {"params": [item for item in net.parameters() if item.ndim > 1], "lr": 0.01, "weight_decay": 0.1},
        {"params": [item for item in net.parameters() if item.ndim == 1], "lr": 0.02, "weight_decay": 0.0},
    ]


def loss_of(model: Any, step: int) -> torch.Tensor:
    """The same data on all ranks: a run of any degree takes the same steps."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 32, (4, 6), generator=generator)
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), (ids * 5 + 1).remainder(32).flatten())


def zero(folder: Path) -> None:
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    torch.manual_seed(1)
    net = Net()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 3, "reduce_scatter": False},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1000,
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(groups(net)), config=config)
    losses = []
    for step in range(STEPS + MORE):
        if step == STEPS:
            engine.save_checkpoint(str(folder / "zero3"))
        loss = loss_of(engine, step)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    if dist.get_rank() == 0:
        torch.save(losses, folder / "zero-losses.pt")


def fsdp(folder: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import ucpformat

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(2)
    net = Net()
    parallelize_module(net, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(groups(net))
    ucpformat.load(folder / "zero3.ucp", {"model": net, "optim": optimizer}, strict=False)
    losses = []
    for step in range(STEPS, STEPS + MORE):
        loss = loss_of(net, step)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    if dist.get_rank() == 0:
        torch.save(losses, folder / "fsdp-losses.pt")


def main() -> None:
    warnings.simplefilter("ignore")
    join()
    {"zero": zero, "fsdp": fsdp}[sys.argv[1]](Path(sys.argv[2]))
    leave()


if __name__ == "__main__":
    main()
