"""Lightning with universal checkpoints: saves at the end of every epoch, and goes on from the last one.

``python examples/lightning_module.py RUN --epochs 4``; docs/guides/lightning.md explains it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from ucpformat.integrations.lightning import UcpCheckpointIO


class Module(lightning.LightningModule):  # type: ignore[misc]
    """A small net, AdamW and a schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
        self.losses: dict[int, float] = {}

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        """The loss of a batch, which is also kept by step."""
        (x,) = batch
        loss = nn.functional.mse_loss(self.net(x), x.cumsum(1).tanh())
        self.losses[self.global_step] = loss.item()
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW, and a cosine over epochs."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)]


def main(run: Path, epochs: int) -> dict[int, float]:
    torch.manual_seed(0)
    module = Module()
    samples = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(samples), batch_size=8)
    keep = ModelCheckpoint(dirpath=run, filename="{epoch}", every_n_epochs=1, save_top_k=-1)
    keep.FILE_EXTENSION = ".ucp"
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        plugins=[UcpCheckpointIO(module)],
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    found = sorted(run.glob("epoch=*.ucp"), key=lambda path: int(path.stem.removeprefix("epoch=")))
    trainer.fit(module, loader, ckpt_path=found[-1] if found else None)
    return module.losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()
    print(json.dumps(main(given.run, given.epochs)))
