"""Jobs with a replica, of which trainer, replica or both are killed anywhere in a step, and that go on until they end.

Arguments: a directory, the first number of a run, and the one behind the last. Each start of a job, before it goes on,
looks whether its state is that of a job that was never stopped at that step; where the replica lives, whether it has
lost more than the step in flight, and whether it was the replica that gave the state. ``deaths-FIRST`` in the directory
has how often the trainer was killed, both, and the replica alone. The status is 1 where a job has gone wrong.
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
from tests.replay.jobs import STEPS, Job, Net, resumed, trained
from tests.replay.replica_jobs import end_replica, fork_replicas, forked
from ucpformat.replay.capture import Capture
from ucpformat.replay.replica import feed, link, process
from ucpformat.replay.replica.held_state import HeldState

TRAINER_CALLS = (
    (feed.ReplicaFeed, ("copied", "put", "_placed")),
    (link.Link, ("take", "put", "hear")),
    (link, ("send", "receive")),
    (feed, ("encoded",)),
    (Capture, ("step", "buffers", "before_step")),
    (Net, ("forward",)),
)
REPLICA_CALLS = (
    (HeldState, ("hold", "make", "content", "give")),
    (process, ("send", "receive", "send_document")),
    (os, ("open", "write", "pwrite", "pwritev", "fsync", "link", "mkdir", "rename")),
)
REPLICA_GONE = 3
"""The status of a trainer whose replica was killed before it had made a step, and that has said so."""


def begin(run: Path, point: int, *, from_replica: bool | None, full_every: int | None) -> None:
    """Recover, look, and go on until the end, or the call that kills, or until the replica was killed."""
    job, recovery = resumed(run)
    said = run.with_suffix(".steps")
    given, durable = map(int, said.read_text().split()) if said.exists() else (0, 0)
    # One that has saved the last step ends with the job, which may be killed behind that.
    may_have_ended = from_replica and recovery.checkpoint_step == STEPS
    if from_replica is not None and not may_have_ended:
        assert recovery.from_replica == from_replica, (given, recovery)
    least = given if recovery.from_replica else durable
    assert least <= recovery.step <= given + 1, (given, durable, recovery)
    assert recovery.exactness == "bitwise"
    job.require_equal(trained(recovery.step))
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.pwrite(descriptor, b"%4d %4d" % (recovery.step, recovery.checkpoint_step or 0), 0)

    class Telling:
        """Writes down which steps are done, schedule and all: those before the forward pass that was made."""

        def step(self, scaler: object) -> None:
            os.pwrite(descriptor, b"%4d %4d" % (log.steps, log.durable_step), 0)
            log.step(scaler)

    try:
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
            die_at(point, TRAINER_CALLS)
            job.train(Telling(), recovery.step, STEPS)
    except ucp.UcpError as problem:
        if problem.code != "UCP-E-RANK":
            raise
        os._exit(REPLICA_GONE)


def mortal(starts: Path, point: int) -> None:
    """What a replica does first: it says that it is there, and dies at a call."""
    with starts.open("ab") as told:
        told.write(b".")
    die_at(point, REPLICA_CALLS)


def main(directory: str, first: str, stop: str) -> None:
    torch.set_num_threads(1)
    deaths = {"trainer": 0, "both": 0, "replica": 0}
    for number in range(int(first), int(stop)):
        chance = random.Random(number)
        run, note = Path(directory) / f"run-{number}", Path(directory) / f"replica-{number}"
        from_replica: bool | None = False
        full_every = chance.choice([None, 3, 7])
        for start in range(40):
            is_mortal = start < 6 and chance.random() < 0.4
            point = chance.randint(100 if is_mortal else 1, 300) if start < 6 else 1 << 30
            its = chance.randint(1, 30) if is_mortal else 1 << 30
            starts = Path(directory) / f"starts-{number}-{start}"
            starts.touch()
            fork_replicas(note, partial(mortal, starts, its))
            status = forked(partial(begin, run, point, from_replica=from_replica, full_every=full_every))
            # One that is killed is replaced by another one, unless it has made no step.
            gone = status == REPLICA_GONE
            deaths["replica"] += max(0, starts.stat().st_size - (not gone))
            if status == 0:
                break
            at = f"run {number}, start {start}, points {point} and {its}"
            assert status == -signal.SIGKILL or (is_mortal and gone), f"{at}: {status}"
            if gone:
                from_replica = False
                continue
            is_both = status == -signal.SIGKILL and chance.random() < 0.25
            deaths["both" if is_both else "trainer"] += 1
            if is_both:
                end_replica(note)
            # One that is mortal still may die when it is asked for the state.
            from_replica = None if is_mortal and not is_both else not is_both
        job = Job()
        found = ucp.recover(run, job.model, job.optimizer, state=job.objects)
        assert (found.step, found.from_replica) == (STEPS, False), found
        job.require_equal(trained(STEPS))
    (Path(directory) / f"deaths-{first}").write_text(" ".join(map(str, deaths.values())))


if __name__ == "__main__":
    main(*sys.argv[1:])
