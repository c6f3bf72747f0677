"""The short form of the fault campaign; `make campaigns` runs every fault of every call."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

RUNS = 60


@pytest.mark.skipif(
    shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler, and Linux"
)
def test_no_fault_guts_a_checkpoint_or_makes_a_failure_a_success() -> None:
    """UCP-W-011: system calls of saves, conversions, collections and managers fail, before and after they are done."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.faults", "--runs", str(RUNS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{RUNS} runs, 0 wrong" in found.stdout
