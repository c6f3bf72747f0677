"""Ranks that hold one state save it in every mode, and the table has them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replicas import CONTENDERS, compare_replicas, table

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]


@pytest.mark.filterwarnings("ignore")
def test_every_mode_is_measured(tmp_path: Path) -> None:
    found = compare_replicas(1 << 20, ranks=2, repeats=1, directory=tmp_path)
    assert set(found) == {(name, what) for name in CONTENDERS for what in ("save", "stall")}
    assert [row[0] for row in table(found)[1:]] == list(CONTENDERS)
    assert list(tmp_path.iterdir()) == []
