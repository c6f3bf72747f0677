"""Jobs that log every step to an object store, killed around any of their requests, that go on until they are through.

Arguments: the URL below which runs lie, a local directory, the first number of a run, the one behind the last, and how
many jobs are at work on a run at once. What the client of the store is to be configured with is in the environment, as
fsspec reads it (``FSSPEC_S3``). Each start of a job, before it goes on, looks whether it has recovered what was
durable, to the last bit; of several at once each may be refused, and what is recovered has to be a state of training.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import torch

from tests.replay.jobs import STEPS, recovered, trained
from tests.replay.killed_worker import KILLED, begin
from ucpformat.errors import UcpError

REFUSED = 3
_MOST_STARTS = 40


def die_around(point: int) -> None:
    """Kill this process before the request, or behind its answer, with which the count comes to ``point``."""
    count = itertools.count(1)
    real = aiohttp.ClientSession._request

    def pass_by() -> None:
        if next(count) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    async def request(self: Any, *arguments: Any, **options: Any) -> Any:
        pass_by()
        answer = await real(self, *arguments, **options)
        pass_by()
        return answer

    aiohttp.ClientSession._request = request  # type: ignore[method-assign]


def started(run: str, acknowledged: Path, point: int, *, is_alone: bool) -> int:
    """Start a job; returns its process."""
    child = os.fork()
    if child == 0:
        try:
            die_around(point)
            begin(run, acknowledged, is_alone=is_alone)
        except UcpError as refusal:
            if is_alone or refusal.code not in ("UCP-E-FENCED", "UCP-E-EXISTS"):
                traceback.print_exc()
                os._exit(1)
            os._exit(REFUSED)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def main(base: str, directory: str, first: str, stop: str, at_once: str = "1") -> None:
    torch.set_num_threads(1)
    fsspec.config.set_conf_env(fsspec.config.conf)
    deaths = refusals = 0
    for number in range(int(first), int(stop)):
        chance = random.Random(number)
        run = f"{base}/run-{number}"
        acknowledged = Path(directory) / f"run-{number}.durable"
        for start in range(_MOST_STARTS):
            jobs = int(at_once) if start < 12 else 1
            points = [chance.randint(1, 220) if start < 12 else 1 << 30 for _ in range(jobs)]
            children = [started(run, acknowledged, point, is_alone=at_once == "1") for point in points]
            ends = [os.waitpid(child, 0)[1] for child in children]
            deaths += sum(map(os.WIFSIGNALED, ends))
            codes = [0 if os.WIFSIGNALED(one) else os.waitstatus_to_exitcode(one) for one in ends]
            refusals += codes.count(REFUSED)
            assert all(os.WTERMSIG(one) == KILLED for one in ends if os.WIFSIGNALED(one)), ends
            assert set(codes) <= {0, REFUSED}, f"run {number}, start {start}, points {points}"
            if not any(map(os.WIFSIGNALED, ends)) and 0 in codes:
                break
        else:
            raise AssertionError(f"run {number} has not ended")
        assert recovered_step(run) == STEPS, f"run {number}"
    (Path(directory) / f"deaths-{first}").write_text(f"{deaths} {refusals}")


def recovered_step(run: str) -> int:
    """Return the step at which a run is recovered, by a process of its own: one that forks has no client yet."""
    child = os.fork()
    if child == 0:
        try:
            job, found = recovered(run)
            job.require_equal(trained(found.step))
            os._exit(found.step)
        except BaseException:
            traceback.print_exc()
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
