"""One rank of a job whose ranks have a replica each, under DDP, FSDP2, or FSDP2 with tensor parallelism.

Arguments: a directory, the parallelism, the rank that is killed, none for -1, and the call at which it is. A job begins
with a recovery, which has to give the state of a job that was never stopped; each rank says in the directory what it
was, and which process its replica is.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ucpformat as ucp
from tests.processes import die_at, join, leave
from tests.replay.ranks_worker import made, spread
from tests.replay.replica_worker import TRAINER_CALLS

STEPS = 9


def job_of(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = spread(made(), kind)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, begin: int, stop: int, step: Any) -> None:
    for number in range(begin, stop):
        optimizer.zero_grad()
        data = torch.randn(4, 5, generator=torch.Generator().manual_seed(number))
        model(data).square().mean().backward()
        step()


def require_equal(model: nn.Module, optimizer: Any, other: nn.Module, others: Any) -> None:
    """Compare what this rank has of parameters and states."""
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(local(one), local(two)), name
        mine, theirs = optimizer.state[one], others.state[two]
        assert mine.keys() == theirs.keys(), name
        for key, value in mine.items():
            assert torch.equal(local(value), local(theirs[key])), (name, key)


def local(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found.detach()


def main(directory: str, kind: str, victim: str, point: str) -> None:
    rank, _ = join()
    notes = Path(directory)
    run = notes / "run"
    model, optimizer = job_of(kind)
    recovery = ucp.recover(run, model, optimizer)
    other, others = job_of(kind)
    train(other, others, 0, recovery.step, others.step)
    require_equal(model, optimizer, other, others)
    assert recovery.exactness == "bitwise"
    found = {
        "step": recovery.step,
        "checkpoint_step": recovery.checkpoint_step,
        "from_replica": recovery.from_replica,
        "faults": [one.code for one in recovery.faults],
    }
    (notes / f"recovery-{rank}").write_text(json.dumps(found))
    with ucp.UpdateLog(
        run,
        model,
        optimizer,
        after=recovery,
        replica=ucp.Replica(linger=60),
        full_every=4,
        check_every=2,
        pending_bytes=1,
    ) as log:
        (notes / f"replica-{rank}").write_text(str(log._writer.process))  # type: ignore[union-attr]
        told = os.open(notes / f"steps-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

        def step() -> None:
            os.pwrite(told, b"%4d" % log.steps, 0)
            log.step()

        if rank == int(victim):
            die_at(int(point), TRAINER_CALLS)
        train(model, optimizer, recovery.step, STEPS, step)
        log.flush()
        assert log.durable_step == STEPS
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
