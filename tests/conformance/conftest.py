"""Makes the suite importable from the checkout, installed or not, and leaves its drivers unmeasured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ucp_conformance.connection import Connection

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))


@pytest.fixture(autouse=True)
def drivers_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of thousands of processes, of which few hold the library, would start coverage, and leave a file."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


@pytest.fixture
def connect() -> Iterator[list[Connection]]:
    """Connections that are killed at the end."""
    made: list[Connection] = []
    yield made
    for connection in made:
        connection.kill()
