"""The short form of the campaign of faulty requests; `make campaigns` runs every fault of every request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.proxy.campaign import Campaign, drawn

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.xdist_group("distributed"),
    pytest.mark.filterwarnings("ignore"),
]

RUNS = 40


def test_no_fault_loses_a_checkpoint_or_fails_what_could_be_done(tmp_path: Path) -> None:
    """UCP-W-009, UCP-W-016: requests fail once and for ever, before and after they are done."""
    with Campaign.begun(tmp_path) as campaign:
        for run in drawn([*campaign.runs()], RUNS):
            campaign.run(run)
    assert campaign.wrong == []
    assert campaign.counts["runs"] == RUNS
    assert campaign.counts["succeeded, and failed requests were logged"] > 0
    assert campaign.counts["registered errors"] > 0
