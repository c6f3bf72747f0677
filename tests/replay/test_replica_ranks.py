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


@pytest.mark.parametrize(
    ("kind", "world", "at_steps"),
    [
        # Two at once, and behind the last step.
        ("ddp", 2, {"0": [5], "1": [5, 20]}),
        ("fsdp-tp", 4, {"2": [5]}),
    ],
)
def test_replicas_are_replaced_while_ranks_train(
    tmp_path: Path, kind: str, world: int, at_steps: dict[str, list[int]]
) -> None:
    """``python -m tests.campaigns.update_log`` kills them at random, also while they are replaced."""
    job = RanksJob(tmp_path, kind, world)
    times = len({step for steps in at_steps.values() for step in steps})
    try:
        job.start(steps=21, at_steps=at_steps)
        assert job.is_done
        assert [len(job.replicas(rank)) for rank in range(world)] == [1 + times] * world
        for rank in range(world):
            # Of a replica that is gone at a step the next one tells the others.
            steps = [step + 1 for step in at_steps.get(str(rank), [])]
            said = job.warned(rank)
            assert len(said) == len(steps), said
            for one, step in zip(said, steps, strict=True):
                assert one.endswith(f"another one has the state of step {step} from now on")
        assert job.living() == 0
        found = job.start(steps=21)
        assert (found["step"], found["from_replica"], found["faults"]) == (21, False, [])
    finally:
        job.end()


def test_a_rank_that_is_killed_after_replicas_were_replaced_goes_on_from_the_new_ones(tmp_path: Path) -> None:
    job = RanksJob(tmp_path, "fsdp", 2)
    try:
        job.start(steps=40, at_steps={"1": [4]}, victim=0, point=220)
        assert not job.is_done
        assert [len(job.replicas(rank)) for rank in range(2)] == [2, 2]
        assert job.living() == 2
        found = job.start(steps=40)
        assert (found["from_replica"], found["faults"]) == (True, [])
        assert 5 < found["step"] == found["checkpoint_step"] < 40
    finally:
        job.end()


def test_a_step_that_not_all_ranks_have_is_given_by_none() -> None:
    assert common_step([Span(3, 4), Span(3, 3)]) == 3
    assert common_step([Span(3, 4), Span(4, 5)]) == 4
    assert common_step([Span(3, 4), Span(5, 6)]) is None
