"""The small network that the DeepSpeed tests train: odd extents, tied, frozen and 0-d parameters, buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(53, 12)
        self.up = nn.Linear(12, 29)
        self.norm = nn.LayerNorm(29)
        self.down = nn.Linear(29, 12)
        self.fixed = nn.Linear(12, 12)
        self.head = nn.Linear(12, 53, bias=False)
        self.head.weight = self.embed.weight
        self.fixed.requires_grad_(not frozen)
        self.gain = nn.Parameter(torch.tensor([1.5]))
        self.odd = nn.Parameter(torch.linspace(-1, 1, 35).reshape(5, 7))
        self.register_buffer("table", torch.arange(21.0).reshape(7, 3))
        self.register_buffer("count", torch.tensor(5))
        self.register_buffer("mask", torch.tensor([True, False, True]))

    def forward(self, ids: Tensor) -> Any:
        hidden = self.embed(ids)
        hidden = hidden + self.down(torch.relu(self.norm(self.up(hidden)))) + self.fixed(hidden) * self.gain
        hidden = hidden + self.odd.mean() ** 2
        return self.head(hidden)


def groups_of(net: nn.Module, count: int) -> list[dict[str, Any]]:
    """One, two or three parameter groups with their own hyper-parameters."""
    named = [(name, item) for name, item in net.named_parameters() if item.requires_grad]
    if count == 1:
        return [{"params": [item for _, item in named], "lr": 0.01, "weight_decay": 0.1}]
    matrices = [item for _, item in named if item.ndim > 1]
    vectors = [item for _, item in named if item.ndim == 1]
    return [
        {"params": matrices, "lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.95)},
        {"params": vectors, "lr": 0.02, "weight_decay": 0.0, "betas": (0.8, 0.99)},
    ]


def sample(seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 53, (4, 5), generator=generator)
    return ids, torch.randn(4, 5, 53, generator=generator).to(dtype)
