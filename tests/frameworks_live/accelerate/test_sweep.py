"""What ``Accelerator.save_state`` of two ranks wrote, each file harmed in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks_live.sweep import sweep
from tests.processes import launch


@pytest.mark.distributed
def test_no_file_is_lost_in_silence(tmp_path: Path) -> None:
    launch("tests.frameworks_live.accelerate.saver", [str(tmp_path / "state")], 2)
    found = sweep(
        tmp_path / "state",
        tmp_path / "scratch",
        blind={
            r"(scheduler\.bin|custom_checkpoint_0\.pkl)": "nothing says whether the job had one",
            r"random_states_1\.pkl": "nothing says how many ranks there were",
        },
    )
    found.check()
    print(found.counts)
