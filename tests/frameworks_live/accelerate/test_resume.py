"""The example scripts: stopped, and gone on with by another number of processes, with the losses of a whole run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ucpformat as ucp
from tests.processes import Ranks, launch_in_turn
from ucpformat import validate

WORKER = "tests.frameworks_live.accelerate.worker"
TOLERANCE = 1e-6


def losses(path: Path) -> dict[int, float]:
    return {int(step): loss for step, loss in json.loads(path.read_text()).items()}


def run(
    script: str, folder: Path, whole: list[str], parts: list[tuple[list[str], int]]
) -> list[dict[int, float]]:
    """A run without a stop by one process, and parts of another by so many: the losses of all."""
    jobs = [Ranks([script, str(folder / "whole"), *whole], 1)]
    jobs += [Ranks([script, str(folder / "parts"), *arguments], world) for arguments, world in parts]
    launch_in_turn(WORKER, jobs, timeout=280)
    names = [f"whole.{whole[-1]}.json", *(f"parts.{arguments[-1]}.json" for arguments, _ in parts)]
    return [losses(folder / name) for name in names]


def check(whole: dict[int, float], parts: list[dict[int, float]], *, exact: int) -> None:
    """All losses of the parts are those of the whole, bit by bit in the part ``exact`` of as many processes."""
    assert sorted({step for part in parts for step in part}) == sorted(whole)
    for number, part in enumerate(parts):
        for step, loss in part.items():
            assert loss == (whole[step] if number == exact else pytest.approx(whole[step], abs=TOLERANCE)), (
                step
            )


def test_accelerate(tmp_path: Path) -> None:
    """Steps, then how often to save: 1 process, then 2, then 1 again, which a whole run of 1 is compared with."""
    # The last number names the file of losses, so that it differs.
    whole, *parts = run(
        "accelerate_loop",
        tmp_path,
        ["24", "8"],
        [(["8", "8"], 1), (["16", "4"], 2), (["24", "2"], 1)],
    )
    check(whole, parts, exact=0)
    assert [min(part) for part in parts] == [0, 8, 16]
    path = tmp_path / "parts" / "step-24.ucp"
    assert list(validate(path)) == []
    with ucp.open(path) as checkpoint:
        assert set(checkpoint["0.weight"]) == {"value", "exp_avg", "exp_avg_sq", "step"}


def test_trainer(tmp_path: Path) -> None:
    """It stops after a checkpoint, of which it knows no more than that it was the last."""
    whole, *parts = run(
        "hugging_face_trainer",
        tmp_path,
        ["20", "4", "20"],
        [(["20", "4", "8"], 1), (["20", "4", "16"], 2), (["20", "4", "20"], 1)],
    )
    check({step: loss for step, loss in whole.items() if step <= 8}, [parts[0]], exact=0)
    # The Trainer's own log goes on from that of the checkpoint.
    check(whole, [parts[2]], exact=-1)
    assert [
        entry for entry in sorted((tmp_path / "parts").iterdir()) if entry.name.startswith("checkpoint")
    ] == []
    kept = sorted(path.name for path in (tmp_path / "parts" / "ucp").glob("*.ucp"))
    assert kept == ["step-16.ucp", "step-20.ucp"]
    assert list(validate(tmp_path / "parts" / "ucp" / "step-20.ucp")) == []
