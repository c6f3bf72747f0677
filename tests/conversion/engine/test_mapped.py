"""Atom maps carried out box by box give what they give at once, and carry ties and groups along."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conversion.jobs import Array, job_of, whole
from tests.patterns.documents import ENVELOPE
from ucpformat.conversion.contract.map_choice import apply_maps
from ucpformat.conversion.contract.mapped import mapped_job
from ucpformat.errors import UcpError
from ucpformat.model.state import Optimizer, ParameterGroup, StateDocument
from ucpformat.patterns import apply_atom_map, carried, load_atom_map

SIZES = {"hidden": 8, "heads": 4, "kv_heads": 2, "ffn": 12}


def llama(layers: int = 2) -> dict[str, dict[str, Array]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (10, 8),
        "model.norm.weight": (8,),
        "lm_head.weight": (10, 8),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": (8, 8),
            f"{at}.self_attn.k_proj.weight": (4, 8),
            f"{at}.self_attn.v_proj.weight": (4, 8),
            f"{at}.self_attn.o_proj.weight": (8, 8),
            f"{at}.mlp.gate_proj.weight": (12, 8),
            f"{at}.mlp.up_proj.weight": (12, 8),
            f"{at}.mlp.down_proj.weight": (8, 12),
            f"{at}.input_layernorm.weight": (8,),
            f"{at}.post_attention_layernorm.weight": (8,),
        }
    rng = np.random.default_rng(0)
    return {
        name: {
            "value": rng.standard_normal(shape).astype(np.float32),
            "exp_avg": rng.standard_normal(shape),
            "step": np.asarray(7.0, np.float32),
        }
        for name, shape in shapes.items()
    }


@given(st.integers(1, 13))
def test_what_is_read_in_boxes_is_what_is_carried_at_once(parts: int) -> None:
    arrays = llama()
    shapes = {name: {slot: a.shape for slot, a in slots.items()} for name, slots in arrays.items()}
    mapping = apply_atom_map(load_atom_map("llama-megatron"), shapes, SIZES, towards="right")
    wanted = {(atom, slot): a for atom, slot, a in carried(mapping, lambda name, slot: arrays[name][slot])}
    job, dropped = mapped_job(job_of(arrays), load_atom_map("llama-megatron"), SIZES, towards="right")
    assert dropped == []
    found = whole(job, parts)
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        np.testing.assert_array_equal(found[key], array, err_msg=str(key), strict=True)
    back, _ = mapped_job(job, load_atom_map("llama-megatron"), SIZES, towards="left")
    for (name, slot), array in whole(back, parts).items():
        np.testing.assert_array_equal(array, arrays[name][slot], err_msg=f"{name}/{slot}", strict=True)


def test_ties_stay_ties_and_groups_list_what_is_made() -> None:
    arrays = llama(1)
    del arrays["lm_head.weight"]
    matrices = tuple(name for name in arrays if arrays[name]["value"].ndim > 1)
    others = tuple(name for name in arrays if name not in matrices)
    groups = (ParameterGroup(matrices, {"lr": 1}), ParameterGroup(others, {"lr": 2}))
    job = job_of(
        arrays,
        aliases={"model.embed_tokens.weight": ["lm_head.weight"]},
        state=StateDocument({}, {"optim": Optimizer(groups)}, {}),
    )
    mapped, _ = mapped_job(job, load_atom_map("llama-megatron"), SIZES, towards="right")
    aliases = {atom.name: atom.aliases for atom in mapped.atoms if atom.aliases}
    assert aliases == {"embedding.word_embeddings.weight": ("output_layer.weight",)}
    first, second = mapped.state.optimizers["optim"].groups
    assert set(first.atoms) == {
        "embedding.word_embeddings.weight",
        "decoder.layers.0.self_attention.linear_qkv.weight",
        "decoder.layers.0.self_attention.linear_proj.weight",
        "decoder.layers.0.mlp.linear_fc1.weight",
        "decoder.layers.0.mlp.linear_fc2.weight",
    }
    assert len(second.atoms) == 3
    back, _ = mapped_job(mapped, load_atom_map("llama-megatron"), SIZES, towards="left")
    assert {atom.name: atom.aliases for atom in back.atoms if atom.aliases} == {
        "model.embed_tokens.weight": ("lm_head.weight",)
    }
    assert {atom.name for atom in back.atoms} == arrays.keys()


def test_parts_of_several_groups_are_refused() -> None:
    arrays = llama(1)
    lone = "model.layers.0.mlp.up_proj.weight"
    groups = (ParameterGroup(tuple(n for n in arrays if n != lone), {}), ParameterGroup((lone,), {}))
    job = job_of(arrays, state=StateDocument({}, {"optim": Optimizer(groups)}, {}))
    with pytest.raises(UcpError, match="several parameter groups") as refusal:
        mapped_job(job, load_atom_map("llama-megatron"), SIZES, towards="right")
    assert refusal.value.code == "UCP-E-MISMATCH"


def test_unequal_copies_and_mixed_types_are_refused() -> None:
    arrays = llama(1)
    arrays["model.layers.0.mlp.up_proj.weight"]["step"] = np.asarray(8.0, np.float32)
    with pytest.raises(UcpError, match="different elements"):
        mapped_job(job_of(arrays), load_atom_map("llama-megatron"), SIZES, towards="right")
    arrays = llama(1)
    arrays["model.layers.0.mlp.up_proj.weight"]["value"] = np.zeros((12, 8), np.float16)
    with pytest.raises(UcpError, match="data types"):
        mapped_job(job_of(arrays), load_atom_map("llama-megatron"), SIZES, towards="right")


CONFIG = {
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
    "head_dim": None,
}


def test_maps_are_chosen_by_what_fits_with_parameters_of_the_configuration(tmp_path: Path) -> None:
    arrays = llama()
    blobs = {"config.json": ("application/json", json.dumps(CONFIG).encode())}
    job, _ = apply_maps(job_of(arrays, blobs=blobs), {"map": "llama-megatron"})
    assert "decoder.layers.1.mlp.linear_fc1.weight" in {atom.name for atom in job.atoms}
    back, _ = apply_maps(job, {"map": "llama-megatron"})
    assert {atom.name for atom in back.atoms} == arrays.keys()
    there_and_back, _ = apply_maps(
        job_of(arrays),
        {
            "map": "llama-megatron:right,llama-megatron:left",
            "map_parameters": "hidden=8,heads=4,kv_heads=2,ffn=12",
        },
    )
    assert {atom.name for atom in there_and_back.atoms} == arrays.keys()
    # A file of one's own, one side of which drops what the other has not.
    mine = tmp_path / "mine.json"
    envelope = {
        **ENVELOPE,
        "kind": "atom-map",
        "parameters": [],
        "entries": [
            {"left": "lm_head.weight", "right": None},
            {"left": "{rest:path}", "right": "my.{rest:path}"},
        ],
    }
    mine.write_text(json.dumps(envelope))
    renamed, dropped = apply_maps(job_of(arrays), {"map": f"{mine}:right"})
    assert "my.model.norm.weight" in {atom.name for atom in renamed.atoms}
    assert sorted(dropped) == ["lm_head.weight/exp_avg", "lm_head.weight/step", "lm_head.weight/value"]
    either = tmp_path / "either.json"
    either.write_text(json.dumps(envelope | {"entries": [{"left": "{rest:path}", "right": "{rest:path}"}]}))
    with pytest.raises(UcpError, match="fits either way"):
        apply_maps(renamed, {"map": str(either)})


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"map": "no-such-map"}, "UCP-E-PATTERN"),
        ({"map": "/no/such/map.json"}, "UCP-E-PATTERN"),
        ({"map": "llama-megatron"}, "UCP-E-PATTERN"),
        ({"map": "llama-megatron", "map_parameters": "hidden"}, "UCP-E-PATTERN"),
        (
            {"map": "llama-megatron", "map_parameters": "hidden=8,heads=4,kv_heads=2,ffn=12,of=3"},
            "UCP-E-PATTERN",
        ),
        ({"map": "gpt2-megatron", "map_parameters": "hidden=8,heads=4"}, "UCP-E-UNMATCHED"),
        ({"map": "llama-megatron", "map_parameters": "hidden=8,heads=4,kv_heads=2,ffn=13"}, "UCP-E-MISMATCH"),
    ],
)
def test_maps_that_do_not_fit_are_refused(settings: dict[str, str], code: str) -> None:
    with pytest.raises(UcpError) as refusal:
        apply_maps(job_of(llama(1)), settings)
    assert refusal.value.code == code
