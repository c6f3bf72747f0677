"""One rank of a DeepSpeed job that trains a GPT-like model for one step in bf16, and saves: what is converted.

``python -m benchmarks.conversion.make FOLDER MILLIONS STAGE...`` under `tests.processes.launch`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.processes import join, leave

os.environ["DS_ACCELERATOR"] = "cpu"

WIDTH = 1024


class Block(torch.nn.Module):
    """Matrices of a transformer's block; how they are used does not matter here."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = torch.nn.Linear(WIDTH, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Use every matrix."""
        x = x + self.proj(self.qkv(self.norm(x))[..., :WIDTH])
        out: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return out


class Net(torch.nn.Module):
    """An embedding and blocks, ``millions`` of parameters."""

    def __init__(self, millions: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(32768, WIDTH)
        blocks = max(1, round((millions * 1e6 - 32768 * WIDTH) / (12 * WIDTH * WIDTH)))
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids to hidden states."""
        x: torch.Tensor = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return x


def main(folder: str, millions: str, *stages: str) -> None:
    """Train one step under each stage, and save."""
    import deepspeed

    rank, world = join()
    for stage in stages:
        torch.manual_seed(3)
        net = Net(int(millions))
        config: dict[str, Any] = {
            "train_batch_size": world,
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": int(stage), "reduce_scatter": False},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": True},
        }
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
        torch.manual_seed(rank)
        loss = engine(torch.randint(0, 32768, (1, 64))).float().square().mean()
        engine.backward(loss)
        engine.step()
        engine.save_checkpoint(str(Path(folder) / f"z{stage}"), tag="global_step1")
        del engine, optimizer, net
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
