"""What is saved while a call fails."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["IMAGE", "IMAGE_DATA", "state"]

VALUES = np.arange(300, dtype=np.float32)
TABLE = np.arange(1, 64 * 16 + 1, dtype=np.int32).reshape(64, 16)
IMAGE, IMAGE_DATA = "trainer.dmtcp", bytes(range(256)) * 3
"""A file that stands for the image of a process."""


def state(number: int) -> dict[str, Any]:
    """What a save of this number holds; from 10 on it is that of the first digit, but for one chunk of 256 bytes.

    From 100 on it is that of the first digit, and a table of which the row of the last two is another.
    """
    if number >= 100:
        table = TABLE.copy()
        table[number % 100] += 1
        found = state(number // 100)
        return {**found, "model": {**found["model"], "table": table}, "step": number}
    if number < 10:
        return {"model": {"w": VALUES + number, "b": np.full(7, number, np.int32)}, "step": number}
    found = state(int(str(number)[0]))
    found["model"]["w"][70:80] -= number
    return {**found, "step": number}
