"""The short form of the fault campaign; `make campaigns` runs every fault of every call."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

RUNS = 60

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler, and Linux"
)


def campaign(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.campaigns.faults", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_fault_guts_a_checkpoint_or_makes_a_failure_a_success() -> None:
    """UCP-W-009: system calls of saves, increments, copies, collections, managers fail, before or after they act."""
    # Processes of gloo take a second each: `make campaigns` has them.
    found = campaign(
        "--runs", str(RUNS), "--only", "^(save|increment|manager|collect|attach|ucp cp|ucp gc)(?!.*processes)"
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{RUNS} runs, 0 wrong" in found.stdout


def test_protocols_that_do_not_hold_are_found_out() -> None:
    found = campaign("--broken", "--runs", "60")
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count(" wrong of 60") == 3
