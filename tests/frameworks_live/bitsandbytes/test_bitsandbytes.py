"""bitsandbytes keeps 8-bit states as plain tensors: codes, scales of blocks, and a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bitsandbytes
import pytest
import torch
from torch import nn

import ucpformat
from ucpformat import validate

TENSORS = ("state", "qmap", "absmax")

pytestmark = pytest.mark.filterwarnings("ignore")


def job(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    return {"model": model, "optim": bitsandbytes.optim.AdamW8bit(model.parameters(), lr=0.01)}


def train(made: dict[str, Any], steps: range) -> list[float]:
    losses = []
    for step in steps:
        torch.manual_seed(step)
        loss = made["model"](torch.randn(8, 64)).square().mean()
        made["optim"].zero_grad()
        loss.backward()
        made["optim"].step()
        losses.append(loss.item())
    return losses


def test_training_goes_on_with_8_bit_states(tmp_path: Path) -> None:
    made, other = job(0), job(1)
    train(made, range(4))
    train(other, range(1))
    ucpformat.save(tmp_path / "s.ucp", made)
    assert list(validate(tmp_path / "s.ucp")) == []
    with ucpformat.open(tmp_path / "s.ucp") as checkpoint:
        slots = checkpoint["0.weight"]
        inside = "bnb_optimizer_quant_state__"
        assert {"value", *(f"{inside}.{name}{number}" for name in TENSORS for number in (1, 2))} <= set(slots)
        assert slots[f"{inside}.state1"].dtype.name == "uint8"
        assert slots[f"{inside}.absmax1"].shape == (128 * 64 // 256,)
    ucpformat.load(tmp_path / "s.ucp", other)
    assert train(made, range(4, 8)) == train(other, range(4, 8))
