"""Train the small GPT of `train_gpt.py` so that no step is ever lost, under any mix of FSDP2 and TP.

Each step is logged beside full checkpoints of the run, and each start goes on from the newest durable step, whatever
layout logged it. By hand, on one machine, and again after a `kill -9`::

    torchrun --nproc-per-node 4 examples/train_every_step.py --dp 2 --tp 2 --until 60 --into out/run
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from train_gpt import Training, leave, standard_library_text, start

import ucpformat as ucp


class Draws:
    """The generator that draws batches, as something with a state dict."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state."""
        return {"rng": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.generator.set_state(state["rng"])


def save(path: str, training: Training) -> None:
    """Save model and optimizer by themselves."""
    ucp.save(path, {"model": training.model, "optim": training.optimizer}, step=training.step)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small byte-level GPT, and log every step.")
    parser.add_argument("--dp", type=int, default=1, help="FSDP2 shards")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks")
    parser.add_argument("--until", type=int, required=True, metavar="STEP", help="stop after this many steps")
    parser.add_argument("--into", metavar="DIR", help="checkpoints and log, which a start goes on from")
    parser.add_argument("--full-every", type=int, default=25, metavar="N", help="steps between checkpoints")
    parser.add_argument("--recovered", metavar="CKPT", help="save what was recovered, and end")
    parser.add_argument("--save-at", type=int, metavar="STEP", help="write --save after this many steps")
    parser.add_argument("--save", metavar="CKPT", help="a checkpoint by itself")
    parser.add_argument("--losses", type=Path, metavar="FILE", help="a line of JSON for each step")
    parser.add_argument("--rendezvous", default="env://", metavar="URL", help="of the process group")
    arguments = parser.parse_args()

    training = Training(start(arguments.dp, arguments.tp, arguments.rendezvous))
    model, optimizer = training.model, training.optimizer
    log = None
    if arguments.into:
        state = {"schedule": training.scheduler, "draws": Draws(training.generator)}
        recovery = ucp.recover(arguments.into, model, optimizer, state=state)
        training.step = recovery.step
        if arguments.recovered:
            print(
                f"recovered step {recovery.step}, {recovery.exactness}, from step-{recovery.checkpoint_step}"
            )
            save(arguments.recovered, training)
            return
        log = ucp.UpdateLog(
            arguments.into,
            model,
            optimizer,
            state=state,
            after=recovery,
            batch=1,
            full_every=arguments.full_every,
        )
    text = standard_library_text()
    is_first = int(os.environ.get("RANK", "0")) == 0
    while training.step < arguments.until:
        loss = training.advance(text, optimizer.step if log is None else log.step)
        if arguments.losses and is_first:
            with arguments.losses.open("a") as lines:
                lines.write(json.dumps({"step": training.step - 1, "loss": loss}) + "\n")
        if arguments.save and training.step == arguments.save_at:
            save(arguments.save, training)
    if log is not None:
        log.close()
    if dist.is_initialized():
        leave()


if __name__ == "__main__":
    main()
