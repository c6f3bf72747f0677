"""What may happen to a job with a replica; arguments: a directory, and the name of the case."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import ucpformat as ucp
from tests.replay.jobs import Job, recovered, trained
from tests.replay.replica_jobs import end_replica, fork_replicas, forked, state_of
from ucpformat.cli import main as cli


def log_of(run: Path, job: Job, **options: Any) -> ucp.UpdateLog:
    options = {"replica": ucp.Replica(linger=30), "full_every": None} | options
    return ucp.UpdateLog(run, job.model, job.optimizer, state=job.objects, **options)


def killed_at(run: Path, stop: int, **options: Any) -> None:
    """Train in a process that is killed behind some steps, the last of which is in flight."""

    def act() -> None:
        job = Job()
        torch.manual_seed(2)
        job.train(log_of(run, job, **options), 0, stop)
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(act) == -signal.SIGKILL


def until(met: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not met():
        assert time.monotonic() < limit, "in vain"
        time.sleep(0.005)


def refused(code: str, act: Callable[[], object]) -> str:
    with pytest.raises(ucp.UcpError, match=code) as found:
        act()
    return found.value.message


def a_real_process(run: Path, note: Path) -> None:
    """It is started anew, and is no fork that has everything; its memory is bounded."""

    def trained_to(
        stop: int, log: ucp.UpdateLog | None, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        torch.manual_seed(4)
        for _ in range(stop):
            for one in model.parameters():
                one.grad = torch.randn_like(one)
            optimizer.step() if log is None else log.step()

    def made() -> tuple[nn.Linear, torch.optim.Optimizer]:
        torch.manual_seed(3)
        model = nn.Linear(1024, 4096)
        return model, torch.optim.AdamW(model.parameters())

    def act() -> None:
        model, optimizer = made()
        log = ucp.UpdateLog(run, model, optimizer, replica=True, full_every=2, pending_bytes=1)
        process = log._writer.process  # type: ignore[union-attr]
        before = resident(process, "VmRSS") - largest
        trained_to(12, log, model, optimizer)
        note.write_text(str(process))
        note.with_suffix(".bytes").write_text(str(resident(process, "VmHWM") - before))
        os.kill(os.getpid(), signal.SIGKILL)

    mib = 1 << 20
    state, largest, ring = 48 * mib, 16 * mib, 18 * mib
    assert forked(act) == -signal.SIGKILL
    peak = int(note.with_suffix(".bytes").read_text())
    # What the optimizer and the save need for a moment comes to a few of the largest tensors, when they meet.
    assert state < peak < 2 * state + ring + 6 * largest + 16 * mib, peak / mib
    model, optimizer = made()
    recovery = ucp.recover(run, model, optimizer)
    assert (recovery.step, recovery.checkpoint_step, recovery.from_replica) == (12, 12, True)
    end_replica(note)
    other, its = made()
    trained_to(12, None, other, its)
    assert torch.equal(model.weight, other.weight)
    again, its = made()
    recovery = ucp.recover(run, again, its)
    assert (recovery.step, recovery.from_replica) == (12, False)
    assert torch.equal(again.weight, other.weight)


def a_zombie(run: Path, note: Path) -> None:
    """UCP-W-039: a process that was taken for dead feeds no replica that another has recovered from."""
    old = Job()
    torch.manual_seed(2)
    log = log_of(run, old)
    old.train(log, 0, 5)
    new, recovery = recovered(run)
    assert (recovery.step, recovery.from_replica) == (4, True)
    first = int(note.read_text())
    with log_of(run, new, after=recovery) as other:
        with torch.random.fork_rng():
            refused("UCP-E-FENCED", lambda: old.train(log, 5, 24))
            refused("UCP-E-RANK", log.close)
        assert state_of(first) in ("", "Z")
        new.train(other, 4, 7)
    job, recovery = recovered(run)
    assert recovery.step == 7
    job.require_equal(trained(7))


def two_recoveries(run: Path, note: Path) -> None:
    """Both get the state, and one goes on; the replica that they have it from ends."""
    killed_at(run, 6)
    first, second = recovered(run), recovered(run)
    old = int(note.read_text())
    for job, recovery in (first, second):
        assert (recovery.step, recovery.from_replica) == (5, True)
        job.require_equal(trained(5))
    with log_of(run, first[0], after=first[1]) as log:
        refused("UCP-E-FENCED", lambda: log_of(run, second[0], after=second[1]))
        until(lambda: state_of(old) in ("", "Z"))
        with torch.random.fork_rng():
            recovered(run)
        first[0].train(log, 5, 7)


def the_replica_is_killed(run: Path, note: Path) -> None:
    """Another one takes its place at the next step; where that has made none and is killed, the trainer says so."""
    job = Job()
    torch.manual_seed(2)
    log = log_of(run, job, full_every=3)
    job.train(log, 0, 7)
    first = int(note.read_text())
    end_replica(note)
    with pytest.warns(RuntimeWarning, match="another one has the state of step 7"):
        job.train(log, 7, 9)
    assert int(note.read_text()) != first
    log.flush()
    assert log.durable_step == 9
    with torch.random.fork_rng():
        other, recovery = recovered(run)
    assert (recovery.step, recovery.from_replica) == (9, True)
    other.require_equal(trained(9))
    end_replica(note)
    with pytest.warns(RuntimeWarning, match="is gone"):
        log.full()
    end_replica(note)
    assert "is gone" in refused("UCP-E-RANK", lambda: job.train(log, 9, 11))
    refused("UCP-E-RANK", log.close)
    job, recovery = recovered(run)
    assert (recovery.step, recovery.from_replica) == (9, False)
    job.require_equal(trained(9))


def a_look(run: Path, note: Path) -> None:
    """``ucp recover --dry-run`` says what a replica has, and takes nothing from it."""

    def lines() -> list[str]:
        return (
            CliRunner()
            .invoke(cli, ["recover", str(run), "--dry-run"], catch_exceptions=False)
            .output.splitlines()
        )

    killed_at(run, 6)
    found = "the replica of this machine has the state in memory: a recovery takes step 5 from it"
    assert lines()[:2] == lines()[:2] == [found, "otherwise:"]
    said = CliRunner().invoke(cli, ["recover", str(run), "--dry-run", "--format", "json"]).output
    assert json.loads(said)["replicas"] == {"ranks": 1, "found": [0], "step": 5}
    _, recovery = recovered(run)
    assert (recovery.step, recovery.from_replica) == (5, True)
    end_replica(note)
    assert lines()[0] == "a recovery loads step-5.ucp, and ends at step 5"


def nobody_comes(run: Path, note: Path) -> None:
    """A replica ends by itself, and its last checkpoint is there."""
    killed_at(run, 6, replica=ucp.Replica(linger=0.0))
    until(lambda: state_of(int(note.read_text())) in ("", "Z"))
    job, recovery = recovered(run)
    assert (recovery.step, recovery.from_replica) == (5, False)
    job.require_equal(trained(5))


def another_model(run: Path, note: Path) -> None:
    """Nothing of it is changed; and a run of another log has another replica."""
    killed_at(run, 4)
    model = nn.Linear(3, 3)
    before = model.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters())
    refused("UCP-E-MISMATCH", lambda: ucp.recover(run, model, optimizer))
    other = Job()
    names = {name: one.clone() for name, one in other.bits().items()}
    sgd = torch.optim.SGD(other.groups(), lr=1e-2)
    refused("UCP-E-MISMATCH", lambda: ucp.recover(run, other.model, sgd))
    assert torch.equal(model.weight, before)
    assert all(torch.equal(one, names[name]) for name, one in other.bits().items())
    assert ucp.recover(run.with_name("other"), other.model, other.optimizer) == ucp.Recovery()
    _, recovery = recovered(run)
    assert (recovery.step, recovery.from_replica) == (3, True)
    end_replica(note)


def changed_outside(run: Path, note: Path) -> None:
    """What is changed outside of the optimizer is noticed at the next check."""
    del note
    job = Job()
    log = log_of(run, job, check_every=2)
    job.train(log, 0, 2)
    with torch.no_grad():
        job.model.head.weight.add_(1)
    message = refused("UCP-E-LOG", lambda: job.train(log, 2, 9))
    assert "outside of the optimizer" in message
    refused("UCP-E-RANK", log.close)


def a_full_ring(run: Path, note: Path) -> None:
    """The trainer waits where the replica does not keep up, and goes on when it does."""
    said = run.with_suffix(".steps")
    told = os.open(said, os.O_WRONLY | os.O_CREAT)

    class Telling:
        def __init__(self, log: ucp.UpdateLog) -> None:
            self._log = log

        def step(self, scaler: object) -> None:
            self._log.step(scaler)
            os.pwrite(told, b"%4d" % self._log.steps, 0)  # in place: a reader never meets an empty file

    def steps() -> int:
        return int(said.read_text() or 0) if said.exists() else 0

    def act() -> None:
        job = Job()
        torch.manual_seed(2)
        with log_of(run, job, pending_bytes=1) as log:
            os.kill(int(note.read_text()), signal.SIGSTOP)
            for _ in range(400):
                job.train(Telling(log), 5, 6)

    child = os.fork()
    if child == 0:
        os._exit(0 if not forked(act) else 1)
    until(lambda: steps() > 0 and state_of(int(note.read_text())) == "T")
    reached = -1
    while reached != steps():
        reached = steps()
        time.sleep(0.5)
    assert 0 < reached < 400
    os.kill(int(note.read_text()), signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0
    assert steps() == 400


def resident(process: int, name: str) -> int:
    """A figure of the memory of a process, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


CASES = {
    case.__name__: case
    for case in (
        a_real_process,
        a_zombie,
        two_recoveries,
        the_replica_is_killed,
        nobody_comes,
        another_model,
        changed_outside,
        a_look,
        a_full_ring,
    )
}


def main(directory: str, name: str) -> None:
    torch.set_num_threads(1)
    run, note = Path(directory) / "run", Path(directory) / "replica"
    if name != "a_real_process":
        fork_replicas(note)
    CASES[name](run, note)


if __name__ == "__main__":
    main(*sys.argv[1:])
