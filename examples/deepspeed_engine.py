"""A DeepSpeed engine with universal checkpoints: saves, and goes on from what it finds, on any number of processes.

``deepspeed examples/deepspeed_engine.py RUN``, or torchrun; docs/guides/deepspeed.md explains it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

import ucpformat as ucp
from ucpformat.integrations.deepspeed import load_state, save_state

BATCH = 8


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step: the same on any number of processes."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 16, generator=generator)
    return x, x.cumsum(1).tanh()


def main(run: Path, steps: int, every: int, stage: int, bits: int) -> dict[int, float]:
    deepspeed.init_distributed(dist_backend="gloo" if not torch.cuda.is_available() else "nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
    kind = {16: torch.bfloat16, 32: torch.float32}[bits]
    config = {
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": BATCH // world,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 12, "warmup_max_lr": 0.01}},
        **({"bf16": {"enabled": True}} if bits == 16 else {}),
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    losses: dict[int, float] = {}
    with ucp.CheckpointManager(run, keep_last=2) as manager:
        begin = load_state(engine, manager) or 0
        for step in range(begin, steps):
            x, y = (part[rank::world].to(engine.device, kind) for part in batch(step))
            loss = nn.functional.mse_loss(engine(x), y)
            engine.backward(loss)
            engine.step()
            mean = loss.detach().float()
            dist.all_reduce(mean)
            losses[step] = mean.item() / world
            if (step + 1) % every == 0:
                save_state(engine, manager, step + 1)
    engine.destroy()
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--stage", type=int, default=1, choices=(0, 1, 2))
    parser.add_argument("--bits", type=int, default=32, choices=(16, 32))
    parser.add_argument("--local_rank", type=int, default=0, help="given by the deepspeed launcher, not used")
    given = parser.parse_args()
    print(json.dumps(main(given.run, given.steps, given.every, given.stage, given.bits)))
