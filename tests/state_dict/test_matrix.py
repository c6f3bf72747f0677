"""Every job's checkpoint fills every other job, bit for bit: real torch under gloo (``make test-matrix`` for all).

A launch of a world size saves all jobs of that size, and loads whatever lies there already; sizes come twice, so that
every job has been loaded into every other.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conversion.training_jobs import WORLDS
from tests.processes import Ranks, launch_in_turn
from ucpformat import open as open_checkpoint
from ucpformat import validate

FULL = os.environ.get("UCP_MATRIX") == "full"


def jobs(world: int) -> list[str]:
    return [name for name, size in WORLDS.items() if size == world]


@pytest.mark.distributed
@pytest.mark.timeout(1500 if FULL else 600)
def test_every_job_fills_every_other(tmp_path: Path) -> None:
    """Without the whole matrix, jobs of 1 and 2 ranks fill only themselves and those after them, and none has 8."""
    worlds = [1, 2, 4, 3, *([8] if FULL else [])]
    done: list[tuple[str, str]] = []
    saved: list[str] = []

    launches: list[Ranks] = []

    def go(world: int, sources: list[str]) -> None:
        pairs = [
            (source, target)
            for target in jobs(world)
            for source in (*saved, *sources)
            if (source, target) not in done
        ]
        task = json.dumps({"sources": sources, "pairs": pairs})
        launches.append(Ranks([str(tmp_path), task], world))
        saved.extend(sources)
        done.extend(pairs)

    for world in worlds:
        go(world, jobs(world))
    for world in worlds[:-1] if FULL else ():
        go(world, [])
    launch_in_turn("tests.conversion.matrix_worker", launches, timeout=1200 if FULL else 300)
    every = {(source, target) for source in saved for target in saved}
    assert set(done) == every if FULL else len(done) == 46
    for name in saved:
        assert list(validate(tmp_path / f"{name}.ucp")) == []
        with open_checkpoint(tmp_path / f"{name}.ucp") as checkpoint:
            packs = {pack.key.split("-")[1] for pack in checkpoint.packs or ()}
            assert len(packs) == WORLDS[name], "every rank has something to write"
