"""Replicas that load together get the right shares; read-once halves what is read of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reshard import Work
from benchmarks.together import compare_together, table

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]


@pytest.mark.filterwarnings("ignore")
def test_replicas_read_each_stored_byte_once(tmp_path: Path) -> None:
    # What is loaded is compared with what was saved in the round that warms up.
    work = Work(2, side=1024, writers=2, readers=2)
    found = compare_together(work, repeats=1, cold=True, directory=tmp_path)
    read = {key: loads[0].nbytes / work.nbytes for key, loads in found.items()}
    assert read["rows", "rows", "ucp-once"] == 1.0
    assert read["rows", "rows", "ucp"] == 2.0
    assert len(table(work, found)) == 1 + len(found)
