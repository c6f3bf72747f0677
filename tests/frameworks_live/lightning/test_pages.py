"""What ``ucp inspect`` shows of checkpoints that Lightning wrote, its own files and ours, at three widths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from tests.cli.kept_pages import WIDTHS, compare_page
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.integrations.lightning import UcpCheckpointIO

pytestmark = pytest.mark.filterwarnings("ignore")

VOCABULARY, WIDTH, LAYERS = 128, 32, 4


class Gpt(lightning.LightningModule):  # type: ignore[misc]
    """Blocks of a transformer, whose head has the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"vocabulary": VOCABULARY, "width": WIDTH, "layers": LAYERS})
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        (tokens,) = batch
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        groups = [
            {"params": [one for one in self.parameters() if one.ndim > 1], "weight_decay": 0.1},
            {"params": [one for one in self.parameters() if one.ndim == 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def trained(run: Path, suffix: str) -> Path:
    """Train for an epoch of five steps, and return the checkpoint of its end."""
    torch.manual_seed(0)
    module = Gpt()
    samples = torch.randint(VOCABULARY, (20, 16), generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(samples), batch_size=4)
    keep = ModelCheckpoint(dirpath=run, filename="{epoch}", every_n_epochs=1, save_top_k=-1)
    keep.FILE_EXTENSION = suffix
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, callbacks=[keep],
        plugins=[UcpCheckpointIO(module)] if suffix == ".ucp" else [],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    return run / f"epoch=0{suffix}"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("run")
    own = trained(folder, ".ckpt")
    assert detect_format(own) == "torch-save"
    convert_checkpoint(
        own,
        folder / "own.ucp",
        source_format="torch-save",
        destination_format="ucp",
        source_settings={"order": "module"},
    )
    return {"lightning": folder / "own.ucp", "lightning-ucp": trained(folder, ".ucp")}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["lightning", "lightning-ucp"])
def test_the_pages_are_as_they_are_kept(
    pages: dict[str, Path], name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_page(pages[name], name, width, monkeypatch)
