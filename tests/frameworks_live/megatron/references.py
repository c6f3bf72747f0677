"""Whole tensors out of what lay in the memory of each rank, by the rules of the model alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

# Along which dim tensor parallelism splits a weight; others are replicated. Gate and up are split each on its own.
SPLIT = {
    "embedding.word_embeddings.weight": 0,
    "output_layer.weight": 0,
    "self_attention.linear_qkv.weight": 0,
    "self_attention.linear_proj.weight": 1,
    "linear_fc1.weight": 0,
    "linear_fc2.weight": 1,
}
# Norms of the local spec are stored under the keys that TransformerEngine's fused layers have.
RENAMED = {
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
}
LAYERS = 4

Tensors = dict[str, dict[str, torch.Tensor]]


def ranks_of(folder: Path, stem: str) -> list[dict[str, Any]]:
    """What lay in the memory of each rank, chunk by chunk."""
    paths = sorted(folder.glob(f"{stem}-[0-9].pt"))
    return [chunk for path in paths for chunk in torch.load(path, weights_only=True)]


def whole(ranks: list[dict[str, Any]]) -> Tensors:
    """Value and states of every parameter of every layer: ``decoder.layers.3.mlp...`` to slot to tensor."""
    found: Tensors = {}
    for (name, slot), by_tp in _parts(ranks).items():
        found.setdefault(name, {})[slot] = _merged(name, [by_tp[tp] for tp in sorted(by_tp)])
    return found


def _parts(ranks: list[dict[str, Any]]) -> dict[tuple[str, str], dict[int, torch.Tensor]]:
    """Local tensors by name over the whole model and slot, then by tensor-parallel rank."""
    parts: dict[tuple[str, str], dict[int, torch.Tensor]] = {}
    for rank in ranks:
        for local, value in rank["values"].items():
            name = global_name(local, rank["first_layer"], rank["first_expert"])
            parts.setdefault((name, "value"), {})[rank["tp"]] = value
            for slot, (begin, piece) in rank["states"].get(local, {}).items():
                place = parts.setdefault((name, "master" if slot == "param" else slot), {})
                target = place.setdefault(rank["tp"], torch.full_like(value, float("nan"), dtype=piece.dtype))
                target.view(-1)[begin : begin + piece.numel()] = piece.reshape(-1)
    return parts


def global_name(local: str, first_layer: int, first_expert: int) -> str:
    if not local.startswith("decoder.layers."):
        return local
    number, rest = local.removeprefix("decoder.layers.").split(".", 1)
    if rest.startswith("mlp.experts.local_experts."):
        expert, weight = rest.removeprefix("mlp.experts.local_experts.").split(".", 1)
        rest = f"mlp.experts.{int(expert) + first_expert}.{weight}"
    return f"decoder.layers.{int(number) + first_layer}.{RENAMED.get(rest, rest)}"


def _merged(name: str, parts: list[torch.Tensor]) -> torch.Tensor:
    dim = next((dim for suffix, dim in SPLIT.items() if name.endswith(suffix)), None)
    if dim is None:
        for part in parts[1:]:
            torch.testing.assert_close(part, parts[0], rtol=0, atol=0)
        return parts[0]
    if name.endswith("linear_fc1.weight"):
        halves = [part.chunk(2) for part in parts]
        return torch.cat([half[0] for half in halves] + [half[1] for half in halves])
    return torch.cat(parts, dim)


def stacked(tensors: Tensors) -> Tensors:
    """The same with experts and layers stacked, as Megatron stores layers that are alike."""
    tensors = _with_stacked_experts(tensors)
    found: Tensors = {}
    for name, slots in tensors.items():
        if not name.startswith("decoder.layers."):
            found[name] = slots
            continue
        rest = name.removeprefix("decoder.layers.").split(".", 1)[1]
        if name.startswith("decoder.layers.0."):
            found[f"decoder.layers.{rest}"] = {
                slot: torch.stack(
                    [tensors[f"decoder.layers.{layer}.{rest}"][slot] for layer in range(LAYERS)]
                )
                for slot in slots
            }
    return found


def _with_stacked_experts(tensors: Tensors) -> Tensors:
    found: Tensors = {}
    experts: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
    for name, slots in tensors.items():
        head, middle, rest = name.partition(".experts.")
        if middle:
            number, weight = rest.split(".", 1)
            experts.setdefault(f"{head}.experts.experts.{weight}", {})[int(number)] = slots
        else:
            found[name] = slots
    for name, members in experts.items():
        ordered = [members[number] for number in range(len(members))]
        found[name] = {slot: torch.stack([member[slot] for member in ordered]) for slot in ordered[0]}
    return found
