"""Plain PyTorch: saves in the background, keeps what it should, resumes with one call.

    torchrun --nproc-per-node 2 examples/train_plain.py --folder out/plain --steps 60

Called again with more steps, on as many processes or on others, or by ``python`` alone, it goes on where it stopped.
``docs/guides/pytorch.md`` walks through it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import ucpformat as ucp

FEATURES = 32
CLASSES = 7
GLOBAL_BATCH = 24


class Data:
    """Batches without end: every rank draws the same ones and takes its slice, so that any number of ranks goes on."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)
        self.directions = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(2))

    def batch(self, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """Features ``(n, FEATURES)`` in float32 and classes ``(n,)`` in int64."""
        x = torch.randn(GLOBAL_BATCH, FEATURES, generator=self.generator)
        y = (x @ self.directions).argmax(1)
        return x.chunk(world)[rank], y.chunk(world)[rank]

    def state_dict(self) -> dict[str, Any]:
        """What makes the next batch."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.generator.set_state(state["generator"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier with plain PyTorch.")
    parser.add_argument("--folder", required=True, metavar="DIR", help="the run directory, or an fsspec URL")
    parser.add_argument("--steps", type=int, required=True, help="train until this step")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--losses", type=Path, metavar="FILE", help="write the losses here, one JSON object")
    parser.add_argument("--rendezvous", default="env://", metavar="URL", help="init_method of the group")
    chosen = parser.parse_args(arguments)

    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if world > 1:
        dist.init_process_group("gloo", init_method=chosen.rendezvous, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Linear(64, CLASSES))
    trained = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    data = Data()
    state = {"model": model, "optim": optimizer, "schedule": schedule, "data": data}

    losses: dict[int, float] = {}
    with ucp.CheckpointManager(
        chosen.folder, keep_last=2, keep_best=1, metric="loss", asynchronous=True
    ) as manager:
        manager.stop_on()  # SIGTERM: save, then leave
        step = manager.resume(state) or 0
        while step < chosen.steps:
            x, y = data.batch(rank, world)
            loss = functional.cross_entropy(trained(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            losses[step] = mean(loss, world)
            step += 1
            stopping = manager.stopping()
            if step % chosen.save_every == 0 or step == chosen.steps or stopping:
                manager.save(step, state, metrics={"loss": losses[step - 1]})
            if stopping:
                break
    if chosen.losses and rank == 0:
        chosen.losses.write_text(json.dumps(losses))
    if world > 1:
        dist.destroy_process_group()


def mean(loss: Tensor, world: int) -> float:
    """The mean over ranks, whose slices are equally large."""
    total = loss.detach().clone()
    if world > 1:
        dist.all_reduce(total)
    return total.item() / world


if __name__ == "__main__":
    main()
