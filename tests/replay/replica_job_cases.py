"""Jobs of several kinds with a replica, and signals and disks that fail; arguments: a directory, and the case."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ucpformat as ucp
from tests.replay.jobs import Job, recovered, trained
from tests.replay.replica_cases import killed_at, log_of, refused, until
from tests.replay.replica_jobs import end_replica, fork_replicas, forked, state_of
from ucpformat.replay.replica import wire

Made = tuple[nn.Module, torch.optim.Optimizer]


def bits_of(made: Made) -> Iterator[torch.Tensor]:
    model, optimizer = made
    yield from model.state_dict().values()
    for states in optimizer.state_dict()["state"].values():
        yield from (torch.as_tensor(one) for one in states.values())


def same_as_without(run: Path, note: Path, make: Callable[[], Made], train: Callable[..., None]) -> None:
    """Kill a job with a replica, compare what comes from memory and from the disk with the job that has none."""

    def act() -> None:
        model, optimizer = make()
        log = ucp.UpdateLog(run, model, optimizer, replica=True, full_every=3, **options())
        train(model, log.step, 8)
        os.kill(os.getpid(), signal.SIGKILL)

    def options() -> dict[str, Any]:
        compressor = getattr(train, "compressor", None)
        return {} if compressor is None else {"compressor": compressor}

    assert forked(act) == -signal.SIGKILL
    plain = make()
    compressor = getattr(train, "compressor", None)

    def step() -> None:
        for one in plain[0].parameters():
            if compressor is not None and one.grad is not None:
                compressor.compress(one.grad)
        plain[1].step()

    train(plain[0], step, 8)
    for is_alive in (True, False):
        found = make()
        recovery = ucp.recover(run, *found)
        assert (recovery.step, recovery.from_replica) == (8, is_alive)
        assert all(map(torch.equal, bits_of(found), bits_of(plain)))
        end_replica(note)


def rows(model: nn.Module, step: Callable[[], object], stop: int) -> None:
    """Train on integers, each of which is a row of an embedding."""
    for number in range(stop):
        model.zero_grad()
        data = torch.randint(0, 9, (3, 4), generator=torch.Generator().manual_seed(number))
        model(data).square().mean().backward()
        step()


def sparse_gradients(run: Path, note: Path) -> None:
    def make() -> Made:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(9, 5, sparse=True))
        return model, torch.optim.Adagrad(model.parameters(), lr=0.1)

    same_as_without(run, note, make, rows)


class Tied(nn.Module):
    """An embedding and a head that are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.head = nn.Linear(5, 9)
        self.head.weight = self.embed.weight

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.embed(data))
        return found


