"""Everybody reads the right shares, and no more is read than has to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reshard import CASES, Work, compare_reshard, table

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]


@pytest.mark.filterwarnings("ignore")
def test_shares_are_right_and_rows_are_read_once(tmp_path: Path) -> None:
    # What is loaded is compared with what was saved in the round that warms up.
    outcome = compare_reshard(
        Work(2, side=1024, writers=2, readers=2),
        repeats=1,
        directory=tmp_path,
        command="",
        report=lambda _: None,
    )
    assert outcome.cells.keys() == set(CASES)
    assert outcome.nbytes == 2 << 22
    ours = {case: row["ucp"].read_bytes / outcome.nbytes for case, row in outcome.cells.items()}
    assert ours["rows", "flat"] < 1.1
    unverified = outcome.cells["rows", "rows"]["ucp-unverified"].read_bytes
    assert unverified / outcome.nbytes < 1.1
    assert max(ours.values()) <= 2.1  # no rank reads a byte twice
    assert len(table(outcome)) == 1 + sum(map(len, outcome.cells.values()))
