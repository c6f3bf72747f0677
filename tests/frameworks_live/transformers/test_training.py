"""Training goes from FSDP2 to Megatron under TP 2 x PP 2 and back, with the optimizer, as if it had never moved."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import torch

import ucpformat as ucp
from tests.frameworks_live.transformers.training_worker import AFTER, BEFORE
from tests.processes import launch
from ucpformat.conversion.convert import convert_checkpoint

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("megatron")]

WORKER = "tests.frameworks_live.transformers.training_worker"
PARAMETERS = "hidden=32,heads=8,kv_heads=4,ffn=48"
TOLERANCE: Final = 2e-5
"""Nats, for sums in another order; what a lost moment or a wrong step does is tens of times as much."""


def distance(losses: list[float], control: list[float]) -> float:
    assert len(losses) == len(control)
    return max(abs(one - other) for one, other in zip(losses, control, strict=True))


def test_there_and_back_with_the_optimizer(tmp_path: Path) -> None:
    launch(WORKER, ["first", str(tmp_path)], 2, timeout=280)
    report = convert_checkpoint(
        tmp_path / "fsdp.ucp",
        tmp_path / "torch_dist",
        source_format="ucp",
        destination_format="megatron",
        settings={"map": "llama-megatron", "map_parameters": PARAMETERS},
    )
    assert report.dropped == ()
    assert report.renamed["optimizers/optim"] == "common.pt#optimizer"
    launch(WORKER, ["megatron", str(tmp_path)], 4, timeout=280)
    control = torch.load(tmp_path / "control.pt", weights_only=True)
    no_moments, one_step, losses = torch.load(tmp_path / "megatron.pt", weights_only=True)
    assert distance(losses, control) < TOLERANCE
    assert distance(no_moments, control[:AFTER]) > 20 * TOLERANCE
    assert distance(one_step, control[:AFTER]) > 20 * TOLERANCE

    source = {"map": "llama-megatron:left", "map_parameters": PARAMETERS}
    for format_name in ("ucp", "dcp"):
        convert_checkpoint(
            tmp_path / "again",
            tmp_path / f"again.{format_name}",
            source_format="megatron",
            destination_format=format_name,
            source_settings=source,
        )
    with ucp.open(tmp_path / "fsdp.ucp") as before, ucp.open(tmp_path / "again.ucp") as after:
        assert set(before) == set(after)
        for atom, view in after.items():
            assert float(view["step"][...]) == BEFORE + AFTER
            assert before[atom]["value"].shape == view["value"].shape
        groups = [checkpoint.state.optimizers["optim"].groups for checkpoint in (before, after)]
        assert [set(group.atoms) for group in groups[0]] == [set(group.atoms) for group in groups[1]]
        for one, other in zip(*groups, strict=True):
            assert {key: other.options[key] for key in one.options} == dict(one.options)
    launch(WORKER, ["again", str(tmp_path)], 2, timeout=280)
    losses, no_moments, one_step = torch.load(tmp_path / "again.pt", weights_only=True)
    assert distance(losses, control[AFTER:]) < TOLERANCE
    assert distance(no_moments, control[AFTER:]) > 20 * TOLERANCE
    assert distance(one_step, control[AFTER:]) > 20 * TOLERANCE
