"""What the benchmark loads over S3 is right, and its counts are of what was asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.s3_objects import TASKS, compare_s3, table

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]


@pytest.mark.filterwarnings("ignore")
def test_everybody_saves_and_loads(tmp_path: Path) -> None:
    # What is loaded is compared with what was saved in the round that warms up.
    outcome = compare_s3(
        state_name="gpt",
        nbytes=8 << 20,
        repeats=1,
        milliseconds=0,
        per_connection=0,
        tasks=[*TASKS],
        directory=tmp_path,
        command="",
        report=lambda _: None,
    )
    counts = {what: calls[0].counts for what, calls in outcome.calls.items()}
    nbytes = outcome.nbytes["load"]
    assert nbytes <= counts["load", "ucp"].sent < 1.1 * nbytes
    assert nbytes <= counts["save", "ucp"].received < 1.1 * nbytes
    assert nbytes - 500 <= counts["load", "s3fs"].sent <= nbytes
    assert outcome.nbytes["load a share"] * 7 < nbytes
    # Of so little, what lies between is sooner read than left out by another request (`Calls.gap`).
    assert counts["load a share", "ucp-unverified"].sent < 1.1 * nbytes
    assert counts["load a share", "ucp-unverified"].requests < counts["load a share", "torch-dcp"].requests
    assert len(table(outcome)) == 1 + len(outcome.calls)
