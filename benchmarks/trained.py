"""A small model that was really trained, because random tensors do not compress as trained ones do.

A transformer over bytes learns the sources of Python's standard library: bf16 values, fp32 master copies, and AdamW's
moments in fp32, as mixed precision keeps them. The same on every run of one version of torch and of Python.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Trained", "train"]

_VOCABULARY: Final = 256
_CONTEXT: Final = 64
_BATCH: Final = 16
_SEED: Final = 7

Trained = dict[str, dict[str, Tensor]]
"""Matrices and vectors by parameter and slot: ``value``, ``master``, ``exp_avg``, ``exp_avg_sq``."""


class _Model(nn.Module):
    """Embedding, blocks, and a head that is not tied."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, width)
        self.position = nn.Embedding(_CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 32), 4 * width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(width, _VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss in nats per byte; int64 ``(batch, time)``."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        found = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
        logits = self.head(self.blocks(found, mask=mask, is_causal=True))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _text() -> Tensor:
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    return torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in modules)), dtype=torch.uint8)


def train(width: int, blocks: int, steps: int) -> tuple[Trained, float, float]:
    """Take ``steps`` steps; what a checkpoint holds then, and the mean loss of the first and of the last ten."""
    torch.manual_seed(_SEED)
    model = _Model(width, blocks)
    masters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW([*masters.values()], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    text = _text()
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            warm = min(1.0, (step + 1) / 20)
            group["lr"] = 1e-3 * warm * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        with torch.no_grad():  # the forward pass sees what bf16 has room for
            for name, parameter in model.named_parameters():
                parameter.copy_(masters[name].bfloat16())
        starts = torch.randint(len(text) - _CONTEXT, (_BATCH,))
        windows = torch.stack([text[start : start + _CONTEXT + 1].long() for start in starts])
        model.zero_grad()
        loss = model(windows[:, :-1], windows[:, 1:])
        loss.backward()
        for name, parameter in model.named_parameters():
            masters[name].grad = None if parameter.grad is None else parameter.grad.bfloat16().float()
        optimizer.step()
        losses.append(loss.item())
    found = {
        name: {"value": master.bfloat16(), "master": master}
        | {slot: optimizer.state[master][slot] for slot in ("exp_avg", "exp_avg_sq")}
        for name, master in masters.items()
    }
    ends = min(10, steps)
    return found, sum(losses[:ends]) / ends, sum(losses[-ends:]) / ends
