"""Optimizers between Megatron's groups, which name no parameter, and ours; the live tests have Megatron's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

pytest.importorskip("torch")

import torch

import ucpformat as ucp
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.formats.megatron.exporter import GROUPS
from ucpformat.conversion.formats.megatron.importer import import_torch_dist
from ucpformat.conversion.formats.megatron.parameter_groups import (
    EXPERTS_OWN,
    IDENTIFIERS,
    Parameter,
    decays,
    optimizer_of,
    stacked_dims,
    stored_groups,
)
from ucpformat.conversion.formats.megatron.torch_dist import COMMON
from ucpformat.errors import UcpError
from ucpformat.tensor_files.tagged import decode

names = st.sampled_from(
    [
        "decoder.layers.3.mlp.linear_fc1.weight",
        "decoder.layers.mlp.linear_fc1.weight",
        "decoder.layers.mlp.linear_fc1.bias",
        "decoder.layers.mlp.linear_fc1.layer_norm_weight",
        "decoder.layers.mlp.experts.experts.linear_fc1.weight",
        "decoder.layers.2.mlp.experts.local_experts.1.linear_fc2.weight",
        "embedding.word_embeddings.weight",
        "decoder.final_layernorm.weight",
    ]
)


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("decoder.layers.mlp.linear_fc1.weight", 1),
        ("decoder.layers.12.mlp.linear_fc1.weight", 0),
        ("decoder.layers.mlp.experts.experts.linear_fc1.weight", 2),
        ("decoder.layers.12.mlp.experts.experts.linear_fc1.weight", 1),
        ("decoder.layers.12.mlp.experts.local_experts.3.linear_fc1.weight", 0),
        ("embedding.word_embeddings.weight", 0),
        ("layers.self_attention.linear_qkv.weight", 1),
    ],
)
def test_dims_that_count_layers_and_experts(name: str, dims: int) -> None:
    assert stacked_dims(name) == dims


@given(st.dictionaries(names, st.integers(1, 2), min_size=1), st.booleans(), st.integers(0, 9))
def test_every_parameter_is_in_the_one_group_of_its_kind(
    own: dict[str, int], apart: bool, steps: int
) -> None:
    parameters = [Parameter(name, (2,) * (stacked_dims(name) + ndim)) for name, ndim in own.items()]
    groups: list[tuple[dict[str, Any], float | None]] = [
        ({**IDENTIFIERS, "wd_mult": wd, EXPERTS_OWN: expert, "params": [], "step": steps}, float(steps))
        for expert in ((False, True) if apart else (False,))
        for wd in (1.0, 0.0)
    ]
    found = optimizer_of(groups, parameters)
    assert found is not None
    optimizer, counted = found
    assert counted == dict.fromkeys(own, float(steps))
    assert sorted(name for group in optimizer.groups for name in group.atoms) == sorted(own)
    for group in optimizer.groups:
        assert set(group.options) == set(IDENTIFIERS)
        for name in group.atoms:
            (parameter,) = [one for one in parameters if one.name == name]
            assert decays(parameter) == (decode(group.options["wd_mult"], at="") == 1.0)
            assert (".experts." in name and apart) == group.options[EXPERTS_OWN]


def test_groups_that_say_nothing_are_left_alone() -> None:
    twice = [({"wd_mult": 1.0}, None), ({"wd_mult": 1.0}, None)]
    assert optimizer_of(twice, [Parameter("w", (2, 2))]) is None
    assert optimizer_of([({EXPERTS_OWN: True}, None)], [Parameter("w", (2, 2))]) is None
    for tree in (None, 3, {}, {"optimizer": 1}, {"param_groups": [1]}, {0: None}):
        assert stored_groups(tree) is None
    group = {"lr": 1.0}
    assert stored_groups({"param_groups": [group], "state": {"common_step": 4}}) == [(group, 4.0)]
    assert stored_groups({0: {"optimizer": {"param_groups": [group]}}, 1: {"param_groups": [group]}}) == [
        (group, None),
        (group, None),
    ]


NORM, MATRIX, EXPERT = (
    "decoder.final_layernorm.weight",
    "output_layer.weight",
    "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight",
)


def saved(path: Path, groups: dict[str, dict[str, Any]], *, steps: dict[str, float] | None = None) -> Path:
    """A checkpoint as a torch job with Adam saves it: ``groups`` are options by the name of the one parameter."""
    tensors = {
        name: torch.randn((3,) if name == NORM else (3, 2), generator=torch.Generator().manual_seed(4))
        for name in groups
    }
    state = {
        name: {
            "exp_avg": tensor + 1,
            "exp_avg_sq": tensor + 2,
            "step": torch.tensor((steps or {}).get(name, 5.0)),
        }
        for name, tensor in tensors.items()
    }
    listed = [{**options, "params": [name]} for name, options in groups.items()]
    ucp.save(path, {"model": tensors, "optim": {"state": state, "param_groups": listed}}, step=9)
    return path


def exported(source: Path, out: Path, **settings: str) -> dict[Any, Any]:
    convert_checkpoint(source, out, source_format="ucp", destination_format="megatron", settings=settings)
    found: dict[Any, Any] = torch.load(out / COMMON, weights_only=True)
    return found


ADAM = {"lr": 0.5, "betas": (0.5, 0.25), "eps": 1e-3, "weight_decay": 0.125}


def test_adam_is_the_distributed_optimizer(tmp_path: Path) -> None:
    source = saved(tmp_path / "ucp", {MATRIX: ADAM, NORM: {**ADAM, "weight_decay": 0.0}, EXPERT: ADAM})
    common = exported(source, tmp_path / "out")
    assert common["iteration"] == 9
    assert common["content_metadata"]["distrib_optim_sharding_type"] == "fully_reshardable"
    assert common["content_metadata"]["non_homogeneous_layers"] is True
    dense, experts = (common["optimizer"][place]["optimizer"]["param_groups"] for place in (0, 1))
    assert [(group["wd_mult"], group["weight_decay"]) for group in dense] == [(1.0, 0.125), (0.0, 0.0)]
    assert [group[EXPERTS_OWN] for group in (*dense, *experts)] == [False, False, True]
    assert all(group["step"] == 5 and group["lr"] == 0.5 for group in (*dense, *experts))
    together = exported(source, tmp_path / "together", experts="together")
    assert len(together["optimizer"]["optimizer"]["param_groups"]) == 2
    job = import_torch_dist(tmp_path / "out")
    for atom in job.atoms:
        assert set(atom.slots) == {"value", "master", "exp_avg", "exp_avg_sq", "step"}
    groups = job.state.optimizers["optim"].groups
    assert [group.atoms for group in groups] == [(MATRIX,), (NORM,), (EXPERT,)]
    with pytest.raises(UcpError, match="apart"):
        exported(source, tmp_path / "no", experts="both")


@pytest.mark.parametrize(
    ("groups", "steps", "why"),
    [
        ({MATRIX: ADAM, EXPERT: {**ADAM, "lr": 0.25}}, {}, "other hyper-parameters"),
        ({MATRIX: ADAM, NORM: ADAM}, {NORM: 6.0}, "counts steps once"),
    ],
)
def test_what_megatron_cannot_say_is_carried_and_told(
    tmp_path: Path, groups: dict[str, dict[str, Any]], steps: dict[str, float], why: str
) -> None:
    source = saved(tmp_path / "ucp", groups, steps=steps)
    report = convert_checkpoint(
        source,
        tmp_path / "out",
        source_format="ucp",
        destination_format="megatron",
        settings={"experts": "together"},
    )
    assert why in report.renamed["optimizers/optim"]
    common = torch.load(tmp_path / "out" / COMMON, weights_only=True)
    assert "optimizer" not in common
    assert 0.5 in common[GROUPS].values()
    slots = {slot for atom in import_torch_dist(tmp_path / "out").atoms for slot in atom.slots}
    assert slots == {"value", "exp_avg", "exp_avg_sq", "step"}


def test_narrow_states_are_widened(tmp_path: Path) -> None:
    halves = torch.randn(3, 2, generator=torch.Generator().manual_seed(1)).bfloat16()
    state = {"model": {MATRIX: halves}}
    moments = {"exp_avg": halves + 1, "exp_avg_sq": (halves + 2).half(), "step": torch.tensor(1.0)}
    ucp.save(
        tmp_path / "ucp",
        {**state, "optim": {"state": {MATRIX: moments}, "param_groups": [{**ADAM, "params": [MATRIX]}]}},
    )
    exported(tmp_path / "ucp", tmp_path / "out")
    convert_checkpoint(
        tmp_path / "out", tmp_path / "again", source_format="megatron", destination_format="ucp"
    )
    with ucp.open(tmp_path / "again") as checkpoint:
        view = checkpoint[MATRIX]
        assert view["value"].dtype.name == "bfloat16"
        for slot, tensor in {"master": halves, **moments}.items():
            if slot != "step":
                np.testing.assert_array_equal(view[slot][...], tensor.float().numpy())
