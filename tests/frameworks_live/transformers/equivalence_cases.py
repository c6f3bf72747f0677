"""Models that transformers and Megatron-core both have: how each is built, and the atom map between their names."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig, MixtralConfig

IDS = {"bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    **IDS,
}


@dataclass(frozen=True)
class Equivalent:
    """A model of transformers and what makes Megatron-core's the same."""

    name: str
    config: Any
    parameters: dict[str, int]
    megatron: dict[str, Any] = field(default_factory=dict)
    """Settings of `gpt` in `megatron_model`."""
    patterns: dict[str, int] = field(default_factory=dict)
    """Parameters of the ready-made patterns ``megatron-gpt`` beside the degree."""


EQUIVALENTS = (
    Equivalent(
        "llama",
        LlamaConfig(**LLAMA),
        {"hidden": 32, "heads": 8, "kv_heads": 4, "ffn": 48},
        {
            "tied": False,
            "gated": True,
            "groups": 4,
            "config": {"layernorm_epsilon": 1e-6},
            "model": {"rotary_base": 10000},
        },
        {"gated": 1},
    ),
    Equivalent(
        "mixtral",
        MixtralConfig(**LLAMA, num_local_experts=4, num_experts_per_tok=2),
        {"hidden": 32, "heads": 8, "kv_heads": 4, "experts": 4},
        {
            "tied": False,
            "gated": True,
            "groups": 4,
            "experts": 4,
            "config": {"layernorm_epsilon": 1e-6},
            "model": {"rotary_base": 1000000},
        },
        {"gated": 1, "experts": 4},
    ),
    Equivalent(
        "gpt-neox",
        GPTNeoXConfig(
            vocab_size=96,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=8,
            use_parallel_residual=False,
            max_position_embeddings=32,
            **IDS,
        ),
        {},
        {
            "tied": False,
            "config": {"layernorm_epsilon": 1e-5},
            "model": {"position_embedding_type": "rope", "rotary_percent": 0.25},
        },
    ),
    Equivalent(
        "gpt2",
        GPT2Config(vocab_size=96, n_embd=32, n_inner=48, n_layer=3, n_head=8, n_positions=32, **IDS),
        {"hidden": 32, "heads": 8},
        {
            "tied": True,
            "config": {
                "layernorm_epsilon": 1e-5,
                "activation_func": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
            },
        },
        {"tied": 1},
    ),
)
