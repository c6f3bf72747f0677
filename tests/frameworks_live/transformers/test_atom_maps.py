"""The ready-made atom maps against the frameworks whose names they map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.frameworks_live.transformers.cases import config, model
from tests.frameworks_live.transformers.holdings import Array
from tests.processes import launch
from ucpformat.patterns import apply_atom_map, carried, load_atom_map
from ucpformat.patterns.atom_mapping import Direction

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_megatron_computes_with_mapped_weights_what_transformers_computes(ranks: int) -> None:
    """Llama, Mixtral, GPT-NeoX and GPT-2: mapped, cut for tensor parallelism, equal logits; and mapped back."""
    launch("tests.frameworks_live.transformers.equivalence_worker", [], ranks)


@pytest.mark.filterwarnings("ignore")
def test_mixtral_in_memory_is_what_transformers_makes_of_its_files(tmp_path: Path) -> None:
    """``save_pretrained`` takes the experts apart again, under the names that published checkpoints have."""
    from safetensors.numpy import load_file

    found = model("mixtral")
    found.save_pretrained(tmp_path)
    files = load_file(tmp_path / "model.safetensors")
    memory = {name: value.detach().numpy() for name, value in found.named_parameters()}
    assert "model.layers.4.block_sparse_moe.experts.3.w1.weight" in files
    settings = config("mixtral")
    sizes = {
        "hidden": settings.hidden_size,
        "ffn": settings.intermediate_size,
        "experts": settings.num_local_experts,
    }
    sides: tuple[tuple[Direction, dict[str, Array], dict[str, Array]], ...] = (
        ("right", files, memory),
        ("left", memory, files),
    )
    for towards, here, there in sides:
        shapes = {name: {"value": array.shape} for name, array in here.items()}
        mapping = apply_atom_map(load_atom_map("mixtral-hub"), shapes, sizes, towards=towards)
        made = {name: array for name, _, array in carried(mapping, lambda name, _slot: here[name])}  # noqa: B023
        assert made.keys() == there.keys()
        for name, array in there.items():
            np.testing.assert_array_equal(made[name], array, err_msg=name)
