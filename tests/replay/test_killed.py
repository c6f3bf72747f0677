"""A job that is killed at any call that touches a file goes on from a step that was durable, and from no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import launch

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]


def test_a_job_that_is_killed_goes_on_from_what_was_durable(tmp_path: Path) -> None:
    """``python -m tests.replay.killed_worker DIRECTORY 0 200`` is the campaign."""
    launch("tests.replay.killed_worker", [str(tmp_path), "0", "4"], 1)
    assert int((tmp_path / "deaths-0").read_text()) > 4
