"""One rank of a job whose ranks have a replica each, under DDP, FSDP2, or FSDP2 with tensor parallelism.

Arguments: a directory, and a `Plan` as JSON. A job begins with a recovery, which has to give the state of a job that
was never stopped; each rank says in the directory what it was, and which processes its replicas are.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import ucpformat as ucp
from tests.processes import die_at, join, leave
from tests.replay.ranks_worker import made, spread
from tests.replay.replica_jobs import end_process, state_of
from tests.replay.replica_worker import TRAINER_CALLS
from ucpformat.replay.replica import feed, link

STEPS = 9
REPLICA_GONE = 3
"""The status of a rank that has said that a replica is gone, and none takes its place."""
RANK_GONE = 4
"""The status of a rank that has found that another one is gone."""
REPLACING = ((feed.ReplicaFeed, ("begin_step", "_answer", "_begin_again", "_begun", "_warn")),)


class Plan(NamedTuple):
    """What is trained, and who is killed.

    Attributes:
        victim, point: the rank that is killed, none for -1, and the call at which it is.
        at_steps: of each rank, by its number, the steps before which it kills its replica.
        after: of each rank the seconds that each of its replicas lives; those behind the last one live.
        pause: seconds that a step takes longer.
    """

    kind: str
    steps: int = STEPS
    victim: int = -1
    point: int = 0
    at_steps: dict[str, list[int]] = {}  # noqa: RUF012 - never changed
    after: dict[str, list[float]] = {}  # noqa: RUF012 - never changed
    pause: float = 0.0


def job_of(kind: str) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    """A model with a buffer that each forward changes; with a schedule, steps are handed over at the next forward."""
    plain = made()
    plain.register_buffer("passes", torch.zeros(3))

    def count(module: nn.Module, arguments: object) -> None:
        module.get_buffer("passes").add_(1)

    plain.register_forward_pre_hook(count)
    model = spread(plain, kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {} if kind == "ddp" else {"schedule": torch.optim.lr_scheduler.StepLR(optimizer, 4)}
    return model, optimizer, state


def train(job: tuple[nn.Module, Any, dict[str, Any]], begin: int, stop: int, step: Any) -> None:
    model, optimizer, state = job
    for number in range(begin, stop):
        optimizer.zero_grad()
        data = torch.randn(4, 5, generator=torch.Generator().manual_seed(number))
        model(data).square().mean().backward()
        step()
        for one in state.values():
            one.step()


def require_equal(job: tuple[nn.Module, Any, dict[str, Any]], other: Any) -> None:
    """Compare what this rank has of parameters, buffers and states."""
    (model, optimizer, state), (theirs, others, objects) = job, other
    for (name, one), two in zip(model.named_buffers(), theirs.buffers(), strict=True):
        assert torch.equal(one, two), (name, one, two)
    assert [one.state_dict() for one in state.values()] == [one.state_dict() for one in objects.values()]
    for (name, one), two in zip(model.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(local(one), local(two)), name
        mine, that = optimizer.state[one], others.state[two]
        assert mine.keys() == that.keys(), name
        for key, value in mine.items():
            assert torch.equal(local(value), local(that[key])), (name, key)


def local(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found.detach()


def die_later(note: Path, process: int, seconds: float) -> None:
    def act() -> None:
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
            note_kill(note)

    threading.Thread(target=act, daemon=True).start()


def note_kill(note: Path) -> None:
    """Note that a replica was killed."""
    with note.with_name("kills").open("a") as told:
        told.write(".")


def kill_replica(note: Path, writer: Any) -> None:
    """Kill the replica of this rank, when it has made a step, if it does within a while."""
    limit = time.monotonic() + 5
    while not writer._link.made and time.monotonic() < limit:
        if writer._link.hear(wait=False) is None:
            time.sleep(0.005)
    if state_of(writer.process) not in ("", "Z"):
        end_process(writer.process)
        note_kill(note)


def note_replicas(note: Path, lives: list[float]) -> None:
    """Note the number of each replica of this rank as it starts, and kill those that do not live for long."""
    real = link._started

    def started(*arguments: Any) -> Any:
        process = real(*arguments)
        with note.open("a") as told:
            told.write(f"{process.pid}\n")
        if lives:
            die_later(note, process.pid, lives.pop(0))
        return process

    link._started = started  # type: ignore[assignment]


def main(directory: str, given: str) -> None:
    rank, _ = join()
    plan = Plan(**json.loads(given))
    notes = Path(directory)
    run = notes / "run"
    job = job_of(plan.kind)
    recovery = ucp.recover(run, job[0], job[1], state=job[2])
    other = job_of(plan.kind)
    train(other, 0, recovery.step, other[1].step)
    require_equal(job, other)
    assert recovery.exactness == "bitwise"
    found = {
        "step": recovery.step,
        "checkpoint_step": recovery.checkpoint_step,
        "from_replica": recovery.from_replica,
        "faults": [one.code for one in recovery.faults],
    }
    (notes / f"recovery-{rank}").write_text(json.dumps(found))
    note_replicas(notes / f"replica-{rank}", plan.after.get(str(rank), []))
    told = os.open(notes / f"steps-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.pwrite(told, b"%4d %4d" % (recovery.step, recovery.checkpoint_step or 0), 0)
    is_replaced = bool(plan.at_steps or plan.after)
    if rank == plan.victim and is_replaced:
        die_at(plan.point, (*TRAINER_CALLS, *REPLACING))
    try:
        with (
            warnings.catch_warnings(record=True) as warned,
            ucp.UpdateLog(
                run,
                job[0],
                job[1],
                after=recovery,
                state=job[2],
                replica=ucp.Replica(linger=60),
                full_every=4,
                check_every=2,
                pending_bytes=1,
            ) as log,
        ):
            warnings.simplefilter("always")
            if rank == plan.victim and not is_replaced:
                die_at(plan.point, TRAINER_CALLS)  # Where replicas are begun, none could go on.

            def step() -> None:
                os.pwrite(told, b"%4d %4d" % (log.steps, log.durable_step), 0)
                if log.steps in plan.at_steps.get(str(rank), []):
                    kill_replica(notes / f"replica-{rank}", log._writer)
                time.sleep(plan.pause)
                log.step()

            train(job, recovery.step, plan.steps, step)
            log.flush()
            assert log.durable_step == plan.steps
            os.pwrite(told, b"%4d %4d" % (log.steps, log.durable_step), 0)
    except ucp.UcpError as problem:
        if problem.code != "UCP-E-RANK":
            raise
        print(problem, flush=True)
        os._exit(RANK_GONE if "another process of the job" in problem.message else REPLICA_GONE)
    lines = [str(one.message) for one in warned if one.category is RuntimeWarning]
    (notes / f"warned-{rank}").write_text(json.dumps(lines))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
