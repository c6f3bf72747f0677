"""The benchmark of update logs: what it replays is what was trained, and what it counts was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.update_log import OPTIMIZERS, Figures, Gradients, command, measured


@pytest.mark.parametrize(
    ("gradients", "least", "most"), [(Gradients(0.01), 40, 200), (Gradients(), 2.5, 3.5)], ids=str
)
def test_a_step_is_smaller_than_a_checkpoint(
    tmp_path: Path, gradients: Gradients, least: float, most: float
) -> None:
    figures = measured("AdamW", gradients, width=128, rows=4, rounds=2, directory=tmp_path)
    assert least < figures.bytes_of_a_checkpoint / figures.bytes_of_a_step < most
    assert len(figures.overheads) == 2


def test_turns_with_residuals_are_told_apart(tmp_path: Path) -> None:
    feedback = measured(
        "AdamW", Gradients(0.01, feedback=True), width=128, rows=4, rounds=5, directory=tmp_path
    )
    assert (len(feedback.overheads), len(feedback.with_residuals)) == (4, 1)
    plain = measured("AdamW", Gradients(0.01), width=128, rows=4, rounds=5, directory=tmp_path)
    # Residuals of every hundredth step; some bytes more are in headers, which name their pieces.
    more = feedback.bytes_of_a_step - plain.bytes_of_a_step
    assert 0 < more - 4 * feedback.parameters / 100 < 100


def test_residuals_count_as_often_as_they_come() -> None:
    figures = Figures("AdamW", Gradients(0.01, feedback=True), 1, 0.05, 1.0, 1, [1.02, 1.02], [1.22])
    assert figures.overhead == pytest.approx(0.02 + 0.2 * 5 / 100)


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
