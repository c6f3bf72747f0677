"""A job whose state a process beside it holds as well, and goes on from there when it was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import launch
from tests.replay import replica_cases, replica_job_cases

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]


def test_a_job_that_is_killed_loses_at_most_the_step_in_flight(tmp_path: Path) -> None:
    """``python -m tests.campaigns.update_log`` has more of them."""
    launch("tests.replay.replica_worker", [str(tmp_path), "0", "2"], 1)
    trainer, both, replica = map(int, (tmp_path / "deaths-0").read_text().split())
    assert trainer > 2
    assert both > 0
    assert replica > 0


@pytest.mark.parametrize("name", replica_cases.CASES)
def test_a_job_with_a_replica(tmp_path: Path, name: str) -> None:
    launch("tests.replay.replica_cases", [str(tmp_path), name], 1)


@pytest.mark.parametrize("name", replica_job_cases.CASES)
def test_every_kind_of_job_has_the_same_state_in_its_replica(tmp_path: Path, name: str) -> None:
    launch("tests.replay.replica_job_cases", [str(tmp_path), name], 1)
