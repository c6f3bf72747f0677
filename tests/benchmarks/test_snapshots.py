"""The benchmark of snapshots measures everybody in each round, and predicts by what it measured without fences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.snapshots import SCENARIOS, Figures, Scenario, command, measured


@pytest.mark.parametrize("in_backward", [False, True])
def test_whoever_takes_turns_is_measured_in_each_round(tmp_path: Path, in_backward: bool) -> None:
    found = measured(Scenario("a", 4, in_backward), width=8, layers=2, rounds=3, directory=tmp_path)
    assert found.nbytes == 2 * (3 * 4 * (8 * 8 + 8) + 2 * 4)
    assert {len(seconds) for seconds in found.rounds.values()} == {3}
    assert {"training", "copy", "whole", "fenced", "call", "predicted"} <= found.rounds.keys()
    assert found.ratios("predicted", "call")[0] >= 1, "the call is part of the stall"
    assert list(tmp_path.iterdir()) == []


def test_ratios_are_taken_within_rounds() -> None:
    found = Figures("a", 1 << 20)
    for copy, fenced in ((1.0, 0.5), (4.0, 1.0)):
        found.add("copy", [copy, copy])
        found.add("fenced", [0.0, 2 * fenced])
    assert found.ratios("fenced", "copy") == [0.25, 0.5]


def test_the_command_writes_a_table_and_every_figure(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    words = ["--width", "8", "--layers", "2", "--rounds", "1", "--directory", str(tmp_path)]
    result = CliRunner().invoke(command, [*words, "--json", str(output)], catch_exceptions=False)
    assert result.exit_code == 0
    figures = json.loads(output.read_text())["figures"]
    assert [one["scenario"] for one in figures] == [one.name for one in SCENARIOS]
    assert all(one.name in result.output for one in SCENARIOS)
