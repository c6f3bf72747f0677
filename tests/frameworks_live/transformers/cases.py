"""Tiny models of several families, and the ways in which frameworks divide them among 2 and 4 ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPTBigCodeConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
)


@dataclass(frozen=True)
class Case:
    """A family divided by ``how``: the degrees for transformers, and the parameters of the ready-made patterns."""

    family: str
    by: Literal["transformers", "autotp"]
    world: int
    degrees: dict[str, int]
    patterns: str
    parameters: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The case as a folder name."""
        return "-".join([self.patterns, *(f"{axis}{size}" for axis, size in self.degrees.items())])


def _cases() -> tuple[Case, ...]:
    found: list[Case] = []
    # Both at once is what transformers 5.23 fails to do: its tensor parallelism looks for layers of other stages.
    for degrees in ({"tp": 2}, {"tp": 4}, {"pp": 2, "tp": 1}, {"pp": 4, "tp": 1}):
        world = degrees["tp"] * degrees.get("pp", 1)
        found += [
            Case(family, "transformers", world, degrees, family, {"layers": 5, **degrees})
            for family in ("llama", "mixtral")
        ]
    for size in (2, 4):
        found += [
            Case(
                "mixtral",
                "transformers",
                size,
                {"tp": size, "ep": size},
                "mixtral-ep",
                {"tp": size, "layers": 5},
            ),
            Case("gpt-neox", "transformers", size, {"tp": size}, "gpt-neox", {"tp": size}),
            Case("bloom", "autotp", size, {"tp": size}, "bloom-autotp", {"tp": size, "heads": 6}),
            Case("starcoder", "autotp", size, {"tp": size}, "starcoder-autotp", {"tp": size, "hidden": 48}),
        ]
    return tuple(found)


CASES = _cases()


def config(family: str) -> Any:
    """A configuration in which extents do not divide where the framework takes that."""
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    llama = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 50,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        **ids,
    }
    match family:
        case "llama":
            return LlamaConfig(**llama)
        case "mixtral":
            experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64}
            return MixtralConfig(**{**llama, **experts})
        case "gpt-neox":
            return GPTNeoXConfig(
                vocab_size=97,
                hidden_size=32,
                intermediate_size=50,
                num_hidden_layers=2,
                num_attention_heads=4,
                **ids,
            )
        case "bloom":
            return BloomConfig(vocab_size=97, hidden_size=48, n_layer=2, n_head=6, **ids)
        case "starcoder":
            return GPTBigCodeConfig(vocab_size=97, n_embd=48, n_layer=2, n_head=6, n_positions=32, **ids)
        case _:
            raise AssertionError(family)


def model(family: str) -> Any:
    """The undivided model: the same weights on every call, no two alike."""
    torch.manual_seed(0)
    found = AutoModelForCausalLM.from_config(config(family))
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.05)
    return found.eval()
