"""The benchmark of update logs: what it replays is what was trained, and what it counts was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.update_log import OPTIMIZERS, command, measured


@pytest.mark.parametrize(("density", "least", "most"), [(0.01, 40, 200), (None, 2.5, 3.5)])
def test_a_step_is_smaller_than_a_checkpoint(
    tmp_path: Path, density: float | None, least: float, most: float
) -> None:
    figures = measured("AdamW", density, width=128, rows=4, rounds=2, directory=tmp_path)
    assert least < figures.bytes_of_a_checkpoint / figures.bytes_of_a_step < most
    assert len(figures.overheads) == 2


def test_the_command_writes_a_table_and_every_figure(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    words = [
        "--width",
        "16",
        "--rows",
        "4",
        "--rounds",
        "1",
        "--directory",
        str(tmp_path),
        "--json",
        str(output),
    ]
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0
    for name in OPTIMIZERS:
        assert name in result.output
        assert name in output.read_text()
