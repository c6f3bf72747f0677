"""`ucp log`: what a log has, what is wrong with it, and where a recovery would end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

import ucpformat as ucp
from tests.update_log.logs import ID, LogMaker
from ucpformat.cli import main
from ucpformat.model.root import LogPosition


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["log", *arguments])


def told(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--format", "json").output)


def a_run(path: Path) -> LogMaker:
    """A run with a checkpoint of step 2, and a log that goes on to step 5."""
    maker = LogMaker(path / "updates.ucplog")
    maker.epoch()
    maker.steps(0, 0, 4)
    maker.epoch(1, 3, after=0)
    maker.steps(1, 3, 5)
    with ucp.CheckpointManager(path) as manager:
        manager.save(2, {"w": np.ones((4, 3), np.float32)}, log=LogPosition(ID, 0))
    return maker


def test_it_says_what_there_is_and_where_a_recovery_ends(tmp_path: Path) -> None:
    a_run(tmp_path)
    result = run(str(tmp_path))
    assert result.exit_code == 0
    assert (
        result.output.splitlines()[-1]
        == "a recovery loads step-2.ucp, makes 3 steps again, and ends at step 5"
    )
    found = told(str(tmp_path))
    assert [(one["epoch"], one["first_step"], one["stop_step"]) for one in found["epochs"]] == [
        (0, 0, 3),
        (1, 3, 5),
    ]
    assert found["recovery"] == {
        "checkpoint": str(tmp_path / "step-2.ucp"),
        "checkpoint_step": 2,
        "step": 5,
    }
    alone = told(str(tmp_path / "updates.ucplog"))
    assert (alone["id"], alone["recovery"]) == (ID, None)


def test_a_torn_end_is_a_warning_and_a_gap_an_error(tmp_path: Path) -> None:
    maker = a_run(tmp_path)
    last = maker.path / "batches/1/1/4.batch"
    last.write_bytes(last.read_bytes()[:-1])
    result = run(str(tmp_path))
    assert result.exit_code == 0
    assert "warning: UCP-W-UNREFERENCED at batches/1/1/4.batch" in result.output
    assert "ends at step 4" in result.output
    (maker.path / "batches/1/1/3.batch").unlink()
    result = run(str(tmp_path))
    assert result.exit_code == 1
    assert "error: UCP-E-LOG" in result.output


def test_an_epoch_that_was_given_up_says_so(tmp_path: Path) -> None:
    maker = a_run(tmp_path)
    maker.epoch(2, 2, after=0)
    result = run(str(maker.path))
    assert [line.split()[-2:] for line in result.output.splitlines() if "ucp.sgd" in line][1] == [
        "given",
        "up",
    ]


def test_there_is_no_log(tmp_path: Path) -> None:
    result = run(str(tmp_path / "nothing"))
    assert result.exit_code == 1
    assert "UCP-E-NOT-FOUND" in result.output


def test_validate_knows_logs(tmp_path: Path) -> None:
    maker = a_run(tmp_path)
    for place in (tmp_path, maker.path):
        result = CliRunner().invoke(main, ["validate", str(place)])
        assert result.exit_code == 0
        assert "updates.ucplog: valid" in result.output
    damaged = maker.path / "batches/1/0/3.batch"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    for place in (tmp_path, maker.path):
        result = CliRunner().invoke(main, ["validate", str(place), "--format", "json"])
        assert result.exit_code == 1
        found = json.loads(result.output)
        assert "UCP-E-CHECKSUM" in {one["code"] for one in found.get("log", found)["problems"]}
