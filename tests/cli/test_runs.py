"""``ucp ls`` and ``ucp gc``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Ucp
from ucpformat import CheckpointManager


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    with CheckpointManager(path) as manager:
        for step, loss in ((5, 0.25), (10, 0.125), (100, float("nan"))):
            manager.save(step, {"w": np.ones(9)}, metrics={"loss": loss})
    (path / "step-7.ucp" / "packs").mkdir(parents=True)
    return path


def test_a_listing_has_steps_in_order_and_their_metrics(ucp: Ucp, run: Path) -> None:
    result = ucp("ls", run)
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["step", "state", "loss"],
        ["5", "committed", "0.25"],
        ["7", "no", "root", "document"],
        ["10", "committed", "0.125"],
        ["100", "committed"],
    ]
    (run / "step-5.ucp" / "ucp.json").write_text("{")
    assert "unreadable" in ucp("ls", run).stdout.splitlines()[1]
    found = json.loads(ucp("ls", run, "--format", "json").stdout)
    assert found["uncommitted"] == [7]
    assert found["committed"][:2] == [{"step": 5, "metrics": None}, {"step": 10, "metrics": {"loss": 0.125}}]
    assert ucp("ls", run / "none").stdout == "step  state\n"


def test_collecting_removes_what_no_option_keeps(ucp: Ucp, run: Path) -> None:
    said = ucp("gc", run, "--keep-best", 1, "--metric", "loss", "--debris-age", 0, "--dry-run")
    assert said.stdout == "would remove step-5.ucp\nwould remove step-7.ucp\nkept 2 checkpoints\n"
    assert len(list(run.iterdir())) == 4
    done = ucp("gc", run, "--keep-every", 10, "--format", "json")
    assert json.loads(done.stdout) == {"kept": [10, 100], "removed": ["step-5.ucp"], "problems": []}
    assert {path.name for path in run.iterdir()} == {"step-7.ucp", "step-10.ucp", "step-100.ucp"}
    assert ucp("gc", run, "--debris-age", 0).stdout == "removed step-7.ucp\nkept 2 checkpoints\n"


def test_what_keeps_others_from_going_is_said(ucp: Ucp, run: Path) -> None:
    next((run / "step-100.ucp" / "packs").iterdir()).unlink()
    result = ucp("gc", run, "--keep-last", 1)
    assert result.exit_code == 1
    assert result.stdout == "kept 3 checkpoints\n"
    assert result.stderr.startswith("error UCP-E-MISSING at step-100.ucp:")
    assert json.loads(ucp("gc", run, "--keep-last", 1, "--format", "json").stdout)["problems"]
    assert ucp("gc", run, "--keep-best", 1).exit_code == 1, "by no metric"


def test_a_metric_that_no_checkpoint_has_keeps_all_and_is_an_error(ucp: Ucp, run: Path) -> None:
    result = ucp("gc", run, "--keep-best", 1, "--metric", "lss")
    assert (result.exit_code, result.stdout) == (1, "kept 3 checkpoints\n")
    assert "no checkpoint has a finite metric 'lss' (they have 'loss'), so that all are kept" in result.stderr
