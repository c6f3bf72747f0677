"""The short form of `make test-versions`: everything lowest and everything newest, without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".venv-versions"


@pytest.mark.parametrize("name", ["short-lowest", "short-newest"])
def test_with_everything(name: str) -> None:
    if not (PLACE / name).is_dir():
        pytest.skip("`make test` makes the environment")
    settings = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV"))}
    command = [sys.executable, "-m", "tests.versions", "--made", name]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_make_test_makes_the_environments() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "tests.versions --make-only 'short-*'" in makefile
    assert "\ntest: $(READY) $(SHORT) " in makefile
