"""Runs scenarios, each in a process forked from this one, with a fault in each; and judges what is left.

Nothing may be gutted: a checkpoint with a root document validates and holds what was saved. Nobody may be told of a
success that is none. An error is a registered one, unless a signal has stopped the process; and an attempt afterwards
commits, or is told what is in its way.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np

import ucpformat as ucp
from tests.campaigns.faults.plan import Fault, Plan, faults_of
from tests.campaigns.faults.scenarios import SCENARIOS, Scenario, state
from ucpformat.errors import UcpError
from ucpformat.model.root import ROOT_KEY

__all__ = ["Campaign", "Run"]

SUCCESS, REGISTERED, STOPPED, UNREGISTERED = 0, 3, 4, 5
_DEADLINE = 60


@dataclass(frozen=True)
class Run:
    """A scenario and the fault that it meets."""

    scenario: Scenario
    fault: Fault


@dataclass
class Campaign:
    """Runs in a directory of their own; ``counts`` is how they ended, ``wrong`` what must not be."""

    plan: Plan
    directory: Path
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def runs(self) -> Iterator[Run]:
        """Every fault of every call of every scenario, as a run without any shows them."""
        for scenario in SCENARIOS:
            for fault in faults_of(self.calls(scenario)):
                yield Run(scenario, fault)

    def calls(self, scenario: Scenario) -> list[str]:
        """The calls of a scenario when nothing fails."""
        with self._place(scenario) as place:
            status, calls = self._forked(scenario, place, None)
            if status != SUCCESS:
                raise AssertionError(f"{scenario.name} fails without a fault: {status}")
            self._judge(scenario, place, "no fault", status)
        return calls

    def run(self, run: Run) -> None:
        """Run, and judge."""
        with self._place(run.scenario) as place:
            status, _ = self._forked(run.scenario, place, run.fault)
            fired = self.plan.fired
            self.counts["runs"] += 1
            if fired is None:
                self.counts["faults that were not met"] += 1
            self._judge(run.scenario, place, f"{run.fault} ({fired})", status)

    @contextmanager
    def _place(self, scenario: Scenario) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.directory, prefix="run-") as place:
            scenario.prepare(Path(place))
            yield Path(place)

    def _forked(self, scenario: Scenario, place: Path, fault: Fault | None) -> tuple[int, list[str]]:
        sys.stdout.flush()
        self.plan.arm(str(place), fault)
        child = os.fork()
        if child == 0:
            self._in_child(scenario, place)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status, self.plan.disarm()

    def _in_child(self, scenario: Scenario, place: Path) -> None:
        """Ends the process with a status that says how the scenario has ended."""
        ended = UNREGISTERED
        try:
            signal.alarm(_DEADLINE)
            signal.signal(signal.SIGTERM, _exit)
            warnings.simplefilter("ignore")  # what could not be removed, on purpose
            scenario.run(place)
            ended = SUCCESS
        except UcpError:
            ended = REGISTERED
        except (KeyboardInterrupt, SystemExit):
            ended = STOPPED
        except BaseException:
            self.plan.disarm()
            (place / "unregistered.txt").write_text(traceback.format_exc())
        finally:
            self.plan.disarm()
            os._exit(ended)

    def _judge(self, scenario: Scenario, place: Path, what: str, status: int) -> None:
        def say(fault: str) -> None:
            self.wrong.append(f"{scenario.name}, {what}: {fault}")

        names = {SUCCESS: "succeeded", REGISTERED: "registered errors", STOPPED: "stopped by a signal"}
        if status == -signal.SIGKILL:
            self.counts["killed"] += 1
        elif status in names:
            self.counts[names[status]] += 1
        elif status == UNREGISTERED:
            told = place / "unregistered.txt"
            say(f"an error that is not registered: {told.read_text() if told.exists() else ''}")
        else:
            say(f"ended with {status}")
        (place / "unregistered.txt").unlink(missing_ok=True)
        for name, number in (scenario.keeps or {}).items():
            if _committed(place / name) is None:
                say(f"{name} is gone")
            elif (harm := _harm(place / name, number)) is not None:
                say(f"{name} is gutted: {harm}")
        for name, number in (scenario.makes or {}).items():
            found = _committed(place / name)
            if found is None:
                if status == SUCCESS:
                    say(f"{name} is not there, and success was told")
                self._afterwards(place / name, number, say)
            elif (harm := _harm(place / name, number)) is not None:
                say(f"{name} is gutted: {harm}")
            else:
                self.counts["committed"] += 1

    def _afterwards(self, place: Path, number: int, say: Callable[[str], None]) -> None:
        """A save at the place that was left commits, unless clearing it broke off."""
        try:
            ucp.save(place, state(number))
        except UcpError as problem:
            if "died while it did" in problem.message:
                self.counts["left to the user"] += 1
            else:
                say(f"a save afterwards fails: {problem}")
        else:
            if (harm := _harm(place, number)) is not None:
                say(f"a save afterwards is gutted: {harm}")


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _committed(path: Path) -> Path | None:
    return path if (path / ROOT_KEY).exists() else None


def _harm(path: Path, number: int) -> str | None:
    """What is wrong with a committed checkpoint."""
    problems = [problem for problem in ucp.validate(path, workers=1) if problem.severity == "error"]
    if problems:
        return f"{problems[0].code} at {problems[0].at}"
    found = ucp.load(path)
    expected = state(number)
    if found["step"] != number or not np.array_equal(found["model"]["w"], expected["model"]["w"]):
        return "it holds something else"
    return None


def drawn(runs: Sequence[Run], count: int) -> list[Run]:
    """So many of the runs, at even distances."""
    return [runs[len(runs) * number // count] for number in range(min(count, len(runs)))]
