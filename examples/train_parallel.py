"""A loop as torchtitan has it: FSDP2 over tensor parallelism, saved in the background, resumed on any other mesh.

    torchrun --nproc-per-node 4 examples/train_parallel.py --folder out/parallel --dp 2 --tp 2 --steps 20
    torchrun --nproc-per-node 2 examples/train_parallel.py --folder out/parallel --dp 2 --steps 40
    python examples/train_parallel.py --folder out/parallel --steps 60

Model and parallelism are those of ``train_gpt.py``. ``docs/guides/torchtitan.md`` walks through it.
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
from train_gpt import Training, leave, standard_library_text, start

import ucpformat as ucp


class TrainState:
    """What is no tensor of the model: the step, and where the data generator stands; alike on all ranks."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def state_dict(self) -> dict[str, Any]:
        """The step and the generator's state, a uint8 tensor."""
        return {"step": self.training.step, "data": self.training.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.training.step = state["step"]
        self.training.generator.set_state(state["data"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT under FSDP2 x TP; save and resume.")
    parser.add_argument("--folder", required=True, metavar="DIR", help="the run directory, or an fsspec URL")
    parser.add_argument("--dp", type=int, default=1, help="FSDP2 shards")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks")
    parser.add_argument("--steps", type=int, required=True, help="train until this step")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--losses", type=Path, metavar="FILE", help="write the losses here, one JSON object")
    parser.add_argument("--rendezvous", default="env://", metavar="URL", help="init_method of the group")
    chosen = parser.parse_args(arguments)

    training = Training(start(chosen.dp, chosen.tp, chosen.rendezvous))
    state = {
        "model": training.model,
        "optim": training.optimizer,
        "schedule": training.scheduler,
        "train": TrainState(training),
    }
    text = standard_library_text()
    losses: dict[int, float] = {}
    with ucp.CheckpointManager(chosen.folder, keep_last=2, keep_every=1000, asynchronous=True) as manager:
        manager.resume(state)
        while training.step < chosen.steps:
            loss = training.advance(text)
            losses[training.step - 1] = loss
            if training.step % chosen.save_every == 0 or training.step == chosen.steps:
                manager.save(training.step, state, metrics={"loss": loss})
    if chosen.losses and int(os.environ.get("RANK", "0")) == 0:
        chosen.losses.write_text(json.dumps(losses))
    if dist.is_initialized():
        leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
