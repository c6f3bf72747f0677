"""Cases of writers of update logs: what a wrong one does is found by the case that is about it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from ucp_conformance.connection import Connection
from ucp_conformance.explain import explained
from ucp_conformance.static import run_static

from tests.conformance.suite import CONFORMANCE, ORACLE, ignore

sys.path.append(str(CONFORMANCE / "mutants"))
from defects import load, planted

GOOD, BAD = "good/log-writes", "bad/log-writes"


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")
@pytest.mark.parametrize(
    ("name", "case", "why"),
    [
        ("log-epoch-without-after", f"{GOOD}/next-number", "after: expected"),
        ("log-epoch-number-used-again", f"{GOOD}/next-fork", "FENCED"),
        ("log-step-lost", f"{GOOD}/batch-steps", "steps and not"),
        ("log-previous-of-the-epoch", f"{GOOD}/batch-second", "/previous"),
        ("log-rows-as-elements", f"{GOOD}/form-rows-of-a-vector", "where rows were given"),
        ("log-zeros-are-absent", f"{GOOD}/form-zeros", "entries of the pieces"),
        ("log-skip-forgotten", f"{GOOD}/batch-steps", "skipped"),
        ("log-sums-of-pieces", f"{GOOD}/sums-1", "other sums"),
        ("log-batch-written-over", f"{BAD}/batch-there", "accepted"),
        ("log-not-fenced", f"{BAD}/batch-fenced", "accepted"),
    ],
)
def test_a_wrong_writer_is_found_by_the_case_that_is_about_it(
    tmp_path: Path, name: str, case: str, why: str
) -> None:
    (defect,) = (one for one in load("node") if one.name == name)
    planted(defect, tmp_path)
    connection = Connection(f"node {tmp_path / 'conformance/drivers/node/driver.mjs'}", label="wrong")
    try:
        (result,) = [
            one for one in run_static(connection, ignore, only=case) if one.id.startswith(f"{case}:")
        ]
    finally:
        connection.kill()
    assert result.outcome == "fail"
    assert why in result.detail


def test_who_writes_no_logs_is_not_asked() -> None:
    connection = Connection(ORACLE, label="oracle")
    try:
        found = list(run_static(connection, ignore, only="/log-writes/"))
    finally:
        connection.kill()
    assert {(result.outcome, result.detail) for result in found} == {("unclaimed", "writing update-log")}


def test_a_case_is_explained_with_what_happens_before_it() -> None:
    told = explained(f"{BAD}/batch-second-there")
    assert "before it: begin-epoch" in told
    assert "before it: batches/0/0/5.batch is put there" in told
    assert "expected: a refusal with UCP-E-EXISTS" in told
    assert "written as the text says" in explained(f"{GOOD}/next")
