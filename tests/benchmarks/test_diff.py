"""The benchmark of comparisons: what it counts is what was read."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from benchmarks.diff import command, compared


def test_a_comparison_reads_what_differs(tmp_path: Path) -> None:
    found = {one.how: one for one in compared(64 << 20, 1, tmp_path)}
    assert {one.found for one in found.values()} == {"layer128"}
    tensor = 1 / 256
    # The tensor of both, and documents, which such a small state has much of.
    for how in ("increment, a whole tensor", "saved whole, a whole tensor"):
        assert 2 * tensor < found[how].read < 3.5 * tensor
        assert found[f"{how}, --brief"].read < 1.5 * tensor
    assert found["increment, its first rows"].read < 3.5 * tensor


def test_the_command_writes_a_table(tmp_path: Path) -> None:
    words = ["--size", "2MiB", "--repeats", "1", "--directory", str(tmp_path)]
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert "saved whole, its first rows, --brief" in result.output
