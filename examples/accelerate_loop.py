"""Hugging Face Accelerate: a loop that saves, and goes on from what it finds, on any number of processes.

``torchrun --nproc-per-node 2 examples/accelerate_loop.py RUN --steps 40``; docs/guides/accelerate.md explains it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn

import ucpformat as ucp
from ucpformat.integrations.accelerate import load_state, save_state

BATCH = 8


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step: the same on any number of processes."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 16, generator=generator)
    return x, x.cumsum(1).tanh()


def main(run: Path, steps: int, every: int) -> dict[int, float]:
    # split_batches: one step of the schedule is one step of training, however many processes there are.
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    rank, world = accelerator.process_index, accelerator.num_processes
    losses: dict[int, float] = {}
    with ucp.CheckpointManager(run, keep_last=2) as manager:
        begin = load_state(accelerator, manager) or 0
        for step in range(begin, steps):
            x, y = (part[rank::world] for part in batch(step))
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses[step] = accelerator.reduce(loss.detach(), "mean").item()
            if (step + 1) % every == 0:
                save_state(accelerator, manager, step + 1)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument(
        "--losses", type=Path, help="append losses by step, as JSON lines, on the first process"
    )
    arguments = parser.parse_args()
    found = main(arguments.run, arguments.steps, arguments.every)
    if arguments.losses is not None and Accelerator(cpu=True).is_main_process:
        with arguments.losses.open("a") as sink:
            sink.writelines(json.dumps([step, loss]) + "\n" for step, loss in found.items())
    if dist.is_initialized():
        # Threads of gloo that let go of a tensor while the interpreter ends abort it, now and then (torch's AsyncWork).
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)
