"""The example script: engines stopped, and gone on with by other numbers of processes, beside a whole run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ucpformat as ucp
from tests.processes import Ranks, launch, launch_in_turn
from ucpformat import validate

WORKER = "tests.frameworks_live.deepspeed.example_worker"
KINDS = [(0, 32), (1, 32), (1, 16), (2, 16)]
"""Stages of ZeRO, and bits of a parameter."""


def test_engines_go_on_on_other_numbers_of_processes(tmp_path: Path) -> None:
    """2 processes, twice, then 4, then 1."""
    names = [f"zero{stage}-{bits}" for stage, bits in KINDS]

    def jobs(folder: str, steps: int) -> list[str]:
        return [
            f"{tmp_path / folder / name}:{steps}:6:{stage}:{bits}"
            for name, (stage, bits) in zip(names, KINDS, strict=True)
        ]

    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    launch_in_turn(
        WORKER,
        [
            Ranks([*jobs("whole", 24), *jobs("parts", 6), *jobs("parts", 12)], 2),
            Ranks(jobs("parts", 18), 4),
            Ranks(jobs("parts", 24), 1),
        ],
        timeout=560,
    )
    for name, (_, bits) in zip(names, KINDS, strict=True):
        whole = losses(tmp_path / "whole" / f"{name}.24.json")
        found: list[int] = []
        for stop, exact in ((6, True), (12, True), (18, False), (24, False)):
            part = losses(tmp_path / "parts" / f"{name}.{stop}.json")
            found += part
            for step, loss in part.items():
                near = pytest.approx(whole[step], abs=1e-5 if bits == 32 else 1e-2)
                assert loss == (whole[step] if exact else near), f"step {step} of {name}"
        assert found == list(range(24))
        path = tmp_path / "parts" / name / "step-24.ucp"
        assert list(validate(path)) == []
        with ucp.open(path) as checkpoint:
            slots = {"value", "exp_avg", "exp_avg_sq", "step"} | ({"master"} if bits == 16 else set())
            assert set(checkpoint["0.weight"]) == slots


def test_the_block_of_the_guide(tmp_path: Path) -> None:
    launch("tests.frameworks_live.deepspeed.guide_worker", [str(tmp_path)], 2)


def losses(path: Path) -> dict[int, float]:
    return {int(step): loss for step, loss in json.loads(path.read_text()).items()}
