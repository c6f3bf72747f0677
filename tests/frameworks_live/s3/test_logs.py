"""Update logs at ``s3://`` URLs, with moto's server (SPEC-UPDATE-LOGS)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.s3_server import S3Server
from tests.frameworks_live.log_checks import *  # noqa: F403 - the tests
from tests.frameworks_live.s3.test_checkpoints import server, url
from tests.processes import launch
from ucpformat.update_log.validation import log_problems

__all__ = ["server", "url"]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.xdist_group("distributed"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("at_once", [1, 2])
def test_jobs_that_are_killed_go_on(
    server: S3Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """UCP-W-037, UCP-W-039; ``python -m tests.campaigns.update_log`` kills more."""
    monkeypatch.setenv("FSSPEC_S3", json.dumps(server.options()))
    launch("tests.replay.killed_in_store", [url, str(tmp_path), "0", "1", str(at_once)], 1)
    deaths, _ = (tmp_path / "deaths-0").read_text().split()
    assert int(deaths) > 1


@pytest.mark.parametrize("kind", ["ddp", "fsdp-tp"])
def test_ranks_log_and_recover(
    server: S3Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """UCP-R-039: what several ranks have logged, each when it had time, one process and other ranks recover."""
    monkeypatch.setenv("FSSPEC_S3", json.dumps(server.options()))
    worker = "tests.replay.ranks_in_store"
    launch(worker, [url, kind, "7", str(tmp_path / "a.pt")], 4)
    launch(worker, [url, "fsdp", "11", str(tmp_path / "b.pt")], 2)
    launch(worker, [url, "one", "12", str(tmp_path / "c.pt")], 1)
    first, second, third = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in "abc")
    assert (first["recovered"], second["recovered"], third["recovered"]) == (0, 7, 11)
    assert log_problems(f"{url}/updates.ucplog") == []
