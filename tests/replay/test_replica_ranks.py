"""All ranks of a job that was killed go on from their replicas, at one step, or all from the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay.replica_ranks import RanksJob
from tests.replay.replica_ranks_worker import STEPS
from ucpformat.replay.replica.spans import Span, common_step

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]


def test_ranks_of_every_kind_go_on_from_memory(tmp_path: Path) -> None:
    job = RanksJob(tmp_path, "fsdp-tp", 4)
    try:
        job.start(victim=3, point=60)
        found = job.start()
        assert (found["from_replica"], found["faults"]) == (True, [])
        assert 0 < found["step"] == found["checkpoint_step"] < STEPS
    finally:
        job.end()


def test_all_ranks_go_on_from_memory_at_one_step_or_from_the_disk(tmp_path: Path) -> None:
    """``python -m tests.campaigns.update_log`` has more kinds of jobs, killed at random."""
    job = RanksJob(tmp_path, "ddp", 2)
    try:
        assert job.start(victim=1, point=60) == {
            "step": 0,
            "checkpoint_step": None,
            "from_replica": False,
            "faults": [],
        }
        found = job.start(victim=0, point=25)
        assert (found["from_replica"], found["faults"]) == (True, [])
        assert 0 < found["step"] == found["checkpoint_step"] < STEPS
        job.kill_replica(1)
        again = job.start()
        assert (again["from_replica"], again["faults"]) == (False, ["UCP-E-RANK"])
        assert found["step"] <= again["step"] == again["checkpoint_step"]
        found = job.start()
        assert (found["step"], found["from_replica"], found["faults"]) == (STEPS, False, [])
    finally:
        job.end()


def test_a_step_that_not_all_ranks_have_is_given_by_none() -> None:
    assert common_step([Span(3, 4), Span(3, 3)]) == 3
    assert common_step([Span(3, 4), Span(4, 5)]) == 4
    assert common_step([Span(3, 4), Span(5, 6)]) is None
