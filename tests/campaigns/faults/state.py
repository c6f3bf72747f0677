"""What is saved while a call fails."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["IMAGE", "IMAGE_DATA", "state"]

VALUES = np.arange(300, dtype=np.float32)
IMAGE, IMAGE_DATA = "trainer.dmtcp", bytes(range(256)) * 3
"""A file that stands for the image of a process."""


def state(number: int) -> dict[str, Any]:
    """What a save of this number holds; from 10 on it is that of the first digit, but for one chunk of 256 bytes."""
    if number < 10:
        return {"model": {"w": VALUES + number, "b": np.full(7, number, np.int32)}, "step": number}
    found = state(int(str(number)[0]))
    found["model"]["w"][70:80] -= number
    return {**found, "step": number}
