"""Jobs of several ranks with a replica each, of which ranks and replicas are killed; what they recover is looked at."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.processes import launch
from tests.replay.replica_jobs import end_replica
from tests.replay.replica_ranks_worker import STEPS

KINDS = (("ddp", 2), ("fsdp", 2), ("fsdp", 3), ("fsdp-tp", 4))


@dataclass
class RanksJob:
    """A job of so many ranks, of one kind of parallelism, in a directory."""

    directory: Path
    kind: str
    world: int
    deaths: dict[str, int] = field(default_factory=lambda: {"rank": 0, "replica": 0})

    def told(self) -> list[int]:
        """Return how many steps each rank had made for certain."""
        found = [self.directory / f"steps-{rank}" for rank in range(self.world)]
        return [int(one.read_text()) if one.exists() else 0 for one in found]

    def start(self, victim: int = -1, point: int = 0) -> dict[str, Any]:
        """Run it to its end, or until a rank is killed at a call; return what each rank has recovered."""
        before = self.told()
        for one in self.directory.glob("recovery-*"):
            one.unlink()
        arguments = [str(self.directory), self.kind, str(victim), str(point)]
        failure = ""
        try:
            launch("tests.replay.replica_ranks_worker", arguments, self.world)
        except RuntimeError as reason:
            failure = str(reason)
            self.deaths["rank"] += 1
        assert not failure or f"rank {victim} of {self.world} ended with status -9" in failure, failure
        found = [json.loads(one.read_text()) for one in sorted(self.directory.glob("recovery-*"))]
        assert len(found) == self.world
        assert all(one == found[0] for one in found), found
        if found[0]["from_replica"]:
            assert min(before) <= found[0]["step"] <= min(before) + 1, (before, found[0])
        return dict(found[0])

    def kill_replica(self, rank: int) -> None:
        """Kill the replica of a rank."""
        end_replica(self.directory / f"replica-{rank}")
        self.deaths["replica"] += 1

    def end(self) -> None:
        """Kill the replicas that are left."""
        for rank in range(self.world):
            end_replica(self.directory / f"replica-{rank}")


def killed_at_random(directory: Path, number: int) -> dict[str, int]:
    """Kill ranks, and sometimes a replica after them, until a job has come to its end; return how many died.

    Raises:
        AssertionError: where a job went on from a state that it should not have.
    """
    chance = random.Random(number)
    job = RanksJob(directory, *KINDS[number % len(KINDS)])
    expected: bool | None = False
    try:
        for start in range(5):
            is_last = start == 4
            victim = -1 if is_last else chance.randrange(job.world)
            died = job.deaths["rank"]
            found = job.start(victim, chance.randint(1, 150))
            assert expected is None or found["from_replica"] == expected, found
            if job.deaths["rank"] == died:
                break
            expected = chance.random() < 0.8
            if not expected:
                job.kill_replica(chance.randrange(job.world))
            elif job.told() == [0] * job.world:
                expected = None
        found = job.start() if found["step"] != STEPS else found
        assert found["step"] <= STEPS
    finally:
        job.end()
    return job.deaths
