"""What Accelerate and Lightning save themselves: read in, compared with their own objects, and trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

import ucpformat as ucp
from ucpformat.conversion.convert import convert_checkpoint, detect_format

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]


def convert(source: Path, destination: Path, to: str) -> Any:
    return convert_checkpoint(source, destination, source_format=detect_format(source), destination_format=to)


@pytest.mark.parametrize("safe", [True, False])
def test_a_state_of_accelerate(tmp_path: Path, safe: bool) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 4))
    made = torch.optim.AdamW(module.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(made, 2)
    accelerator = Accelerator(cpu=True)
    model, optimizer, scheduler = accelerator.prepare(module, made, schedule)
    accelerator.backward(model(torch.ones(2, 4)).square().sum())
    optimizer.step()
    scheduler.step()
    accelerator.save_state(str(tmp_path / "state"), safe_serialization=safe)
    assert detect_format(tmp_path / "state") == "accelerate"
    convert(tmp_path / "state", tmp_path / "c.ucp", "ucp")
    loaded = ucp.load(tmp_path / "c.ucp", tensors="torch")
    for name, tensor in module.state_dict().items():
        assert torch.equal(loaded["model"][name], tensor)
    for number, state in made.state_dict()["state"].items():
        for name, tensor in state.items():
            assert torch.equal(loaded["optimizer"]["state"][number][name], tensor)
    assert loaded["optimizer"]["param_groups"] == made.state_dict()["param_groups"]
    assert loaded["scheduler"] == schedule.state_dict()
    assert torch.equal(loaded["random_states_0"]["torch_manual_seed"], torch.get_rng_state())


def test_a_checkpoint_of_lightning_goes_on_as_the_original(tmp_path: Path) -> None:
    """Saved by a Trainer, through a checkpoint, resumed by a Trainer: the weights of the run that never stopped."""
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(width, 1)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch).square().mean()
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            return {
                "optimizer": optimizer,
                "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
            }

    rows: Any = list(torch.arange(32.0).reshape(8, 4) / 32)
    data: Any = torch.utils.data.DataLoader(rows, batch_size=2)

    def trainer(epochs: int) -> Any:
        from lightning.pytorch.callbacks import ModelCheckpoint

        return lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            callbacks=[ModelCheckpoint(dirpath=tmp_path / "own", save_last=True)],
        )

    def trained(checkpoint: Path | None) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        module = Module(4)
        trainer(4).fit(module, data, ckpt_path=checkpoint, weights_only=False)
        return {name: tensor.clone() for name, tensor in module.state_dict().items()}

    torch.manual_seed(0)
    first = trainer(2)
    first.fit(Module(4), data)
    first.save_checkpoint(tmp_path / "a.ckpt")
    assert detect_format(tmp_path / "a.ckpt") == "torch-save"
    convert(tmp_path / "a.ckpt", tmp_path / "c.ucp", "ucp")
    assert "layer.weight" in ucp.open(tmp_path / "c.ucp")
    convert(tmp_path / "c.ucp", tmp_path / "b.ckpt", "torch-save")
    wanted, found = trained(tmp_path / "a.ckpt"), trained(tmp_path / "b.ckpt")
    assert wanted.keys() == found.keys()
    for name, tensor in wanted.items():
        assert torch.equal(tensor, found[name]), name
