"""Two revisions side by side: both are measured, and what is no revision or no state is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.measure import Reading
from benchmarks.revisions import Comparison, table

_ROOT = Path(__file__).parents[2]


def _reading(seconds: float, cpu_seconds: float) -> Reading:
    return Reading(seconds, cpu_seconds, 0)


@pytest.mark.skipif(not (_ROOT / ".git").exists(), reason="no repository")
def test_the_command_measures_both_sides(tmp_path: Path) -> None:
    states = "gpt=256KiB,single=64KiB,small=8KiB"
    words = ["revisions", "HEAD", "--states", states, "--repeats", "1", "--directory", str(tmp_path)]
    files = ["--json", str(tmp_path / "run.json"), "--markdown", str(tmp_path / "run.md")]
    outcome = CliRunner().invoke(main, [*words, *files])
    assert outcome.exit_code == 0, outcome.output
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["command"] == f"python -m benchmarks revisions HEAD --states {states} --repeats 1"
    done = {(one["state"], one["operation"]) for one in found["comparisons"]}
    operations = {"save", "open_and_slice", "load", "validate", "convert"}
    assert done == {(state, operation) for state in ("gpt", "single", "small") for operation in operations}
    assert all(len(one["base"]) == len(one["this"]) == 1 for one in found["comparisons"])
    assert (tmp_path / "run.md").read_text().count("| open and slice |") == 3
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "run.md"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-revision"], "no revision of this repository"),
        (["HEAD", "--states", "gpd=1MiB"], "'gpd' is none of gpt, single, small"),
        (["HEAD", "--states", "gpt"], "a size is a number and one of"),
    ],
)
def test_what_is_no_revision_and_no_state_is_refused(words: list[str], message: str) -> None:
    outcome = CliRunner().invoke(main, ["revisions", *words])
    assert outcome.exit_code != 0
    assert message in outcome.output


def test_ratios_are_taken_within_rounds() -> None:
    base = [_reading(4.0, 4.0), _reading(6.0, 1.0), _reading(20.0, 8.0)]
    this = [_reading(1.0, 2.0), _reading(3.0, 2.0), _reading(2.0, 2.0)]
    one = Comparison("gpt", "open_and_slice", base, this)
    assert one.ratios(lambda reading: reading.seconds) == [0.1, 0.25, 0.5]
    row = ["gpt", "open and slice", "6000.0", "2000.0", "0.25 (0.10 to 0.50)", "0.50 (0.25 to 2.00)"]
    assert table([one], "abc")[1] == row
