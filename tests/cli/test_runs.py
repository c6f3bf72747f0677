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
    listing = ucp("ls", run).stdout.splitlines()
    assert listing[1].split() == ["5", "damaged", "(UCP-E-JSON)"]
    found = json.loads(ucp("ls", run, "--format", "json").stdout)
    assert found["uncommitted"] == [7]
    broken, good = found["committed"][:2]
    assert (broken["step"], broken["metrics"], broken["problem"]["code"]) == (5, None, "UCP-E-JSON")
    assert good == {"step": 10, "metrics": {"loss": 0.125}, "problem": None}


@pytest.mark.parametrize("command", ["ls", "gc"])
def test_what_is_no_run_directory_is_refused(ucp: Ucp, run: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").touch()
    for place, says in (
        (run / "none", "nothing lies there; check the path"),
        (tmp_path / "rum", f"nothing lies there; did you mean {run}?"),
        (f"memory://{tmp_path.name}/none", "nothing lies there; check the URL"),
        (run / "step-10.ucp", "this is a checkpoint, and no run directory; look into it with `ucp inspect"),
        (tmp_path / "dcp", "this looks like a directory of torch.distributed.checkpoint; `ucp convert"),
    ):
        refused = ucp(command, place)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr.startswith(f"error UCP-E-NOT-FOUND at {place}: ")
        assert says in refused.stderr
    (tmp_path / "new").mkdir()
    assert ucp(command, tmp_path / "new").exit_code == 0, "a run that has saved nothing yet"


def test_collecting_removes_what_no_option_keeps(ucp: Ucp, run: Path) -> None:
    said = ucp("gc", run, "--keep-best", 1, "--metric", "loss", "--debris-age", 0, "--dry-run")
    assert said.stdout == "would remove step-5.ucp\nwould remove step-7.ucp\nkept 2 checkpoints\n"
    assert len(list(run.iterdir())) == 4
    done = ucp("gc", run, "--keep-every", 10, "--format", "json")
    assert json.loads(done.stdout) == {
        "kept": [10, 100],
        "removed": ["step-5.ucp"],
        "uploads": {},
        "problems": [],
    }
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
