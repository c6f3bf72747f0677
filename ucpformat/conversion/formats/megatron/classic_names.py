"""Names over the whole model of the parameters that a rank of Megatron-LM numbers from 0.

Layers are counted over the stages, and the chunks of a virtual pipeline, in the order in which the model runs them;
experts over the expert-parallel ranks (megatron/core/transformer/transformer_layer.py, moe/experts.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["layer_counts", "whole_name"]

_LAYER: Final = re.compile(r"(.*\blayers\.)(\d{1,6})(\..+)", re.DOTALL)
_EXPERT: Final = (
    re.compile(r"(.*\.experts\.local_experts\.)(\d{1,6})(\..+)", re.DOTALL),
    re.compile(r"(.*\.experts\.linear_fc[12]\.(?:weight|bias))(\d{1,6})()"),
)


def layer_counts(names: Iterable[str]) -> dict[str, int]:
    """Return how many layers there are under each prefix, such as ``decoder.layers.``."""
    counts: dict[str, int] = {}
    for name in names:
        if match := _LAYER.fullmatch(name):
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    return counts


def whole_name(name: str, layers_before: Mapping[str, int], expert_rank: int, local_experts: int) -> str:
    """Return the name over the whole model; ``layers_before`` are by prefix those of earlier stages and chunks."""
    if match := _LAYER.fullmatch(name):
        name = f"{match[1]}{int(match[2]) + layers_before.get(match[1], 0)}{match[3]}"
    for pattern in _EXPERT:
        if match := pattern.fullmatch(name):
            return f"{match[1]}{int(match[2]) + expert_rank * local_experts}{match[3]}"
    return name


def is_expert(name: str) -> bool:
    """Return whether a parameter is of one expert."""
    return any(pattern.fullmatch(name) for pattern in _EXPERT)
