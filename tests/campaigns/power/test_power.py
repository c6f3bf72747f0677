"""The short form of the power campaign, and protocols that it finds out; `make campaigns` judges far more states."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.campaigns.power.broken import BROKEN
from tests.campaigns.power.campaign import Campaign, recorded
from tests.campaigns.power.operations import OPERATIONS

pytestmark = [
    pytest.mark.skipif(
        shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler, and Linux"
    ),
    pytest.mark.filterwarnings("ignore"),
]

STATES = 60
SHORT = (
    "update log",
    "save",
    "save, plain",
    "increment of what is not durable",
    "attach",
    "cp",
    "repair",
    "convert to safetensors, several files",
    "manager",
    "manager, increments",
)


def test_a_loss_of_power_leaves_checkpoints_whole_or_absent(tmp_path: Path) -> None:
    """UCP-W-002, UCP-W-003, UCP-W-037: what is acknowledged stays, and what is not is no half of a checkpoint."""
    operations = [one for one in OPERATIONS if one.name in SHORT]
    campaign = Campaign(tmp_path)
    for trace in recorded(tmp_path, "tests.campaigns.power.operations", operations, *SHORT):
        campaign.run(trace, STATES, seed=1)
    assert campaign.counts["states"] > STATES * (len(SHORT) - 1)  # some have fewer
    assert not campaign.wrong


def test_protocols_that_lose_or_break_checkpoints_are_found_out(tmp_path: Path) -> None:
    for trace in recorded(tmp_path, "tests.campaigns.power.broken", BROKEN):
        campaign = Campaign(tmp_path)
        campaign.run(trace, 300, seed=1)
        assert campaign.wrong, trace.operation.name
