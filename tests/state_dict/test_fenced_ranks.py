"""With ``fence=``, ranks that hold a model in any way save what it was at the save, while they train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import launch

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("how", "world"), [("fsdp", 2), ("fsdp", 4), ("tp", 2), ("tp", 4), ("ddp", 2), ("ddp", 4)]
)
def test_ranks_save_the_state_at_the_call(tmp_path: Path, how: str, world: int) -> None:
    launch("tests.state_dict.fenced_ranks", [str(tmp_path), how], world)
