"""Whenever a job that saves with ``fence=`` is killed: whole checkpoints, each of the state at its step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import launch
from tests.state_dict.fenced_deaths import CALLS, STEPS

pytestmark = pytest.mark.distributed

POINTS = {"copying": 140, "at a fence": 13, "writing": 180}


@pytest.mark.parametrize(("ranks", "deaths"), [(1, 30), (2, 12)])
def test_a_job_that_is_killed_leaves_what_it_had_saved(tmp_path: Path, ranks: int, deaths: int) -> None:
    points = {what: count // ranks for what, count in POINTS.items()}
    task = {"seed": 3, "ranks": ranks, "deaths": deaths, "points": points}
    launch("tests.state_dict.fenced_deaths", [str(tmp_path), json.dumps(task)], 1)
    told = json.loads((tmp_path / "told").read_text())
    assert set(told["deaths"]) == set(CALLS)
    assert sum(told["left"].values()) == deaths
    assert len(set(told["left"]) & set(map(str, range(STEPS)))) > 1, "some died between two checkpoints"