def tied_parameters(run: Path, note: Path) -> None:
    def make() -> tuple[Tied, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = Tied()
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    same_as_without(run, note, make, rows)
    model, optimizer = make()
    ucp.recover(run, model, optimizer)
    assert model.head.weight is model.embed.weight


def a_compressor(run: Path, note: Path) -> None:
    def make() -> Made:
        torch.manual_seed(1)
        model = Tied()
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(model: nn.Module, step: Callable[[], object], stop: int) -> None:
        rows(model, step, stop)

    train.compressor = ucp.TopK(0.1)  # type: ignore[attr-defined]
    same_as_without(run, note, make, train)


def increments(run: Path, note: Path) -> None:
    """Checkpoints that share what has not changed, by the replica's manager."""
    killed_at(run, 9, replica=ucp.Replica(linger=30, incremental=True), full_every=2)
    for is_alive in (True, False):
        job, recovery = recovered(run)
        assert (recovery.step, recovery.from_replica) == (8, is_alive)
        job.require_equal(trained(8))
        end_replica(note)
    assert not any(ucp.validate(one) for one in run.glob("step-*.ucp"))


def the_trainer_is_terminated(run: Path, note: Path) -> None:
    def act() -> None:
        job = Job()
        torch.manual_seed(2)
        job.train(log_of(run, job), 0, 6)
        os.kill(os.getpid(), signal.SIGTERM)

    assert forked(act) == -signal.SIGTERM
    job, recovery = recovered(run)
    assert (recovery.step, recovery.from_replica) == (5, True)
    job.require_equal(trained(5))
    end_replica(note)


def the_replica_is_terminated(run: Path, note: Path) -> None:
    """It saves a checkpoint of the last step that it has, and another one takes its place."""
    job = Job()
    torch.manual_seed(2)
    log = log_of(run, job)
    job.train(log, 0, 6)
    first = int(note.read_text())
    os.kill(first, signal.SIGTERM)
    until(lambda: state_of(first) in ("", "Z"))
    assert max(ucp.CheckpointManager(run).steps()) == 5
    with pytest.warns(RuntimeWarning, match="is gone"):
        job.train(log, 6, 8)
    log.close()
    with torch.random.fork_rng():
        job, recovery = recovered(run)
    assert (recovery.step, recovery.from_replica) == (8, False)
    job.require_equal(trained(8))


def limited() -> None:
    """Let this process write no file of more than a byte, as if the disk were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))


def a_full_disk(run: Path, note: Path) -> None:
    """The trainer is told of a save that failed, once, and the state in memory is there."""
    job = Job()
    torch.manual_seed(2)
    fork_replicas(note, limited)
    log = log_of(run, job)
    job.train(log, 0, 4)
    message = refused("UCP-E-STORE", log.flush)
    assert "the replica failed" in message
    assert log.durable_step == 0
    job.train(log, 4, 6)
    other, recovery = recovered(run)
    assert (recovery.step, recovery.checkpoint_step, recovery.from_replica) == (5, None, True)
    other.require_equal(trained(5))
    fork_replicas(note)
    with log_of(run, other, after=recovery) as later:
        other.train(later, 5, 7)
    with torch.random.fork_rng():
        again, recovery = recovered(run)
    assert (recovery.step, recovery.from_replica) == (7, False)
    again.require_equal(trained(7))


def a_full_disk_in_training(run: Path, note: Path) -> None:
    """Who catches that, and makes the step again, has lost none."""
    job = Job()
    torch.manual_seed(2)
    fork_replicas(note, limited)
    log = log_of(run, job, full_every=2, pending_bytes=1)
    failures = []

    class Going:
        def step(self, scaler: object) -> None:
            try:
                log.step(scaler)
            except ucp.UcpError as problem:
                failures.append(problem.code)
                log.step(scaler)

    job.train(Going(), 0, 30)
    assert set(failures) == {"UCP-E-STORE"}
    # Another one takes its place, though this one had told of something.
    end_replica(note)
    fork_replicas(note)
    with pytest.warns(RuntimeWarning, match="is gone"):
        job.train(Going(), 30, 33)
    log.flush()
    with torch.random.fork_rng():
        other, recovery = recovered(run)
    assert (recovery.step, recovery.from_replica) == (33, True)
    other.require_equal(trained(33))
    end_replica(note)


def a_stopped_replica(run: Path, note: Path) -> None:
    """One that does not answer is killed, and another one takes its place."""
    wire.PATIENCE = 2.0  # type: ignore[misc]
    job = Job()
    torch.manual_seed(2)
    log = log_of(run, job, pending_bytes=1)
    job.train(log, 0, 6)
    first = int(note.read_text())
    os.kill(first, signal.SIGSTOP)
    with pytest.warns(RuntimeWarning, match="no answer for 2 s"):
        job.train(log, 6, 400)
    assert state_of(first) in ("", "Z")
    log.close()
    with torch.random.fork_rng():
        job, recovery = recovered(run)
    assert (recovery.step, recovery.from_replica) == (400, False)
    job.require_equal(trained(400))


def forks_of_the_trainer(run: Path, note: Path) -> None:
    """Processes such as a data loader's that outlive the trainer keep its descriptors, and are not taken for it."""
    children = run.with_suffix(".children")

    def act() -> None:
        job = Job()
        torch.manual_seed(2)
        log = log_of(run, job)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        children.write_text(str(child))
        data: Any = range(4)
        loader: Any = torch.utils.data.DataLoader(
            data, num_workers=1, multiprocessing_context="fork", generator=torch.Generator()
        )
        assert len([*loader]) == 4
        job.train(log, 0, 6)
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(act) == -signal.SIGKILL
    try:
        until(lambda: max(ucp.CheckpointManager(run).steps()) == 5)
        job, recovery = recovered(run)
        assert (recovery.step, recovery.from_replica) == (5, True)
        job.require_equal(trained(5))
    finally:
        os.kill(int(children.read_text()), signal.SIGKILL)
        end_replica(note)


def a_store_in_memory(run: Path, note: Path) -> None:
    """Another process does not see it."""
    del run, note
    job = Job()
    message = refused("UCP-E-MISMATCH", lambda: log_of("memory://run", job))  # type: ignore[arg-type]
    assert "memory" in message


CASES = {
    case.__name__: case
    for case in (
        sparse_gradients,
        tied_parameters,
        a_compressor,
        increments,
        the_trainer_is_terminated,
        the_replica_is_terminated,
        a_full_disk,
        a_full_disk_in_training,
        a_stopped_replica,
        forks_of_the_trainer,
        a_store_in_memory,
    )
}


def main(directory: str, name: str) -> None:
    torch.set_num_threads(1)
    run, note = Path(directory) / "run", Path(directory) / "replica"
    fork_replicas(note)
    CASES[name](run, note)


if __name__ == "__main__":
    main(*sys.argv[1:])
