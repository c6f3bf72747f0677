"""Runs scenarios, each in a process forked from this one, with a fault in each; and judges what is left.

Nothing may be gutted: a checkpoint with a root document validates and holds what was saved. Nobody may be told of a
success that is none, in Python or by an exit code. An error is a registered one, unless a signal has stopped the
process; and an attempt afterwards commits, or is told what is in its way.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import ucpformat as ucp
from tests.campaigns.faults.ending import (
    LEFT_OPEN,
    REGISTERED,
    STOPPED,
    SUCCESS,
    UNREGISTERED,
    as_command,
    as_function,
    load_what_it_needs,
)
from tests.campaigns.faults.left import harm_of, harm_of_export, is_committed
from tests.campaigns.faults.plan import Fault, Plan, faults_of
from tests.campaigns.faults.ranks import act, ranks_of_a_job
from tests.campaigns.faults.scenario import Scenario
from tests.campaigns.faults.scenarios import SCENARIOS
from tests.campaigns.faults.state import state
from ucpformat.errors import UcpError

__all__ = ["Campaign", "Run", "drawn"]

_TRIES = 3
"""Threads and processes may make fewer calls than the time before: a fault that is not met is tried again."""


@dataclass(frozen=True)
class Run:
    """A scenario and the fault that it meets; of several processes, which one meets it."""

    scenario: Scenario
    fault: Fault
    victim: int = 0

    def __str__(self) -> str:
        who = f", rank {self.victim}" if self.scenario.world > 1 else ""
        return f"{self.scenario.name}{who}, {self.fault}"


@dataclass
class Campaign:
    """Runs in a directory of their own; ``counts`` is how they ended, ``wrong`` what must not be."""

    plan: Plan
    directory: Path
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _warm: set[str] = field(default_factory=set)

    def runs(self, scenarios: Sequence[Scenario] = SCENARIOS) -> Iterator[Run]:
        """Every fault of every call of every scenario, as a run without any shows them."""
        for scenario in scenarios:
            found = [
                Run(scenario, fault, victim)
                for victim in range(scenario.world)
                for fault in faults_of(self.calls(scenario, victim))
            ]
            yield from found[:: scenario.stride]

    def calls(self, scenario: Scenario, victim: int = 0) -> list[str]:
        """The calls of a scenario when nothing fails; of several processes those of one."""
        if scenario.command and scenario.name not in self._warm:
            with self._place(scenario) as place:
                load_what_it_needs(scenario.command, place)
            self._warm.add(scenario.name)
        with self._place(scenario) as place:
            ended, calls = self._forked(scenario, place, None, victim)
            self._judge(scenario, place, f"{scenario.name}, no fault", ended, None)
            if {*ended} != {SUCCESS}:
                said = _said(place)
                raise AssertionError(f"{scenario.name} fails without a fault: {ended} {said}")
        return calls

    def run(self, run: Run) -> None:
        """Run, and judge."""
        for attempt in range(_TRIES):
            with self._place(run.scenario) as place:
                ended, _ = self._forked(run.scenario, place, run.fault, run.victim)
                fired = self.plan.fired
                if fired is None and attempt < _TRIES - 1:
                    continue
                self.counts["runs"] += 1
                self.counts[f"runs of {run.scenario.name}"] += 1
                if fired is None:
                    self.counts["faults that were not met"] += 1
                self._judge(run.scenario, place, f"{run} ({fired})", ended, run)
                return

    @contextmanager
    def _place(self, scenario: Scenario) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.directory, prefix="run-") as above:
            place = Path(above, "run")
            place.mkdir()
            scenario.prepare(place)
            yield place

    def _forked(
        self, scenario: Scenario, place: Path, fault: Fault | None, victim: int
    ) -> tuple[list[int], list[str]]:
        """How the processes of a scenario have ended, and the calls of the one that may meet the fault."""
        sys.stdout.flush()
        if scenario.world > 1:
            import torch.distributed  # noqa: F401 - once, and not in every rank
        self.plan.arm(str(place), fault)
        said = place.with_name("said")
        if scenario.world > 1:

            def rank_of(work: Callable[[], None]) -> None:
                as_function(work, self.plan, said)

            ended = ranks_of_a_job(scenario.world, victim, place, rank_of, scenario.run)
            return [ended[rank] for rank in range(scenario.world)], self.plan.disarm()
        child = os.fork()
        if child == 0:
            act(True)
            if scenario.command:
                as_command(scenario.command, place, self.plan, said)
            else:
                as_function(lambda: scenario.run(place), self.plan, said)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return [status], self.plan.disarm()

    def _judge(self, scenario: Scenario, place: Path, what: str, ended: list[int], run: Run | None) -> None:
        def say(fault: str) -> None:
            self.wrong.append(f"{what}: {fault}")

        for rank, code in enumerate(ended):
            is_victim = run is not None and run.victim == rank
            self._judge_end(scenario, code, run if is_victim else None, _said(place), say)
        is_told = SUCCESS in ended
        for name, number in (scenario.keeps or {}).items():
            if not is_committed(place / name):
                say(f"{name} is gone")
            elif (harm := harm_of(place / name, number)) is not None:
                say(f"{name} is gutted: {harm}")
        for name in scenario.gone:
            if is_told and (place / name).exists():
                say(f"{name} is there, and success was told")
            elif is_committed(place / name) and (harm := harm_of(place / name, int(name[5]))) is not None:
                say(f"{name} is gutted: {harm}")
        for name, number in (scenario.mends or {}).items():
            self._judge_mended(place, name, number, say, is_told=is_told)
        for name, number in (scenario.makes or {}).items():
            if name in scenario.formats:
                self._judge_export(place / name, scenario.formats[name], number, say, is_told=is_told)
            elif not is_committed(place / name):
                if is_told:
                    say(f"{name} is not there, and success was told")
                self._afterwards(place / name, number, say)
            elif (harm := harm_of(place / name, number)) is not None:
                say(f"{name} is gutted: {harm}")
            else:
                self.counts["committed"] += 1

    def _judge_end(
        self, scenario: Scenario, code: int, run: Run | None, said: str, say: Callable[[str], None]
    ) -> None:
        """The exit code of a process; ``run`` where it has met the fault."""
        met = run.fault.what if run is not None else None
        if code >= LEFT_OPEN and not scenario.command:
            code -= LEFT_OPEN
            # Nobody can do more about a close that was not done.
            if run is not None and run.fault.when == "before" and self.plan.fired == "close":
                self.counts["descriptors that could not be closed"] += 1
            elif ".debris-" in said:
                # The standard library removes trees, and loses what it has opened when the signal came.
                self.counts["descriptors that `shutil.rmtree` has lost"] += 1
            else:
                say(f"descriptors stay open: {said}")
        names = {SUCCESS: "succeeded", REGISTERED: "registered errors", STOPPED: "stopped by a signal"}
        if code == -signal.SIGKILL and met == signal.SIGKILL:
            self.counts["killed"] += 1
        elif not scenario.command:
            if code in names:
                self.counts[names[code]] += 1
            elif code == UNREGISTERED:
                say(f"an error that is not registered: {said}")
            else:
                say(f"ended with {code}: {said}")
        elif code == 0:
            self.counts["succeeded"] += 1
        elif code == 1 and "error UCP-E-" in said and "Traceback" not in said:
            self.counts["registered errors"] += 1
        elif (code, met) in ((130, signal.SIGINT), (-signal.SIGTERM, signal.SIGTERM)):
            self.counts["stopped by a signal"] += 1
        else:
            say(f"the exit code is {code}: {said}")

    def _judge_mended(
        self, place: Path, name: str, number: int, say: Callable[[str], None], *, is_told: bool
    ) -> None:
        """A checkpoint under repair is whole, or as damaged as before, or less; and can be repaired afterwards."""
        if not is_committed(place / name):
            say(f"{name} is gone")
            return
        harm = harm_of(place / name, number)
        if harm is None:
            self.counts["repaired"] += 1
        elif is_told:
            say(f"{name} is damaged, and success was told: {harm}")
        elif not harm.startswith("UCP-E-"):
            say(f"{name} is damaged, and nobody is told: {harm}")
        else:
            again = ucp.repair(place / name, [place / "source.ucp"])
            if not again.is_whole or (harm := harm_of(place / name, number)) is not None:
                say(f"a repair afterwards leaves {harm or again.problems}")

    def _judge_export(
        self, place: Path, format_name: str, number: int, say: Callable[[str], None], *, is_told: bool
    ) -> None:
        found = harm_of_export(place, format_name, number)
        if found == "whole":
            self.counts["committed"] += 1
        elif is_told:
            say(f"{place.name} is {found}, and success was told")
        elif found not in ("absent", "refused"):
            say(f"{place.name} is {found}")
        else:
            self.counts[f"exports {found}"] += 1

    def _afterwards(self, place: Path, number: int, say: Callable[[str], None]) -> None:
        """A save at the place that was left commits, unless clearing it broke off."""
        try:
            ucp.save(place, state(number))
        except UcpError as problem:
            if "died while it did" in problem.message:
                # A process was killed while it cleared what an earlier one had left (SPEC 8.2, steps 1 to 5).
                self.counts["left to the user, being cleared"] += 1
            else:
                say(f"a save afterwards fails: {problem}")
        else:
            if (harm := harm_of(place, number)) is not None:
                say(f"a save afterwards is gutted: {harm}")


def _said(place: Path) -> str:
    said = place.with_name("said")
    return said.read_text(errors="replace")[-2000:] if said.exists() else ""


def drawn(runs: Sequence[Run], count: int) -> list[Run]:
    """So many of the runs, at even distances."""
    return [runs[len(runs) * number // count] for number in range(min(count, len(runs)))]
