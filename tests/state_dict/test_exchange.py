"""What ranks send to one another, under gloo: bytes really travel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import launch


@pytest.mark.distributed
def test_redistribution_and_shared_chunks_of_real_tensors(tmp_path: Path) -> None:
    launch("tests.conversion.exchange_worker", [str(tmp_path)], 4)
