"""`python -m tests.campaigns.update_log [--steps N] [--jobs N] [--replicas N] [--ranks N] [--replaced N] [--seed N]`.

First jobs of each optimizer log so many steps, and what a recovery makes of step 0 has to equal, bit for bit, a job
that was never logged. Then so many jobs are killed when they are about to make one of the calls that touch a file, up
to twelve times each, and have to go on from what was durable. Of jobs with a replica, trainer, replica or both are
killed at a call of their own, up to six times each; of jobs of several ranks with replicas a rank, up to four times,
and sometimes a replica behind it; and of others replicas while the job trains, or while they are replaced, one or two
together, and sometimes a rank as well. Where what ``requirements/s3.txt`` names is installed, ``--stores`` jobs whose
runs lie in an S3 server of this machine are killed around any request, and as many again, two at once on one run. The
exit code is 1 where one was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.s3_server import BUCKET, missing_packages, served
from tests.replay.jobs import OPTIMIZERS, logged, recovered, trained
from tests.replay.replica_ranks import killed_at_random, replaced_at_random


def long_replays(directory: Path, steps: int) -> int:
    """Replay a log of so many steps of each optimizer; return how many came to other bits."""
    wrong = 0
    for number, name in enumerate(OPTIMIZERS):
        run = directory / f"long-{number}"
        begin = time.perf_counter()
        logged(run, steps, name, full_every=None, check_every=10)
        job, recovery = recovered(run, name)
        found = "0 ULP"
        try:
            assert (recovery.step, recovery.checkpoint_step, recovery.exactness) == (steps, 0, "bitwise")
            job.require_equal(trained(steps, name))
        except AssertionError as reason:
            found, wrong = f"wrong: {reason}", wrong + 1
        seconds = time.perf_counter() - begin
        print(
            f"{name}: {steps} steps, {recovery.checked} sums compared, {found}, {seconds:.0f} s", flush=True
        )
    return wrong


def kills(directory: Path, first: int, stop: int) -> int:
    """Kill jobs of some numbers; return 1 where one went on from another state than the durable one, else 0."""
    command = [sys.executable, "-m", "tests.replay.killed_worker", str(directory), str(first), str(stop)]
    status = subprocess.run(command, check=False).returncode
    told = directory / f"deaths-{first}"
    deaths = told.read_text() if told.exists() else "an unknown number of"
    print(f"{deaths} kills of {stop - first} jobs, {'none wrong' if status == 0 else 'wrong'}", flush=True)
    return int(status != 0)


def kills_with_replicas(directory: Path, first: int, stop: int) -> int:
    """Kill jobs that have a replica, or that, or both; return 1 where one went on from a wrong state, else 0."""
    command = [sys.executable, "-m", "tests.replay.replica_worker", str(directory), str(first), str(stop)]
    status = subprocess.run(command, check=False).returncode
    told = directory / f"deaths-{first}"
    trainer, both, replica = told.read_text().split() if told.exists() else ("?", "?", "?")
    print(
        f"{trainer} kills of the trainer, {both} of trainer and replica, {replica} of the replica, "
        f"of {stop - first} jobs, {'none wrong' if status == 0 else 'wrong'}",
        flush=True,
    )
    return int(status != 0)


def kills_of_ranks(
    directory: Path, first: int, stop: int, kill: Callable[[Path, int], dict[str, int]]
) -> int:
    """Kill ranks of jobs whose ranks have replicas, and replicas; return 1 where one went on wrongly, else 0."""
    deaths: Counter[str] = Counter()
    wrong = 0
    for number in range(first, stop):
        room = directory / str(number)
        room.mkdir()
        try:
            deaths.update(kill(room, number))
        except AssertionError as reason:
            print(f"job {number}: {reason}", flush=True)
            wrong += 1
    print(
        f"{deaths['rank']} kills of a rank, {deaths['replica']} of a replica, all replaced {deaths['replaced']} times, "
        f"not replaced {deaths['given up']} times, of {stop - first} jobs, {wrong or 'none'} wrong",
        flush=True,
    )
    return int(wrong > 0)


def kills_in_a_store(directory: Path, first: int, stop: int, at_once: int) -> int:
    """Kill jobs that log to S3 around their requests; return 1 where one went on from a wrong state, else 0."""
    with served() as server:
        command = [sys.executable, "-m", "tests.replay.killed_in_store", f"s3://{BUCKET}/{at_once}"]
        command += [str(directory), str(first), str(stop), str(at_once)]
        environment = {**os.environ, "FSSPEC_S3": json.dumps(server.options())}
        status = subprocess.run(command, check=False, env=environment).returncode
    told = directory / f"deaths-{first}"
    deaths, refused = told.read_text().split() if told.exists() else ("?", "?")
    print(
        f"{deaths} kills of {stop - first} jobs in S3, {at_once} at once, {refused} fenced, "
        f"{'none wrong' if status == 0 else 'wrong'}",
        flush=True,
    )
    return int(status != 0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.update_log")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--replicas", type=int, default=50, help="jobs with a replica")
    parser.add_argument("--ranks", type=int, default=24, help="jobs of several ranks with a replica each")
    parser.add_argument(
        "--replaced", type=int, default=12, help="jobs of several ranks with replicas that are killed"
    )
    parser.add_argument("--stores", type=int, default=8, help="jobs in S3, as many again two at once")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first job that is killed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    first = options.seed
    with tempfile.TemporaryDirectory() as folder:
        wrong = long_replays(Path(folder), options.steps) if options.steps else 0
        wrong += kills(Path(folder), first, first + options.jobs) if options.jobs else 0
    with tempfile.TemporaryDirectory() as folder:
        count = options.replicas
        wrong += kills_with_replicas(Path(folder), first, first + count) if count else 0
    for kill, count in ((killed_at_random, options.ranks), (replaced_at_random, options.replaced)):
        with tempfile.TemporaryDirectory() as folder:
            wrong += kills_of_ranks(Path(folder), first, first + count, kill)
    if options.stores and missing_packages():
        print(f"no jobs in S3, which take {', '.join(missing_packages())}")
        options.stores = 0
    for at_once in (1, 2) if options.stores else ():
        with tempfile.TemporaryDirectory() as folder:
            wrong += kills_in_a_store(Path(folder), first, first + options.stores, at_once)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
