"""A rank that computes with Megatron-core what transformers computes, from the same weights.

``python -m tests.frameworks_live.transformers.equivalence_worker`` under `tests.processes.launch`. The weights of a
model of transformers go through the ready-made atom map, then every rank cuts its part by the ready-made patterns,
and the logits of both have to agree; the way back has to give the same bits.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from tests.frameworks_live.transformers.equivalence_cases import EQUIVALENTS, Equivalent
from tests.frameworks_live.transformers.holdings import Array, cut
from tests.frameworks_live.transformers.megatron_model import gpt, prepare
from tests.frameworks_live.transformers.megatron_worker import leaves, whole_name
from tests.processes import join, leave
from ucpformat.patterns import apply_atom_map, carried, load_atom_map, load_patterns, resolve
from ucpformat.patterns.atom_mapping import Direction

TOKENS = torch.tensor([[5, 17, 3, 60, 2, 95, 41, 8], [1, 2, 3, 4, 5, 6, 7, 9]])


def converted(case: Equivalent, weights: dict[str, Array], towards: Direction) -> dict[str, Array]:
    """The weights under the names of the other side."""
    document = load_atom_map(f"{case.name}-megatron")
    shapes = {name: {"value": array.shape} for name, array in weights.items()}
    mapping = apply_atom_map(document, shapes, case.parameters, towards=towards)
    assert not mapping.dropped
    return {name: array for name, _, array in carried(mapping, lambda name, _slot: weights[name])}


def filled(module: Any, held: dict[str, Array]) -> None:
    """Put every weight into its parameter, which Megatron-core's own `sharded_state_dict` names."""
    left = dict(held)
    for _, sharded in leaves(module.sharded_state_dict()):
        if getattr(sharded, "data", None) is None or not isinstance(sharded.data, torch.Tensor):
            continue
        name = _name(sharded)
        if name not in left:
            # With experts the norm belongs to no linear layer, as it does with Transformer Engine; the local
            # layers' names for checkpoints (gpt_layer_specs.py) say it does all the same.
            name = name.replace("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.")
        with torch.no_grad():
            sharded.data.copy_(torch.from_numpy(left.pop(name)))
    assert not left, sorted(left)


def _name(sharded: Any) -> str:
    """The name in the whole model; that of what a factory makes is the same for all of it."""
    if hasattr(sharded, "build"):
        made = [part for _, part in leaves(sharded.build())]
        return whole_name(made[0])
    return whole_name(sharded)


def check(case: Equivalent, rank: int, world: int) -> None:
    """Compare the logits of one model, and its weights after the way there and back."""
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    reference = AutoModelForCausalLM.from_config(case.config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (0.5 if parameter.ndim == 1 else 0.0))
    weights = {name: parameter.detach().numpy() for name, parameter in reference.named_parameters()}
    there = converted(case, weights, "right")
    back = converted(case, there, "left")
    assert back.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(back[name], array)
    shapes = {name: {"value": array.shape} for name, array in there.items()}
    settings = {"tp": world, "layers": 3, **case.patterns}
    layouts = resolve(load_patterns("megatron-gpt"), shapes, settings)
    module = gpt(layers=3, degrees={"tensor_model_parallel_size": world}, **case.megatron).eval()
    filled(module, {name: cut(layouts[name, "value"], array)[rank] for name, array in there.items()})
    length = TOKENS.shape[1]
    mask = torch.triu(torch.ones(1, 1, length, length, dtype=torch.bool), 1)
    with torch.no_grad():
        positions = torch.arange(length).expand_as(TOKENS)
        found = gather_from_tensor_model_parallel_region(module(TOKENS, positions, mask))
        wanted = reference(TOKENS).logits
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
    # Logits that hardly differ from token to token would be met by much.
    assert wanted.std() > 0.5


def main() -> None:
    warnings.simplefilter("ignore")
    rank, world = join()
    prepare()
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
    for case in EQUIVALENTS:
        check(case, rank, world)
        print(f"{case.name} is the same", flush=True)
    leave()


if __name__ == "__main__":
    main()
