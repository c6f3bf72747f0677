"""Stock DCP on this format under four ranks: one launch does it all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import launch
from ucpformat import validate


@pytest.mark.distributed
def test_dcp_saves_and_loads_under_four_ranks(tmp_path: Path) -> None:
    launch("tests.integrations.torch_dcp.worker", [str(tmp_path)], 4)
    checkpoints = sorted(tmp_path.glob("*.ucp"))
    assert len(checkpoints) >= 10
    for path in checkpoints:
        if (path / "ucp.json").exists():
            assert list(validate(path)) == []


@pytest.mark.distributed
def test_what_torch_contradicts_is_kept_or_refused(tmp_path: Path) -> None:
    launch("tests.integrations.torch_dcp.uneven_worker", [str(tmp_path)], 8)
    for name in ("ours", "native"):
        assert list(validate(tmp_path / f"{name}.ucp")) == []
