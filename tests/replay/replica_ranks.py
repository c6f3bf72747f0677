"""Jobs of several ranks with a replica each, of which ranks and replicas are killed; what they recover is looked at."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.processes import launch
from tests.replay.replica_jobs import end_process, state_of
from tests.replay.replica_ranks_worker import RANK_GONE, REPLICA_GONE, STEPS, Plan

KINDS = (("ddp", 2), ("fsdp", 2), ("fsdp", 3), ("fsdp-tp", 4))


def _no_deaths() -> dict[str, int]:
    return dict.fromkeys(("rank", "replica", "replaced", "given up"), 0)


@dataclass
class RanksJob:
    """A job of so many ranks, of one kind of parallelism, in a directory."""

    directory: Path
    kind: str
    world: int
    deaths: dict[str, int] = field(default_factory=_no_deaths)
    is_done: bool = False

    def told(self) -> list[tuple[int, int]]:
        """Return how many steps each rank had made for certain, and how many of them were durable."""
        found = []
        for rank in range(self.world):
            note = self.directory / f"steps-{rank}"
            made, durable = map(int, note.read_text().split()) if note.exists() else (0, 0)
            found.append((made, durable))
        return found

    def start(self, **plan: Any) -> dict[str, Any]:
        """Run it to its end, or until a rank is killed, or a replica is not replaced; return what was recovered.

        ``plan`` is the rest of a `Plan`.
        """
        made, durable = zip(*self.told(), strict=True)
        for one in self.directory.glob("recovery-*"):
            one.unlink()
        arguments = [str(self.directory), json.dumps(Plan(self.kind, **plan)._asdict())]
        failure = ""
        try:
            launch("tests.replay.replica_ranks_worker", arguments, self.world)
        except RuntimeError as reason:
            failure = str(reason)
        self.is_done = not failure
        victim = plan.get("victim", -1)
        ends = [f"rank {victim} of {self.world} ended with status -9", f"ended with status {RANK_GONE}"]
        killed = victim >= 0 and any(one in failure for one in ends)
        gave_up = f"ended with status {REPLICA_GONE}" in failure
        assert not failure or killed or (gave_up and (plan.get("at_steps") or plan.get("after"))), failure
        self.deaths["rank"] += killed
        self.deaths["given up"] += gave_up
        found = [json.loads(one.read_text()) for one in sorted(self.directory.glob("recovery-*"))]
        assert len(found) == self.world, failure
        assert all(one == found[0] for one in found), found
        if found[0]["from_replica"]:
            assert min(made) <= found[0]["step"] <= min(made) + 1, (made, found[0])
        assert max(durable) <= found[0]["step"], (durable, found[0])
        return dict(found[0])

    def replicas(self, rank: int) -> list[int]:
        """Return the processes that were replicas of a rank, one after another."""
        note = self.directory / f"replica-{rank}"
        return list(map(int, note.read_text().split())) if note.exists() else []

    def warned(self, rank: int) -> list[str]:
        """Return the warnings of a rank that has come to its end."""
        return list(json.loads((self.directory / f"warned-{rank}").read_text()))

    def living(self) -> int:
        """Return how many replicas live, of all that there were."""
        numbers = [one for rank in range(self.world) for one in self.replicas(rank)]
        return sum(state_of(one) not in ("", "Z") for one in numbers)

    def kill_replica(self, rank: int) -> None:
        """Kill the replica of a rank."""
        end_process(self.replicas(rank)[-1])
        self.deaths["replica"] += 1

    def end(self) -> None:
        """Kill the replicas that are left."""
        for rank in range(self.world):
            for one in self.replicas(rank):
                if state_of(one) not in ("", "Z"):
                    end_process(one)


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
            found = job.start(victim=victim, point=chance.randint(1, 150))
            assert expected is None or found["from_replica"] == expected, found
            if job.is_done:
                break
            expected = chance.random() < 0.8
            if not any(map(job.replicas, range(job.world))):
                expected = None
            elif not expected:
                job.kill_replica(chance.randrange(job.world))
            elif not any(made for made, _ in job.told()):
                expected = None
        found = job.start() if found["step"] != STEPS else found
        assert found["step"] <= STEPS
    finally:
        job.end()
    return job.deaths


def replaced_at_random(directory: Path, number: int) -> dict[str, int]:
    """Kill replicas of a job of several ranks while it trains, at a step or at any time, and sometimes a rank as well.

    Raises:
        AssertionError: where it went on from a state that it should not have, or has left a replica.
    """
    chance = random.Random(number)
    job = RanksJob(directory, *KINDS[number % len(KINDS)])
    steps = 40
    try:
        for start in range(4):
            at_steps: dict[str, list[int]] = {}
            after: dict[str, list[float]] = {}
            for rank in chance.sample(range(job.world), chance.choice([1, 1, 1, 2])):
                if chance.random() < 0.7:
                    at_steps[str(rank)] = sorted(chance.sample(range(4, steps), chance.randint(1, 3)))
                else:
                    after[str(rank)] = [chance.uniform(3, 7), chance.uniform(0, 7)]
            victim = chance.randrange(job.world) if chance.random() < 0.3 else -1
            if start == 3:
                at_steps, after, victim = {}, {}, -1
            point = chance.randint(50, 700)
            before = [len(job.replicas(rank)) for rank in range(job.world)]
            job.start(
                steps=steps,
                victim=victim,
                point=point,
                at_steps=at_steps,
                after=after,
                pause=chance.choice([0, 0.05]),
            )
            job.deaths["replaced"] += max(
                len(job.replicas(rank)) - count - 1 for rank, count in enumerate(before)
            )
            if job.is_done:
                assert job.living() == 0
                break
        kills = job.directory / "kills"
        job.deaths["replica"] = len(kills.read_text()) if kills.exists() else 0
        found = job.start(steps=steps)
        assert (found["step"], found["from_replica"]) == (steps, False)
    finally:
        job.end()
    return job.deaths
