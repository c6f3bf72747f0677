"""The blocks of the guide for Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import nn

import ucpformat as ucp
from tests.documentation.markdown import run_by
from tests.documentation.running import Reader

HERE = "tests/frameworks_live/lightning/test_documentation.py"

pytestmark = pytest.mark.filterwarnings("ignore")


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 4)

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        loss = self.net(batch).square().mean()
        self.log("loss", loss)
        return torch.as_tensor(loss)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


def test_the_guide_of_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = Module()
    samples: Any = torch.ones(8, 4)
    reader = Reader(tmp_path, {"module": module, "loader": torch.utils.data.DataLoader(samples)})
    begin, go_on = run_by(HERE, "docs/guides/lightning.md")
    reader.run(begin)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        f"epoch={number}.ucp" for number in (1, 2, 3)
    }
    reader.run(go_on)
    trainer: Any = reader.namespace["trainer"]
    assert trainer.current_epoch == 8
    ucp.load("run/epoch=7.ucp", {"model": module}, strict=False)
