"""What is saved while a call fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ucpformat as ucp

__all__ = ["IMAGE", "IMAGE_DATA", "save_layers", "state", "with_row"]

VALUES = np.arange(300, dtype=np.float32)
TABLE = np.arange(1, 64 * 16 + 1, dtype=np.int32).reshape(64, 16)
IMAGE, IMAGE_DATA = "trainer.dmtcp", bytes(range(256)) * 3
"""A file that stands for the image of a process."""


def with_row(content: Callable[[int], dict[str, Any]], number: int) -> dict[str, Any]:
    """Return the content of the first digit of a number from 100 on, with a table of which one row is another."""
    table = TABLE.copy()
    table[number % 100] += 1
    found = content(number // 100)
    return {**found, "model": {**found["model"], "table": table}, "step": number}


def save_layers(path: Path, content: Callable[[int], dict[str, Any]]) -> None:
    """Save ``source.ucp``, whose table has three layers; the others that have them are gone."""
    ucp.save(path / "0.ucp", content(100))
    ucp.save(path / "1.ucp", content(105), base=path / "0.ucp")
    ucp.save(path / "source.ucp", content(107), base=path / "1.ucp")
    for name in ("0.ucp", "1.ucp"):
        shutil.rmtree(path / name)


def state(number: int) -> dict[str, Any]:
    """What a save of this number holds; from 10 on it is that of the first digit, but for one chunk of 256 bytes.

    From 100 on it is that of the first digit, and a table of which the row of the last two is another.
    """
    if number >= 100:
        return with_row(state, number)
    if number < 10:
        return {"model": {"w": VALUES + number, "b": np.full(7, number, np.int32)}, "step": number}
    found = state(int(str(number)[0]))
    found["model"]["w"][70:80] -= number
    return {**found, "step": number}
