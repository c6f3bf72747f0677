"""The benchmark of increments: what it counts is what was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.increments import JOBS, command, run_of_increments


@pytest.mark.parametrize(
    ("job", "changed", "most"),
    [("dense AdamW", 1.0, 1.02), ("frozen, LoRA", 0.02, 0.03), ("sparse, 6.5 % of rows", 0.065, 0.13)],
)
def test_an_increment_costs_what_has_changed(tmp_path: Path, job: str, changed: float, most: float) -> None:
    figures = run_of_increments(job, nbytes=3 << 20, increments=6, directory=tmp_path)
    assert figures.changed == pytest.approx(changed, rel=0.15)
    assert figures.changed <= figures.written <= most
    assert len(figures.saves) == len(figures.reads) == len(figures.disks) == 6


def test_the_command_writes_a_table_and_every_figure(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    table = tmp_path / "table.md"
    words = ["--size", "1MiB", "--increments", "1", "--directory", str(tmp_path), "--json", str(output)]
    words += ["--markdown", str(table)]
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0
    for job in JOBS:
        assert job in result.output
        assert job in output.read_text()
    assert "packed, gzip" in result.output
    assert "plain" in result.output
    assert table.read_text().count("| sparse, 6.5 % of rows | packed | declared |") == 1
