"""Hugging Face's Trainer with universal checkpoints: saves, and goes on from what it finds, on any number of processes.

``torchrun --nproc-per-node 2 examples/hugging_face_trainer.py RUN``; docs/guides/trainer.md explains it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import TrainerCallback, TrainingArguments

from ucpformat.integrations.hugging_face_trainer import UcpTrainer

BATCH = 8


class Model(nn.Module):
    """What the Trainer takes: a module that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss of a batch."""
        return {"loss": nn.functional.mse_loss(self.net(x), labels)}


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Five batches an epoch."""

    def __len__(self) -> int:
        return 5 * BATCH

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        x = torch.randn(16, generator=torch.Generator().manual_seed(number))
        return {"x": x, "labels": x.cumsum(0).tanh()}


class StopAt(TrainerCallback):  # type: ignore[misc]
    """Ends a job before its time, as a cluster does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Called by the Trainer."""
        control.should_training_stop = control.should_training_stop or state.global_step >= self.step


def main(run: Path, steps: int, every: int, stop: int) -> dict[int, float]:
    world = dist.get_world_size() if dist.is_initialized() else 1
    arguments = TrainingArguments(
        output_dir=str(run),
        max_steps=steps,
        per_device_train_batch_size=BATCH // world,
        learning_rate=0.01,
        save_steps=every,
        save_total_limit=2,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    torch.manual_seed(0)
    trainer = UcpTrainer(Model(), arguments, train_dataset=Samples(), callbacks=[StopAt(stop)])
    trainer.train(resume_from_checkpoint=True)  # or from the beginning, where there is nothing yet
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--stop", type=int, default=1 << 30)
    given = parser.parse_args()
    print(json.dumps(main(given.run, given.steps, given.every, given.stop)))
