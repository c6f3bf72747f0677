"""When a run saves: a loop on a clock of its own, whose steps and saves take what the test says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ucpformat as ucp
from tests.distributed.test_background import together
from tests.distributed.thread_group import ThreadGroup
from ucpformat.cadence import Cadence
from ucpformat.distributed.group import OneProcess
from ucpformat.errors import UcpError
from ucpformat.manager.pace import CADENCE, Pace, SaveTimer


class Save:
    """A save that is under way until its time."""

    def __init__(self, loop: Loop, end: float) -> None:
        self.loop, self.end = loop, end

    def done(self) -> bool:
        return self.loop.now >= self.end


class Loop:
    """A training loop on a clock that goes on as the loop says: seconds of a step, a stall, a write beside training."""

    def __init__(self, step: float, stall: float, write: float, slowdown: float, **options: Any) -> None:
        self.now = 0.0
        self.costs = step, stall, write, slowdown
        self.pace = Pace("auto", timer=SaveTimer(lambda: self.now), **options)
        self.saved: list[int] = []
        self.written = -1.0
        self.is_told = True

    def run(self, steps: range) -> None:
        step, stall, write, slowdown = self.costs
        for number in steps:
            is_writing = self.now < self.written
            self.now += step * (1 + slowdown * is_writing)
            if not self.is_told and self.now >= self.written:
                # The clock says when the background was done, not when the loop sees it.
                self.now, now = self.written, self.now
                self.pace.committed()
                self.now, self.is_told = now, True
            if self.pace.is_due(number, OneProcess()):
                begin = self.now
                self.written = begin + stall + write

                def save() -> ucp.AsyncSave:
                    self.now += stall
                    return cast("ucp.AsyncSave", Save(self, self.written))

                self.is_told = False
                self.pace.timed(number, save)
                self.saved.append(number)


TIMES = st.sampled_from([0.01, 0.1, 0.5])


@given(
    st.sampled_from([0.05, 0.2, 1.0]),
    TIMES,
    TIMES,
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.01, 0.05]),
)
def test_saves_take_no_more_than_their_share(
    step: float, stall: float, write: float, slowdown: float, share: float
) -> None:
    loop = Loop(step, stall, write, slowdown, max_overhead=share, mtbf=None)
    loop.run(range(1, 6000))
    gaps = [after - before for before, after in zip(loop.saved, loop.saved[1:], strict=False)]
    cadence = loop.pace.cadence
    assert cadence is not None
    assert gaps
    assert cadence.times.step == pytest.approx(step)
    assert cadence.times.stall == pytest.approx(stall)
    assert cadence.times.write == pytest.approx(stall + write)
    # What the steps beside a write took longer: those that the write overlapped.
    assert cadence.times.slowdown <= slowdown * (write + 2 * step * (1 + slowdown)) + 1e-9
    # From the third on all is known: never more often than it allows, and not more seldom either.
    assert all(abs(gap - cadence.every) <= 1 for gap in gaps[3:])  # one for the rounding of floats
    assert (stall + cadence.times.slowdown) / (cadence.every * step) <= share * (1 + 1e-9)
    assert stall + write <= cadence.every * step * (1 + 1e-9)


def test_the_first_save_waits_for_steps_to_be_measured() -> None:
    loop = Loop(1.0, 0.1, 1.0, 0.0, max_overhead=None, mtbf=None)
    loop.run(range(100, 104))
    assert loop.saved == []
    assert loop.pace.cadence is None
    loop.run(range(104, 105))
    assert loop.saved == [104]


def test_known_failures_make_saves_as_seldom_as_is_worth_while() -> None:
    often = Loop(1.0, 0.5, 1.0, 0.0, max_overhead=0.5, mtbf=None)
    seldom = Loop(1.0, 0.5, 1.0, 0.0, max_overhead=0.5, mtbf=10_000.0)
    for loop in (often, seldom):
        loop.run(range(1, 500))
    assert often.pace.cadence is not None
    assert often.pace.cadence.every == 2
    assert seldom.pace.cadence is not None
    assert seldom.pace.cadence.every == 100
    assert seldom.pace.cadence.reason == "failures"


def test_it_adapts_when_steps_take_longer() -> None:
    loop = Loop(1.0, 0.5, 1.0, 0.0, max_overhead=0.05, mtbf=None)
    loop.run(range(1, 200))
    assert loop.pace.cadence is not None
    assert loop.pace.cadence.every == 10
    loop.costs = 5.0, 0.5, 1.0, 0.0
    loop.run(range(200, 600))
    assert loop.pace.cadence.every == 2


def test_a_run_that_goes_back_saves_by_its_new_steps() -> None:
    loop = Loop(1.0, 0.5, 1.0, 0.0, max_overhead=0.05, mtbf=None)
    loop.run(range(1, 100))
    loop.saved.clear()
    loop.run(range(40, 80))
    assert loop.saved[0] == 44
    assert {after - before for before, after in zip(loop.saved, loop.saved[1:], strict=False)} == {10}


def test_the_same_step_is_told_the_same() -> None:
    loop = Loop(1.0, 0.5, 1.0, 0.0, max_overhead=0.05, mtbf=None)
    loop.run(range(1, 5))
    assert loop.pace.is_due(5, OneProcess()) is loop.pace.is_due(5, OneProcess()) is True


def test_a_save_that_fails_is_tried_again_later() -> None:
    loop = Loop(1.0, 0.5, 1.0, 0.0, max_overhead=0.05, mtbf=None)
    loop.run(range(1, 50))
    before = loop.pace.cadence
    assert before is not None

    def fail() -> ucp.AsyncSave:
        loop.now += 30
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        loop.pace.timed(50, fail)
    loop.saved.clear()
    loop.run(range(51, 80))
    assert loop.saved
    assert loop.pace.cadence is not None
    # What a failure took is no time of a save.
    assert loop.pace.cadence.times.stall == before.times.stall


def test_a_number_of_steps_is_taken_as_it_is(tmp_path: Path) -> None:
    with ucp.CheckpointManager(tmp_path, every=5) as manager:
        assert [step for step in range(1, 21) if manager.is_due(step)] == [5, 10, 15, 20]
        assert manager.cadence is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_checkpoint_says_how_often_its_run_saved(tmp_path: Path, asynchronous: bool) -> None:
    state = {"w": np.zeros(1000, np.float32)}
    with ucp.CheckpointManager(
        tmp_path, every="auto", max_overhead=1.0, asynchronous=asynchronous
    ) as manager:
        step = 0
        while len(manager.steps()) < 3:
            step += 1
            state["w"] += np.linalg.eigvals(np.eye(20)).real.sum()
            if manager.is_due(step):
                manager.save(step, state).wait()
        decision = manager.cadence
        steps = manager.steps()
    assert decision is not None
    first, *_, last = (ucp.open(manager.path(step)).annotations for step in steps)
    assert CADENCE not in first
    assert Cadence.from_json(last[CADENCE]) == decision


def test_ranks_save_at_the_same_steps_by_what_the_first_measures(tmp_path: Path) -> None:
    def work(group: ThreadGroup) -> list[int]:
        saved = []
        with ucp.CheckpointManager(tmp_path, group=group, every="auto", max_overhead=1.0) as manager:
            for step in range(1, 60):
                # Ranks that measure otherwise go by the first all the same.
                np.linalg.eigvals(np.eye(4 + 20 * group.rank))
                if manager.is_due(step):
                    manager.save(step, {"step": step})
                    saved.append(step)
        return saved

    said = together(3, work)
    assert said[0]
    assert said[1:] == said[:1] * 2


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"every": 0}, "UCP-E-LIMIT", "every="),
        ({"every": "often"}, "UCP-E-LIMIT", "every="),
        ({"every": True}, "UCP-E-LIMIT", "every="),
        ({"every": 10, "max_overhead": 0.1}, "UCP-E-MISMATCH", 'give every="auto"'),
        ({"mtbf": 100.0}, "UCP-E-MISMATCH", 'give every="auto"'),
        ({"every": "auto", "max_overhead": 0.0}, "UCP-E-LIMIT", "max_overhead="),
        ({"every": "auto", "mtbf": -1.0}, "UCP-E-LIMIT", "mtbf="),
    ],
)
def test_options_that_say_nothing_are_refused(
    tmp_path: Path, options: dict[str, Any], code: str, says: str
) -> None:
    with pytest.raises(UcpError, match=says) as refused:
        ucp.CheckpointManager(tmp_path, **options)
    assert refused.value.code == code


def test_a_manager_that_was_not_told_how_often_does_not_guess(tmp_path: Path) -> None:
    with ucp.CheckpointManager(tmp_path) as manager, pytest.raises(UcpError, match="give every=N"):
        manager.is_due(1)
