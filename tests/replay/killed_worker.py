"""Jobs that log every step, killed when they are about to touch a file, that go on until they are through.

Arguments: a directory, the first number of a run, and the one behind the last. Each start of a job, before it goes on,
looks whether it has recovered what was durable, to the last bit; the status is 1 where one has not.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import ucpformat as ucp
from tests.processes import die_at
from tests.replay.jobs import STEPS, resumed, trained

CALLS = ((os, ("open", "write", "pwrite", "pwritev", "fsync", "link", "unlink", "mkdir", "rename", "close")),)
KILLED = 9


def begin(
    run: str | Path, acknowledged: Path, arm: Callable[[], None] = lambda: None, *, is_alone: bool = True
) -> None:
    """Recover, look, and go on until the end, or until a call kills that ``arm`` may have chosen.

    What is durable is written to ``acknowledged``; a job that is alone has to have recovered it.
    """
    job, recovery = resumed(run)
    told = int(acknowledged.read_text() or 0) if acknowledged.exists() else 0
    assert told <= recovery.step or not is_alone, (told, recovery)
    assert recovery.exactness == "bitwise"
    job.require_equal(trained(recovery.step))
    descriptor = os.open(acknowledged, os.O_WRONLY | os.O_CREAT)
    write = os.pwrite

    class Telling:
        """Writes down what is durable after each step."""

        def step(self, scaler: object) -> None:
            log.step(scaler)
            write(descriptor, str(log.durable_step).encode(), 0)

    arm()
    options: dict[str, Any] = {"batch": 1, "full_every": 5, "check_every": 3}
    with ucp.UpdateLog(run, job.model, job.optimizer, state=job.objects, after=recovery, **options) as log:
        job.train(Telling(), recovery.step, STEPS)


def main(directory: str, first: str, stop: str) -> None:
    torch.set_num_threads(1)
    deaths = 0
    for number in range(int(first), int(stop)):
        chance = random.Random(number)
        run = Path(directory) / f"run-{number}"
        for start in range(40):
            point = chance.randint(1, 400) if start < 12 else 1 << 30
            child = os.fork()
            if child == 0:
                try:
                    begin(run, run.with_suffix(".durable"), partial(die_at, point, CALLS))
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                assert os.WTERMSIG(status) == KILLED, status
                deaths += 1
                continue
            assert os.waitstatus_to_exitcode(status) == 0, f"run {number}, start {start}, point {point}"
            break
    (Path(directory) / f"deaths-{first}").write_text(str(deaths))


if __name__ == "__main__":
    main(*sys.argv[1:])
