"""`python -m tests.campaigns.hostile`: fuzzes parsers, importers and whole checkpoints, each in processes of its own.

``--parsers``, ``--importers`` and ``--checkpoints`` are how many executions each of the three has, over all its
targets, each of which has the same time of a processor; ``--jobs`` how many processes there are at a time;
``--minutes`` ends it early. What is found is kept below ``--found``, as sources that `ucp convert` and
`ucp validate` take. Ends with 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests.campaigns.hostile.seeds import SEEDS, seeds_of
from tests.campaigns.hostile.targets import CHECKPOINTS, IMPORTERS, PARSERS

_PORTION: Final = 5_000
_SILENCE: Final = 300
"""Seconds without a word from a process, on a machine that is busy, after which it hangs in code of C."""


@dataclass(slots=True)
class _Process:
    target: str
    runs: int
    number: int
    process: subprocess.Popen[str]
    log: Path
    facts: dict[str, Any] = field(default_factory=dict)

    def read(self) -> bool:
        """Whether it has said something new."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        facts = json.loads(lines[-1]) if lines else {}
        is_new = facts != self.facts
        self.facts = facts
        return is_new


class _Campaign:
    def __init__(self, folder: Path, found: Path, first: int) -> None:
        self._folder, self._found, self._first = folder, found, first
        self.runs: dict[str, int] = {}
        self.slowest: dict[str, float] = {}
        self.largest: dict[str, int] = {}
        self.wrong: dict[str, set[str]] = {}

    def start(self, target: str, runs: int, number: int) -> _Process:
        scratch = self._folder / f"{target}-{number}"
        log = self._folder / f"{target}-{number}.log"
        command = [
            sys.executable,
            "-m",
            "tests.campaigns.hostile.worker",
            target,
            str(self._first + number),
            str(runs),
        ]
        with log.open("w") as out:
            process = subprocess.Popen(
                [*command, str(self._folder / "seeds"), str(scratch), str(self._found)],
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        return _Process(target, runs, number, process, log)

    def ended(self, one: _Process, *, is_cut: bool) -> None:
        one.read()
        target, facts = one.target, one.facts
        self.runs[target] = self.runs.get(target, 0) + int(facts.get("runs", 0))
        self.slowest[target] = max(self.slowest.get(target, 0.0), float(facts.get("slowest", 0)))
        self.largest[target] = max(self.largest.get(target, 0), int(facts.get("largest", 0)))
        wrong = self.wrong.setdefault(target, set())
        wrong.update(facts.get("findings", ()))
        if not is_cut and one.process.returncode:
            wrong.add(f"the process ended with {one.process.returncode}: {one.log.read_text()[-500:]}")


class _Work:
    """Executions that are left, handed out in portions: to the target that has used least of a processor."""

    def __init__(self, groups: Sequence[tuple[Sequence[str], int]]) -> None:
        self._targets = deque((targets, runs) for targets, runs in groups if targets and runs)
        self._numbers = count()
        self.used: defaultdict[str, float] = defaultdict(float)
        """Seconds of a processor, by target."""

    def __bool__(self) -> bool:
        return bool(self._targets)

    def next(self) -> tuple[int, str, int]:
        """Return the number of a portion, its target, and its executions."""
        targets, left = self._targets.popleft()
        target = min(targets, key=lambda name: (self.used[name], name))
        self.used[target] += 1  # until its process says more
        runs = min(_PORTION, left)
        if runs < left:
            self._targets.appendleft((targets, left - runs))
        return next(self._numbers), target, runs

    def stop(self) -> None:
        """Hand out nothing more."""
        self._targets.clear()


def main() -> int:
    """Run, and say what was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parsers", type=int, default=850_000)
    parser.add_argument("--importers", type=int, default=150_000)
    parser.add_argument("--checkpoints", type=int, default=100_000)
    parser.add_argument("--only", default="", help="targets, separated by commas")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--found", type=Path, default=Path("out/hostile"))
    options = parser.parse_args()
    options.found.mkdir(parents=True, exist_ok=True)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="ucp-hostile-") as name:
        folder = Path(name)
        for format_name in SEEDS:
            seeds_of(format_name, folder / "seeds")
        campaign = _Campaign(folder, options.found.resolve(), options.first)
        only = {one for one in options.only.split(",") if one}
        groups = (
            (PARSERS, options.parsers),
            (IMPORTERS, options.importers),
            (CHECKPOINTS, options.checkpoints),
        )
        work = _Work([([one for one in all_ if not only or one in only], runs) for all_, runs in groups])
        _run(campaign, work, options.jobs, time.monotonic() + 60 * options.minutes)
    print(f"{'target':20}{'executions':>12}{'slowest s':>11}{'most MiB':>10}  wrong")
    for target in sorted(campaign.runs):
        wrong = campaign.wrong[target]
        print(
            f"{target:20}{campaign.runs[target]:>12,}{campaign.slowest[target]:>11.3f}"
            f"{campaign.largest[target] / 2**20:>10.1f}  {len(wrong)}"
        )
    for target, found in sorted(campaign.wrong.items()):
        for one in sorted(found):
            print(f"WRONG: {target}: {one}")
    total = sum(map(len, campaign.wrong.values()))
    print(f"{sum(campaign.runs.values()):,} executions, {total} wrong")
    return 1 if total else 0


def _run(campaign: _Campaign, work: _Work, jobs: int, stop: float) -> None:
    running: list[_Process] = []
    heard: dict[int, float] = {}
    while work or running:
        is_over = time.monotonic() > stop
        while work and len(running) < jobs and not is_over:
            number, target, runs = work.next()
            running.append(campaign.start(target, runs, number))
            heard[number] = time.monotonic()
        if is_over:
            work.stop()
        time.sleep(0.5)
        for one in list(running):
            if one.read():
                heard[one.number] = time.monotonic()
            is_silent = time.monotonic() - heard[one.number] > _SILENCE
            if one.process.poll() is None and (is_over or is_silent):
                one.process.send_signal(signal.SIGKILL)
                one.process.wait()
            if one.process.poll() is not None:
                running.remove(one)
                campaign.ended(one, is_cut=is_over)
                work.used[one.target] += float(one.facts.get("processor", 0))


if __name__ == "__main__":
    sys.exit(main())
