"""The suite from the checkout, and the commands that start drivers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFORMANCE = ROOT / "conformance"
REFERENCE = f"{sys.executable} {CONFORMANCE / 'drivers' / 'python' / 'driver.py'}"
TEMPLATE = f"{sys.executable} {CONFORMANCE / 'drivers' / 'template' / 'driver.py'}"
NODE = f"node {CONFORMANCE / 'drivers' / 'node' / 'driver.mjs'}"
ORACLE = f"{sys.executable} {CONFORMANCE / 'mutants' / 'oracle_driver.py'}"

# Runs the suite where importing the reference implementation fails.
WITHOUT_REFERENCE = """
import sys
sys.modules["ucpformat"] = None
sys.path.insert(0, sys.argv.pop(1))
from ucp_conformance.cli import main
main()
"""


def ignore(_: object) -> None:
    """Nobody listens to results."""


def mutant(name: str) -> str:
    """The command of a mutant."""
    return f"{sys.executable} {CONFORMANCE / 'mutants'} {name}"


def ucp_conformance(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the command line of the suite, with `ucpformat` out of its reach."""
    command = [sys.executable, "-c", WITHOUT_REFERENCE, str(CONFORMANCE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    found: Iterable[Path] = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
