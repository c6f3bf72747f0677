"""What a report says of failures and of requirements."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.suite import mutant, ucp_conformance


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    arguments: list[str | Path] = [
        "--driver",
        f"mine={mutant('accepts-all')}",
        "--only",
        "bad/digest",
        "--report",
        folder,
    ]
    assert ucp_conformance("run", *arguments).returncode == 1
    return folder


@pytest.mark.parametrize("name", ["summary.md", "index.html"])
def test_a_failure_says_what_was_changed_expected_and_got_and_how_to_replay_it(
    report: Path, name: str
) -> None:
    text = (report / name).read_text(encoding="utf-8")
    replay = "replay: ucp-conformance run --only bad/digest/"
    for word in ("case: ", "changed in good/parents/", "expected: ", "got: ", replay):
        assert word in text


def test_the_summary_counts_checks_by_requirement(report: Path) -> None:
    text = (report / "summary.md").read_text(encoding="utf-8")
    assert "| requirement | mine |" in text
    assert " failed" in text.partition("## Requirements")[2]
