"""One rank of the matrix: makes jobs of its world size, saves them, and fills others from what was saved."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.conversion.training_jobs import WORLDS, differences, load, make_job, save
from tests.processes import join, leave

SEEDS = {name: number for number, name in enumerate(WORLDS)}


def run(directory: Path, sources: list[str], pairs: list[tuple[str, str]]) -> None:
    """Save the jobs ``sources``, then fill every target of ``pairs`` from its source, and compare."""
    for name in sources:
        job = make_job(name, SEEDS[name])
        save(job, str(directory / f"{name}.ucp"), chunk_bytes=1024)
        whole = job.whole()
        if dist.get_rank() == 0:
            torch.save(whole, directory / f"{name}.pt")
    dist.barrier()
    for name in dict.fromkeys(target for _, target in pairs):
        job = make_job(name, 50 + SEEDS[name])
        for source in (source for source, target in pairs if target == name):
            expected = torch.load(directory / f"{source}.pt", weights_only=True)
            if not differences(expected, job.whole()):
                raise AssertionError(f"{name} was as {source} before anything was loaded")
            load(job, str(directory / f"{source}.ucp"))
            different = differences(expected, job.whole())
            if different:
                raise AssertionError(f"{source} loaded into {name} differs in {different}")


if __name__ == "__main__":
    join()
    task = json.loads(sys.argv[2])
    run(Path(sys.argv[1]), task["sources"], [tuple(pair) for pair in task["pairs"]])
    leave()
