"""How often a logged run saves full checkpoints, by what it has measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

import ucpformat as ucp
from tests.replay.jobs import STEPS, Job
from ucpformat.cli import main
from ucpformat.distributed.group import OneProcess
from ucpformat.replay.full_pace import FullPace, LogGrowth


class Run:
    """A run by a clock of its own: steps, of which the optimizer has a share, and saves that training stops for."""

    def __init__(
        self,
        step: float,
        optimizer: float,
        stall: float,
        mtbf: float | None,
        *,
        step_bytes: int = 0,
        checkpoint_bytes: int = 0,
        share: float = 1.0,
    ) -> None:
        self.now = 0.0
        self.written = 0
        self.pace = FullPace("auto", mtbf, OneProcess(), clock=lambda: self.now)
        self.times = step, optimizer, stall
        self.step_bytes = step_bytes
        self.saves: list[int] = []
        self.pace.begin(0, LogGrowth(0, share, lambda: checkpoint_bytes, lambda: self.written))
        self.save(0)

    def save(self, step: int) -> None:
        def make() -> Any:
            self.now += self.times[2]
            return Done()

        self.saves.append(step)
        self.pace.saved(step, make)

    def train(self, stop: int) -> None:
        step_seconds, optimizer, _ = self.times
        for step in range(1, stop + 1):
            self.now += step_seconds - optimizer
            self.pace.made(lambda: setattr(self, "now", self.now + optimizer))
            self.written += self.step_bytes
            if self.pace.is_due(step):
                assert self.pace.is_due(step)  # who asks again is told the same
                self.save(step)


class Done:
    def done(self) -> bool:
        return True


@given(
    step=st.floats(0.1, 2.0),
    share=st.floats(0.05, 0.9),
    stall=st.floats(0.01, 1.0),
    mtbf=st.floats(100.0, 5000.0),
)
def test_failures_that_are_known_say_how_often(step: float, share: float, stall: float, mtbf: float) -> None:
    """The square root of 2 C M / r, and at most 3 % of the time."""
    run = Run(step, share * step, stall, mtbf)
    run.train(30)
    cadence = run.pace.cadence
    assert cadence is not None
    assert cadence.replay == pytest.approx(share, rel=1e-6)
    assert cadence.mtbf == mtbf
    found = ucp.cadence.exact_replay(cadence.times.cost, 1.0, mtbf, share).full / step
    bound = cadence.times.cost / (0.03 * step)
    assert cadence.every == pytest.approx(max(found, bound), abs=1.01)
    assert "replayed in" in str(cadence)
    assert cadence.reason in ("failures", "overhead", "step")
    assert ucp.cadence.Cadence.from_json(cadence.to_json()) == cadence


def test_checkpoints_come_as_often_as_was_decided() -> None:
    run = Run(step=1.0, optimizer=0.25, stall=0.5, mtbf=100.0)
    run.train(200)
    gaps = {later - one for one, later in zip(run.saves[1:], run.saves[2:], strict=False)}
    assert gaps == {20}  # sqrt(2 * 0.5 * 100 / 0.25)


@given(
    step_bytes=st.integers(0, 1 << 26),
    checkpoint_bytes=st.integers(0, 1 << 30),
    ranks=st.integers(1, 8),
    stall=st.floats(0.001, 0.5),
)
def test_without_failures_the_size_of_the_log_says_how_often(
    step_bytes: int, checkpoint_bytes: int, ranks: int, stall: float
) -> None:
    """By what the first rank logs, which is its share: at most 1000 steps, and at most 3 % of the time."""
    run = Run(
        0.5,
        0.1,
        stall,
        None,
        step_bytes=step_bytes // ranks,
        checkpoint_bytes=checkpoint_bytes,
        share=1 / ranks,
    )
    run.train(30)
    cadence = run.pace.cadence
    assert cadence is not None
    grown = 1000.0
    if step_bytes // ranks:
        grown = min(grown, max(checkpoint_bytes, 1 << 24) / (step_bytes // ranks * ranks))
    bound = cadence.times.cost / (0.03 * 0.5)
    assert cadence.every == pytest.approx(max(grown, bound, 1), abs=1.01)
    assert cadence.reason == ("log" if grown > bound + 1 else cadence.reason)
    assert "the log is replayed in" in str(cadence)
    assert ucp.cadence.Cadence.from_json(cadence.to_json()) == cadence


def test_a_checkpoint_comes_when_the_log_has_the_size_of_one() -> None:
    run = Run(0.5, 0.1, 0.01, None, step_bytes=1 << 22, checkpoint_bytes=1 << 27)
    run.train(200)
    assert run.saves == [0, 32, 64, 96, 128, 160, 192]


def test_replay_that_is_fast_makes_checkpoints_rare() -> None:
    times = ucp.cadence.SaveTimes(step=0.5, stall=0.3, write=1.0)
    every = [
        ucp.cadence.decide(times, max_overhead=0.5, mtbf=3600, replay=replay).every for replay in (1.0, 0.25)
    ]
    assert every[1] == pytest.approx(2 * every[0], abs=1)


@pytest.mark.parametrize("mtbf", [60.0, None])
def test_the_run_says_what_was_decided(tmp_path: Path, mtbf: float | None) -> None:
    """`ucp ls` and `ucp log` show it, of the newest checkpoint that was saved when enough was measured."""
    job = Job()
    with ucp.UpdateLog(tmp_path, job.model, job.optimizer, state=job.objects, mtbf=mtbf) as log:
        log._manager.wait()  # so that the first one was measured, however slow the disk
        job.train(log, 0, STEPS)
        cadence = log.cadence
        assert cadence is not None
        assert cadence.mtbf == mtbf
        log.full()
    said = CliRunner().invoke(main, ["ls", str(tmp_path)]).output
    assert f"saved {cadence}" in said.splitlines()
    said = CliRunner().invoke(main, ["log", str(tmp_path)]).output
    assert f"full checkpoints {cadence}" in said.splitlines()
    told = CliRunner().invoke(main, ["log", str(tmp_path), "--format", "json"]).output
    assert json.loads(told)["cadence"] == cadence.to_json()


def test_ranks_meet_within_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind it a rank may fail alone, and must not wait for the others when it ends its log."""
    model = nn.Linear(2, 2)
    asked: list[int] = []
    with ucp.UpdateLog(tmp_path, model, SGD(model.parameters()), batch=1) as log:
        monkeypatch.setattr(log._pace, "is_due", asked.append)
        torch.autograd.backward(model.weight.sum())
        log.step()
        assert asked == [1]


def test_refusals(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for options, code in (
        ({"mtbf": 10.0, "full_every": 5}, "UCP-E-MISMATCH"),
        ({"mtbf": 10.0, "full_every": None}, "UCP-E-MISMATCH"),
        ({"mtbf": 10.0, "replica": True}, "UCP-E-MISMATCH"),
        ({"mtbf": 0.0}, "UCP-E-LIMIT"),
        ({"mtbf": "1 h"}, "UCP-E-LIMIT"),
    ):
        given_: Any = options
        with pytest.raises(ucp.UcpError, match="mtbf") as caught:
            ucp.UpdateLog(tmp_path, model, SGD(model.parameters()), **given_)
        assert caught.value.code == code
    assert not list(tmp_path.iterdir())
