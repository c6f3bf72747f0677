"""Jobs with a replica, killed anywhere in a step, that go on from the replica's memory until they are through.

Arguments: a directory, the first number of a run, and the one behind the last. Each start of a job, before it goes on,
looks whether it has lost more than the step in flight, and whether its state is that of a job that was never stopped;
where the replica was killed as well, whether it has come to a checkpoint. The status is 1 where one has not.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from functools import partial
from pathlib import Path

import torch

import ucpformat as ucp
from tests.processes import die_at
from tests.replay.jobs import STEPS, Job, Net
from tests.replay.replica_jobs import end_replica, fork_replicas, forked, reached
from ucpformat.replay.capture import Capture
from ucpformat.replay.replica import feed

CALLS = (
    (feed.ReplicaFeed, ("copied", "put", "_taken", "_placed", "_heard")),
    (feed, ("send", "receive", "encoded")),
    (Capture, ("step", "buffers", "before_step")),
    (Net, ("forward",)),
)


def begin(run: Path, point: int, *, from_replica: bool | None, full_every: int | None) -> None:
    """Recover, look, and go on until the end, or the call that kills."""
    torch.manual_seed(2)
    state = torch.get_rng_state()
    job = Job()
    recovery = ucp.recover(run, job.model, job.optimizer, state=job.objects)
    if recovery.step == 0:
        torch.set_rng_state(state)
    said = run.with_suffix(".steps")
    given = int(said.read_text()) if said.exists() else 0
    if from_replica is not None:
        assert recovery.from_replica == from_replica, (given, recovery)
    if recovery.from_replica:
        assert given <= recovery.step <= given + 1, (given, recovery)
    assert recovery.exactness == "bitwise"
    job.require_equal(reached(recovery.step))
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.pwrite(descriptor, b"%d" % recovery.step, 0)

    class Telling:
        """Writes down which steps are done, schedule and all: those before the forward pass that was made."""

        def step(self, scaler: object) -> None:
            os.pwrite(descriptor, b"%d" % log.steps, 0)
            log.step(scaler)

    with ucp.UpdateLog(
        run,
        job.model,
        job.optimizer,
        state=job.objects,
        after=recovery,
        replica=ucp.Replica(linger=30),
        full_every=full_every,
        check_every=3,
        pending_bytes=1,
    ) as log:
        run.with_suffix(".begun").touch()
        die_at(point, CALLS)
        job.train(Telling(), recovery.step, STEPS)


def main(directory: str, first: str, stop: str) -> None:
    torch.set_num_threads(1)
    deaths = {"trainer": 0, "both": 0}
    for number in range(int(first), int(stop)):
        chance = random.Random(number)
        run, note = Path(directory) / f"run-{number}", Path(directory) / f"replica-{number}"
        fork_replicas(note)
        from_replica: bool | None = False
        full_every = chance.choice([None, 3, 7])
        for start in range(40):
            point = chance.randint(1, 240) if start < 6 else 1 << 30

            act = partial(begin, run, point, from_replica=from_replica, full_every=full_every)
            status = forked(act)
            if status != -signal.SIGKILL:
                assert status == 0, f"run {number}, start {start}, point {point}: {status}"
                break
            from_replica = chance.random() < 0.75
            deaths["trainer" if from_replica else "both"] += 1
            if not from_replica:
                end_replica(note)
        job = Job()
        found = ucp.recover(run, job.model, job.optimizer, state=job.objects)
        assert (found.step, found.from_replica) == (STEPS, False), found
        job.require_equal(reached(STEPS))
    (Path(directory) / f"deaths-{first}").write_text(f"{deaths['trainer']} {deaths['both']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
