"""The benchmark of stalls runs everybody, says on what, and its ratios are those of one round."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.stall import CONTENDERS, Stalls

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.distributed]


def test_everybody_runs(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main,
        ["stall", "--size", "2MiB", "--repeats", "2", "--no-steady", "--directory", str(tmp_path)],
        catch_exceptions=False,
    )
    lines = result.stdout.splitlines()
    assert lines[0].startswith(
        "2 MiB on cpu, 2 rounds" if not torch.accelerator.is_available() else "2 MiB on"
    )
    assert [line.split()[0] for line in lines[3:] if line] == list(CONTENDERS)
    assert list(tmp_path.iterdir()) == []


def test_ratios_are_taken_within_rounds() -> None:
    stalls = Stalls(
        "cpu", 1 << 20, {"copy": [1.0, 2.0], "ucp": [3.0, 3.0]}, {"copy": [1.0, 2.0], "ucp": [4.0, 4.0]}
    )
    assert stalls.ratios("ucp") == [3.0, 1.5]
    assert "2.25" in stalls.text()
    assert "1.50-3.00" in stalls.text()
