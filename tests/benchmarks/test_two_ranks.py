"""Two ranks save and load halves of a state; every contender brings its own back, or the benchmark raises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.two_ranks import CONTENDERS

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.distributed,
    pytest.mark.xdist_group("distributed"),
]


def test_the_command_measures_both_ranks(tmp_path: Path) -> None:
    data, table = tmp_path / "run.json", tmp_path / "run.md"
    arguments = ["two-ranks", "--size", "2MiB", "--repeats", "1", "--no-steady"]
    files = ["--directory", str(tmp_path), "--json", str(data), "--markdown", str(table)]
    result = CliRunner().invoke(main, [*arguments, *files], catch_exceptions=False)
    assert result.exit_code == 0
    run = json.loads(data.read_text())
    assert run["command"] == f"python -m benchmarks {' '.join(arguments)}"
    assert [contender["name"] for contender in run["contenders"]] == [*CONTENDERS]
    for contender in run["contenders"]:
        assert {what: len(found) for what, found in contender["tasks"].items()} == {
            "save": 1,
            "load": 1,
            "save durable": 1,
        }
        assert contender["stored_bytes"] >= run["state"]["bytes"]
    assert "| ucp-packed, load |" in table.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.md"]
