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


@pytest.mark.parametrize("option", [["--json", "x.json"], ["--per-connection", "20"], ["--save-only"]])
def test_some_options_are_for_s3_alone(option: list[str]) -> None:
    result = CliRunner().invoke(command, option)
    assert result.exit_code == 2
    assert "go with --s3" in result.output
