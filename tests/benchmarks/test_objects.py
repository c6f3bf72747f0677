"""``benchmarks objects``: what it says where something is missing; tests/frameworks_live/s3 runs it over S3."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks import s3_server
from benchmarks.objects import command


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_server, "find_spec", lambda name: None if name == "moto" else object())
    result = CliRunner().invoke(command, ["--s3"])
    assert result.exit_code == 1
    assert "--s3 needs moto, not installed here: pip install -r requirements/s3.txt" in result.output


def test_readings_are_written_of_s3_alone() -> None:
    result = CliRunner().invoke(command, ["--json", "x.json"])
    assert result.exit_code == 2
    assert "--json goes with --s3" in result.output
