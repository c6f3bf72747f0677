"""torchao's own tensors: states of its optimizers, quantised weights, and both divided by FSDP2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

import ucpformat
from tests.processes import launch
from ucpformat import validate

pytestmark = pytest.mark.filterwarnings("ignore")
torch.compiler.set_stance(
    "force_eager"
)  # the optimizers compile themselves, which takes longer than all else


def net(seed: int) -> nn.Module:
    """Weights large enough for torchao to keep their states in few bits."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        torch.manual_seed(step)
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def flat(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that a tensor is made of."""
    if type(tensor) in (torch.Tensor, nn.Parameter):
        return [tensor.detach()]
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return [part for name in names for part in flat(getattr(tensor, name))]


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return type(left) is type(right) and all(
        one.dtype == other.dtype
        and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
        for one, other in zip(flat(left), flat(right), strict=True)
    )


@pytest.mark.parametrize("kind", [AdamW8bit, AdamW4bit, AdamWFp8])
def test_training_goes_on_with_states_of_few_bits(tmp_path: Path, kind: Any) -> None:
    model = net(0)
    optimizer = kind(model.parameters(), lr=0.01)
    train(model, optimizer, range(4))
    ucpformat.save(tmp_path / "s.ucp", {"model": model, "optim": optimizer})
    assert list(validate(tmp_path / "s.ucp")) == []
    with ucpformat.open(tmp_path / "s.ucp") as checkpoint:
        slots = set(checkpoint["0.weight"])
        assert {"value", "exp_avg.codes", "exp_avg.scale", "exp_avg_sq.codes"} <= slots
    other = net(1)
    again = kind(other.parameters(), lr=0.1)
    ucpformat.load(tmp_path / "s.ucp", {"model": other, "optim": again})
    mine, theirs = list(optimizer.state.values()), list(again.state.values())
    assert len(mine) == len(theirs) == 4
    for left, right in zip(mine, theirs, strict=True):
        assert left.keys() == right.keys()
        assert all(same(left[key], right[key]) for key in left)
    assert train(model, optimizer, range(4, 8)) == train(other, again, range(4, 8))


@pytest.mark.parametrize("config", [Int8WeightOnlyConfig, Float8WeightOnlyConfig])
def test_quantised_weights(tmp_path: Path, config: Any) -> None:
    """Filled in place; made anew by the classes that torchao itself registers as safe."""
    model, other = net(0), net(1)
    for one in (model, other):
        quantize_(one, config())
    ucpformat.save(tmp_path / "s.ucp", {"model": dict(model.state_dict())})
    assert list(validate(tmp_path / "s.ucp")) == []
    into = {"model": dict(other.state_dict())}
    ucpformat.load(tmp_path / "s.ucp", into)
    x = torch.randn(3, 64)
    other.load_state_dict(into["model"], assign=True)
    assert torch.equal(model(x), other(x))
    made = ucpformat.load(tmp_path / "s.ucp", tensors="torch")["model"]
    for name, weight in model.state_dict().items():
        assert same(weight, made[name])
    third = net(2)
    third.load_state_dict(made, assign=True)
    assert torch.equal(model(x), third(x))


def test_divided_by_fsdp2(tmp_path: Path) -> None:
    launch("tests.frameworks_live.torchao.worker", [str(tmp_path)], 2)
    assert list(validate(tmp_path / "s.ucp")) == []
