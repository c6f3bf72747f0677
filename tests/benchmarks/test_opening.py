"""Opening beside json.loads: everybody is measured at every size, and the peer parses what we wrote."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.measure import Reading
from benchmarks.opening import Opening


def test_the_command_writes_a_table_and_readings(tmp_path: Path) -> None:
    words = ["open", "--atoms", "5,3000", "--repeats", "1", "--no-steady", "--directory", str(tmp_path)]
    files = ["--json", str(tmp_path / "open.json"), "--markdown", str(tmp_path / "open.md")]
    outcome = CliRunner().invoke(main, [*words, *files])
    assert outcome.exit_code == 0, outcome.output
    found = json.loads((tmp_path / "open.json").read_text())
    assert [one["atoms"] for one in found["openings"]] == [5, 3000]
    assert all(len(one["readings"]) == 3 for one in found["openings"])
    assert found["openings"][1]["document_bytes"] > 3000 * 100
    assert found["command"] == "python -m benchmarks open --atoms 5,3000 --repeats 1 --no-steady"
    assert (tmp_path / "open.md").read_text().count("open and read one") == 2


def test_ratios_are_taken_within_rounds() -> None:
    readings = {
        "open and read one": [Reading(1.0, 2.0, 0), Reading(3.0, 2.0, 0), Reading(2.0, 2.0, 0)],
        "json.loads": [Reading(4.0, 4.0, 0), Reading(6.0, 1.0, 0), Reading(20.0, 8.0, 0)],
    }
    found = Opening(1, 1, readings)
    assert found.ratio("json.loads", lambda reading: reading.seconds) == 0.25
    assert found.ratio("json.loads", lambda reading: reading.cpu_seconds) == 0.5
