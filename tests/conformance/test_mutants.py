"""Every deliberately wrong driver is caught, and one that is right is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from ucp_conformance import generated as search
from ucp_conformance.connection import Connection, DriverError
from ucp_conformance.generated import run_pair, run_pairs
from ucp_conformance.results import BAD, Result
from ucp_conformance.stateful import run_stateful
from ucp_conformance.static import run_static

from tests.conformance.suite import CONFORMANCE, ORACLE, ignore, mutant

Run = Callable[[Connection], Iterator[Result]]


def static(only: str) -> Run:
    return lambda connection: run_static(connection, ignore, only=only)


# A planted fault shows in about one example of a hundred, and the search ends with the first that it finds:
# what is drawn also depends on the modules that other tests have imported, whatever the seed.
ENOUGH = 3000


def generated(connection: Connection) -> Iterator[Result]:
    return run_pairs([connection], ignore, examples=ENOUGH, seed_=0)


def sequences(connection: Connection) -> Iterator[Result]:
    return run_stateful([connection], ignore, sequences=6, seed_=0)


# Each of conformance/mutants/planted.py, and the cases that are there to find it.
PLANTED = {
    "tells-twice": "bad/precedence",
    "refuses-noncharacters": "good/names",
    "fills-holes": "bad/write/hole",
    "extends-inputs": "bad/write/short",
    "stores-any-bool": "bad/write/bool-two",
    "publishes-in-place": "good/write/published",
    "leaves-drafts": "good/write/published",
    "writes-over-debris": "good/write/debris",
    "clears-checkpoints": "bad/write/exists",
    "drops-atom-annotations": "good/rewrite/annotations-packed",
    "drops-slot-annotations": "good/rewrite/annotations-packed",
    "drops-state-annotations": "good/rewrite/annotations-packed",
    "ignores-content": "bad/rewrite/content",
    "copies-damaged-blobs": "bad/rewrite/blob",
    "accumulates-wide": "good/layouts/reduced-float16",
    "adds-backwards": "good/layouts/reduced-float16-order",
    "maximum-of-bytes": "good/layouts/reduced-int8-max",
    "counts-volume": "bad/segments/overlap-and-gap",
    "has-leap-seconds": "bad/values/time-second-60",
    "sorts-by-utf-16": "bad/values/set-utf-16-order",
    "compares-sets-in-order": "bad/values/set-equal-frozensets",
    "big-endian-checksum": "bad/chunks/codec-big-endian",
    "digests-an-empty-block": "bad/chunks/content-of-nothing",
    "shares-blobs": "bad/blobs/key-twice",
    "uses-deciding-axes-late": "bad/layouts/by-after-blocks",
    "multiplies-limits": "good/limits/ranges-twice",
}

CAUGHT_BY: dict[str, Run] = {
    "accepts-all": static("bad/digest"),
    "refuses-all": static("good/parents"),
    "floor-division": generated,
    "transposes": static("good/grid/matrix"),
    "drops-piece": static("good/layouts"),
    "ignores-features": static("forward/feature"),
    "skips-checksums": static("bad/chunks"),
    "skips-digests": static("bad/digest"),
    "wrong-place": static("bad/names"),
    "crashes": static("good/parents"),
    "hangs": static("good/grid/cube"),
    "prints-noise": static("good/basic"),
    "wrong-id": static("good/basic"),
    "tears-writes": sequences,
    "overwrites": static("bad/write"),
    "copies-extensions": static("forward/rewrite"),
    "executes": static("good/state"),
    "peeks": generated,
    **{name: static(only) for name, only in PLANTED.items()},
}


def first_failure(command: str, run: Run, timeout: float) -> str | None:
    """The outcome of the first check that fails; the driver without the fault passes every one (test_runs.py)."""
    connection = Connection(command, label="x", timeout=timeout)
    try:
        return next((result.outcome for result in run(connection) if result.outcome in BAD), None)
    except DriverError:
        return "protocol"
    finally:
        connection.kill()


def test_every_mutant_is_listed() -> None:
    command = [sys.executable, str(CONFORMANCE / "mutants"), "--list"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == list(CAUGHT_BY)


@pytest.mark.parametrize("name", CAUGHT_BY)
def test_mutant_is_caught(name: str) -> None:
    # Only the one that hangs is caught by the clock: the others must not be, however slow the machine.
    found = first_failure(mutant(name), CAUGHT_BY[name], 2.0 if name == "hangs" else 60.0)
    assert found is not None
    assert (found == "timeout") == (name == "hangs")


def test_the_mutant_that_peeks_knows_the_vectors_that_it_has_seen() -> None:
    """Otherwise it would be caught for another reason."""
    connection = Connection(mutant("peeks"), label="x", timeout=60.0)
    try:
        found = [
            result.outcome
            for result in run_static(connection, ignore, only="bad/digest")
            if ":validate" in result.id
        ]
    finally:
        connection.kill()
    assert found.count("pass") > len(found) / 2


def test_a_planted_fault_shrinks_to_a_small_case_and_is_blamed_on_its_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "SHRINKING_S", 300.0)
    right = Connection(ORACLE, label="right", timeout=60.0)
    wrong = Connection(mutant("floor-division"), label="wrong", timeout=60.0)
    try:
        found = run_pair(right, wrong, examples=ENOUGH, seed_=0)
        found += run_pair(wrong, right, examples=ENOUGH, seed_=0)
    finally:
        right.kill()
        wrong.kill()
    bad = {result.id: result for result in found if result.outcome in BAD}
    assert bad.keys() == {"generated/right-to-wrong:reader", "generated/wrong-to-right:writer"}
    assert {result.driver for result in bad.values()} == {"wrong"}
    read = bad["generated/right-to-wrong:reader"]
    assert read.case is not None
    assert sum(read.case["plan"]["shape"]) <= 3
    assert len(read.case["plan"]["target"]["steps"]) == 1
