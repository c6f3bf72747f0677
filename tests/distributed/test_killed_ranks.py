"""A real gloo job of which a rank is killed at any point of a save: no bad checkpoint, and the one before stands."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ucpformat as ucp
from tests.distributed.killed_worker import FAILED
from tests.processes import Ranks, launch_in_turn

pytestmark = pytest.mark.distributed

WORLD = 3
NEVER = 1 << 30
KILLED = -9


def tasks() -> list[dict[str, Any]]:
    """The first save is whole; then each rank dies first of all, and at points from the beginning to the end."""
    chance = random.Random(20)
    deaths = [(0, NEVER), (0, 1), (1, 1)]
    deaths += [(0, chance.randint(*phase)) for phase in ((2, 40), (41, 80), (81, 120))]
    deaths += [(chance.randint(1, WORLD - 1), chance.randint(*phase)) for phase in ((2, 20), (21, 40))]
    return [
        {"number": 1 + number, "victim": victim, "point": point, "asynchronous": bool(number % 2)}
        for number, (victim, point) in enumerate([*deaths, *deaths[1:3]])
    ]


def holds(path: str, number: int) -> None:
    """The checkpoint is whole, and what the state was when it was saved."""
    assert list(ucp.validate(path)) == []
    found = ucp.load(path)
    assert found["number"] == number
    assert np.array_equal(
        found["model"]["w"], np.arange(2100, dtype=np.float32).reshape(700, 3) + np.float32(number)
    )
    assert (found["model"]["norm"] == number).all()


def test_a_rank_that_is_killed_leaves_no_bad_checkpoint(tmp_path: Path) -> None:
    launch_in_turn(
        "tests.distributed.killed_worker",
        [Ranks([str(tmp_path), json.dumps(task)], WORLD) for task in tasks()],
        timeout=500,
    )
    run = ucp.CheckpointManager(tmp_path, debris_age=0)
    committed = run.steps()
    for task in tasks():
        number, victim = task["number"], task["victim"]
        ended = [int((tmp_path / f"ended-{number}-{rank}").read_text()) for rank in range(WORLD)]
        assert set(ended) <= {0, KILLED, FAILED}, "survivors hear of it by a registered error"
        if ended == [0] * WORLD:
            assert number in committed, "the point lay behind the end"
        if task["point"] == 1:
            assert ended[victim] == KILLED
            assert number not in committed
        if number in committed:
            holds(run.path(number), number)
    assert committed[0] == 1
    state = {"model": {"w": np.zeros((700, 3), np.float32), "norm": np.zeros(900, np.float32)}, "number": 0}
    assert run.resume(state) == committed[-1] == state["number"]
    run.collect()
    left = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert left == {f"step-{step}.ucp" for step in committed}, "debris goes"
