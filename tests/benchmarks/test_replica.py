"""The benchmark of replicas: it runs, and has a figure for each way and each recovery."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from benchmarks.replica import command, measured
from benchmarks.update_log import OPTIMIZERS


def test_each_way_has_a_figure_of_each_round(tmp_path: Path) -> None:
    figures = measured("AdamW", width=16, rows=4, rounds=2, directory=tmp_path)
    assert list(figures.wall) == list(figures.processor) == ["log of all gradients", "replica"]
    assert all(len(found) == 2 for found in (*figures.wall.values(), *figures.processor.values()))
    assert all(len(found) == 2 for found in figures.recoveries.values())


def test_the_command_writes_tables_and_every_figure(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    words = f"--width 16 --rows 4 --rounds 1 --threads 1 --directory {tmp_path} --json {output}".split()
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0
    for name in OPTIMIZERS:
        assert name in result.output
        assert name in output.read_text()
