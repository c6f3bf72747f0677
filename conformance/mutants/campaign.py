"""`python campaign.py [NAME ...]`: plant each defect in a copy of its implementation, and see the suite find it.

Defects of what no driver is asked for are found by tests of the library, which each of them names.

Ends with 1 where a defect is not found, or where an implementation fails without one.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from defects import IMPLEMENTATIONS, ROOT, Defect, EditError, copy_sources, load, planted

from ucp_conformance.connection import Connection, DriverError
from ucp_conformance.generated import run_lives, run_pairs
from ucp_conformance.log_races import run_races
from ucp_conformance.results import Result
from ucp_conformance.stateful import run_stateful
from ucp_conformance.static import run_static
from ucp_conformance.vectors import all_vectors

EXAMPLES: Final = 100
"""Exchanges, of a defect that no static case finds."""
SEQUENCES: Final = 4
LIVES: Final = "lives"
"""What stands in the place of a case where lives of logs are near a defect, so many."""
EXAMPLES_OF_LIVES: Final = 60
RACES: Final = "races"
"""The same where races are near."""
TIMEOUT_S: Final = 60.0
"""How long a reply may take, on a busy machine as well."""
TESTS_TIMEOUT_S: Final = 300.0
"""How long tests may take; a defect that keeps them from ending is found."""
FINE: Final = frozenset({"pass", "unclaimed"})


@dataclass(frozen=True)
class Verdict:
    """What became of a defect: the check that found it, or None, and whether it was among those tried first."""

    defect: Defect
    killer: str | None
    is_near: bool
    seconds: float
    fault: str = ""


def command_of(name: str, tree: Path) -> str:
    """Return the command that starts the driver of an implementation in a folder."""
    if name == "node":
        return f"node {shlex.quote(str(tree / 'conformance/drivers/node/driver.mjs'))}"
    driver = tree / "conformance/drivers/python/driver.py"
    # Nothing is compiled into copies: what is compiled already is copied with the sources.
    return f"env PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={shlex.quote(str(tree))} {sys.executable} {shlex.quote(str(driver))}"


def ignore(_: Result) -> None:
    """Ignore it."""


def cases_of(near: Sequence[str]) -> list[str]:
    """Return ids of the cases that one of the texts names, or that hold a requirement among them."""
    found: dict[str, None] = {}
    for text in (text for text in near if text not in (LIVES, RACES)):
        named = [
            vector.id for vector in all_vectors() if text in vector.id or text in vector.case["requirements"]
        ]
        if not named:
            raise EditError(f"no case is called {text}")
        found.update(dict.fromkeys(named))
    return list(found)


def failures(results: Iterable[Result]) -> Iterator[str]:
    """Return ids of results that are failures, with what came out."""
    return (f"{result.id} ({result.outcome})" for result in results if result.outcome not in FINE)


def attempts(connection: Connection, defect: Defect) -> Iterator[tuple[Iterator[Result], bool]]:
    """Yield results in the order in which they are asked for, and whether they are of cases near the defect."""
    for case in cases_of(defect.near):
        yield run_static(connection, ignore, only=case), True
    if LIVES in defect.near:
        yield lives_of(connection), True
    if RACES in defect.near:
        yield races_of(connection), True
    yield run_static(connection, ignore), False
    yield run_pairs([connection], ignore, examples=EXAMPLES, seed_=0), False
    yield run_stateful([connection], ignore, sequences=SEQUENCES, seed_=0), False
    yield lives_of(connection), False
    yield races_of(connection), False


def lives_of(connection: Connection) -> Iterator[Result]:
    """Yield what comes of lives of logs, in which an implementation goes on from itself."""
    return run_lives([connection], ignore, examples=EXAMPLES_OF_LIVES, seed_=0)


def races_of(connection: Connection) -> Iterator[Result]:
    """Yield what comes of two processes of an implementation that race for epochs of a log."""
    return run_races([connection], ignore, rounds=EXAMPLES_OF_LIVES, seed_=0)


def first_failure(tests: Sequence[str], tree: Path, timeout: float | None = None) -> str | None:
    """Run tests of the library in a folder that has both; return the id of the first that fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "UCP_HYPOTHESIS_PROFILE": "ci",
    }
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            said, _ = running.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)  # with all processes of the tests
            return f"{tests[0]} (no end)"
    if running.returncode not in (0, 1):
        raise EditError(f"pytest ends with {running.returncode}: {said[-4000:]}")
    failed = [line.split(" ")[1] for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else None


def tried(defect: Defect) -> Verdict:
    """Plant a defect and look for a check that fails."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ucp-mutant-") as folder:
        tree = Path(folder)
        try:
            planted(defect, tree)
            killer, is_near = _killer(defect, tree)
        except EditError as wrong:
            return Verdict(defect, None, False, time.monotonic() - start, str(wrong))
    return Verdict(defect, killer, is_near, time.monotonic() - start)


def _killer(defect: Defect, tree: Path) -> tuple[str | None, bool]:
    if defect.tests:
        return first_failure(defect.tests, tree, TESTS_TIMEOUT_S), True
    connection = Connection(
        command_of(defect.implementation, tree), label=defect.implementation, timeout=TIMEOUT_S
    )
    try:
        for results, is_near in attempts(connection, defect):
            killer = next(failures(results), None)
            if killer is not None:
                return killer, is_near
    except DriverError as wrong:
        raise EditError(f"the driver does not start: {wrong}") from None
    finally:
        connection.kill()
    return None, False


def spared(implementation: str, defects: Sequence[Defect]) -> list[str]:
    """Return what fails of the implementation as it is, among the cases that are tried first; nothing may."""
    near = cases_of([text for defect in defects for text in defect.near])
    connection = Connection(command_of(implementation, ROOT), label=implementation, timeout=TIMEOUT_S)
    try:
        found = [one for case in near for one in failures(run_static(connection, ignore, only=case))]
        for text, results_of in ((LIVES, lives_of), (RACES, races_of)):
            if any(text in defect.near for defect in defects):
                found += failures(results_of(connection))
        return found
    finally:
        connection.kill()


def spared_by_tests(defects: Sequence[Defect]) -> str | None:
    """Return the first test that fails without a defect, of those that find some; none may."""
    tests = dict.fromkeys(test for defect in defects for test in defect.tests)
    modules = {test for test in tests if "::" not in test}
    chosen = [test for test in tests if test in modules or test.partition("::")[0] not in modules]
    with tempfile.TemporaryDirectory(prefix="ucp-mutant-") as folder:
        copy_sources("python", Path(folder), has_tests=True)
        return first_failure(chosen, Path(folder)) if chosen else None


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield one line for each defect, and one for each kind and implementation."""
    for verdict in verdicts:
        defect = verdict.defect
        found = verdict.killer or verdict.fault or "SURVIVES"
        far = "" if verdict.is_near or verdict.killer is None else "  [far]"
        yield f"{defect.implementation:6}  {defect.kind:12}  {defect.name:34}  {verdict.seconds:5.1f} s  {found}{far}"
    yield ""
    counts = Counter((one.defect.kind, one.defect.implementation, one.killer is not None) for one in verdicts)
    for kind in dict.fromkeys(one.defect.kind for one in verdicts):
        told = [
            f"{name} {counts[kind, name, True]} of {counts[kind, name, True] + counts[kind, name, False]}"
            for name in IMPLEMENTATIONS
        ]
        yield f"{kind:12}  {', '.join(told)}"
    yield f"{sum(one.killer is not None for one in verdicts)} of {len(verdicts)} defects found"


def main(arguments: Sequence[str]) -> int:
    """Run the campaign; returns the exit code."""
    parser = argparse.ArgumentParser(description="Plant defects, and see the suite and the tests find them.")
    parser.add_argument(
        "names", nargs="*", help="Defects, NAME or IMPLEMENTATION:NAME; all if none is named."
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="How many are tried at once.")
    options = parser.parse_args(arguments)
    defects = [defect for name in IMPLEMENTATIONS for defect in load(name)]
    if options.names:
        wanted = set(options.names)
        defects = [
            one
            for one in defects
            if wanted & {one.name, f"{one.implementation}:{one.name}", one.implementation, one.kind}
        ]
    if not defects:
        parser.error("there is no such defect")
    for name in IMPLEMENTATIONS:
        mine = [defect for defect in defects if defect.implementation == name and not defect.tests]
        failed = spared(name, mine) if mine else []
        if failed:
            print(f"{name} fails without a defect: {', '.join(failed[:5])}")
            return 1
    if (failing := spared_by_tests(defects)) is not None:
        print(f"python fails without a defect: {failing}")
        return 1
    verdicts: list[Verdict] = []
    with ProcessPoolExecutor(max_workers=options.jobs) as executor:
        for verdict in executor.map(tried, defects):
            verdicts.append(verdict)
            print(next(table([verdict])), flush=True)
    print("\n".join([*table(verdicts)][len(verdicts) :]))
    return 0 if all(verdict.killer is not None for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
