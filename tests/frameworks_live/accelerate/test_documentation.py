"""The blocks of the guides for Accelerate and the Trainer."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate import Accelerator
from torch import nn

import ucpformat as ucp
from tests.documentation.markdown import run_by
from tests.documentation.running import Reader
from tests.processes import ROOT

HERE = "tests/frameworks_live/accelerate/test_documentation.py"

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_guide_of_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    python, shell = run_by(HERE, "docs/guides/accelerate.md")
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    names = {"accelerator": Accelerator(cpu=True), "steps": 1000}
    reader = Reader(tmp_path, {**names, "model": model, "optimizer": optimizer, "schedule": schedule})
    reader.run(python)
    assert ucp.CheckpointManager("run").steps() == [500, 1000]

    (tmp_path / "again").mkdir()
    monkeypatch.chdir(tmp_path / "again")
    (tmp_path / "again" / "examples").symlink_to(ROOT / "examples")
    Reader(tmp_path / "again").run(shell)
    assert ucp.CheckpointManager("run").steps() == [30, 40]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self.net(x), labels)}


def test_the_guide_of_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fewer steps."""
    monkeypatch.chdir(tmp_path)
    (block,) = run_by(HERE, "docs/guides/trainer.md")
    whole: Any = transformers.TrainingArguments
    here = functools.partial(whole, use_cpu=True, report_to=[], disable_tqdm=True)
    # transformers puts another module of its name in its own place when it loads its processing of images.
    monkeypatch.setattr(
        sys.modules["transformers"],
        "TrainingArguments",
        lambda *, max_steps, save_steps, **more: here(
            max_steps=max_steps // 250, save_steps=save_steps // 250, **more
        ),
    )
    dataset = [{"x": torch.ones(4), "labels": torch.zeros(4)}] * 8
    Reader(tmp_path, {"model": Model(), "dataset": dataset}).run(block)
    assert ucp.CheckpointManager(tmp_path / "run" / "ucp").steps() == [2, 4]
