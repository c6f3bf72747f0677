"""Statistics take the same memory, 256 MiB at most, however large a checkpoint and its slots are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ucpformat as ucp
from benchmarks.measure import measured
from ucpformat.inspection.statistics import statistics

LARGE = 80 << 20
"""Elements, of 320 MiB."""
MOST = 256 << 20
WORKERS = 8
"""As many as a computer of many cores has."""


@pytest.mark.skipif(sys.platform != "linux", reason="high-water marks are set back as Linux does")
@pytest.mark.parametrize(
    "options",
    [
        {"chunk_bytes": 1 << 29},
        {"chunk_bytes": 1 << 20},
        {"storage": "plain", "chunk_bytes": 1 << 29},
        {"compressor": "auto", "chunk_bytes": 1 << 26},
        {"compressor": "auto", "chunk_bytes": 100 << 20, "storage": "plain"},
    ],
    ids=["one-chunk", "chunks", "plain", "compressed", "plain-compressed"],
)
def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path, options: dict[str, Any]) -> None:
    data = np.random.default_rng(0).random(LARGE, np.float32)
    state = {f"small.{number}": np.full(8, number, np.float32) for number in range(2000)}
    if options.get("storage") == "plain":
        state = {}
    ucp.save(tmp_path / "a", {**state, "w": data}, **options)
    del data
    counts: list[int] = []

    def summed() -> None:
        slots = [slot for view in ckpt.values() for slot in view.values()]
        counts.extend(one.count for one in statistics(slots, workers=WORKERS))

    with ucp.open(tmp_path / "a") as ckpt:
        peak = measured(summed).peak_bytes
    assert sum(counts) == LARGE + 8 * len(state)
    assert peak <= MOST
