"""Memory is bounded by what is allowed, not by the size of the model: counted by the allocator, in all threads."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.conversion.engine.pool import MemoryBudget, needed_for, workers_within
from ucpformat.conversion.engine.work_order import batch_size
from ucpformat.conversion.engine.writing import Engine
from ucpformat.errors import UcpError
from ucpformat.geometry import Box
from ucpformat.model.compressor import Compressor
from ucpformat.model.state import StateDocument
from ucpformat.storage.stores.urls import open_target
from ucpformat.writer import AtomSpec, SlotSpec

CHUNK = 1 << 20


def job(slots: int, rows: int, compressor: Compressor | None = None) -> Job:
    """``slots`` tensors of ``rows`` KiB each, whose reader needs as much again as it gives."""

    def read(box: Box, out: np.ndarray[Any, Any]) -> None:
        out[...] = np.arange(out.size, dtype=np.float32).reshape(out.shape) + box.offset[0]

    spec = SlotSpec("float32", (rows, 256), compressor=compressor)
    return Job(
        [AtomSpec(f"w{n}", {"value": spec}) for n in range(slots)],
        [SlotSource(f"w{n}", "value", read) for n in range(slots)],
        StateDocument({}, {}, {}),
        chunk_bytes=CHUNK,
    )


def peak(work: Job, path: Path, **options: Any) -> int:
    """The most bytes that numpy and Python had allocated at once, above what they had before."""
    engine = Engine(work, path, EngineOptions(durability="none", **options))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        engine.run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(3, 100 << 10), (2000, 150)], ids=["few large", "many small"])
def test_what_is_allocated_stays_below_the_bound_and_does_not_grow_with_the_model(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    slots, rows = shape
    whole = job(slots, rows)
    memory = 3 * needed_for(CHUNK)
    assert whole.nbytes > 2 * memory
    found = peak(whole, tmp_path / "a", memory=memory, workers=8)
    assert found < memory
    if slots < 10:
        part = peak(job(slots, rows // 4), tmp_path / "b", memory=memory, workers=8)
        assert found < part + 4 * CHUNK


def test_compressed_too(tmp_path: Path) -> None:
    memory = 2 * needed_for(CHUNK)
    whole = job(2, 50 << 10, Compressor("gzip", {"level": 1}))
    assert peak(whole, tmp_path / "a", memory=memory, workers=8) < memory


def test_fewer_workers_where_memory_is_short_and_a_refusal_where_one_is_too_many(tmp_path: Path) -> None:
    need = needed_for(CHUNK)
    assert [workers_within(memory, 8, CHUNK) for memory in (need, 2 * need, 100 * need)] == [1, 2, 8]
    with pytest.raises(UcpError, match=f"--memory {-(-need >> 20)}M or more"):
        Engine(job(1, 10), tmp_path / "a", EngineOptions(memory=need - 1)).run()
    assert not (tmp_path / "a").exists()


def test_what_is_on_its_way_counts(tmp_path: Path) -> None:
    """An object store has memory of its own for each worker: fewer have room for it."""
    store = open_target("memory://budget")
    assert store.upload_bytes > 0
    need = needed_for(CHUNK, store.upload_bytes)
    assert (
        workers_within(2 * need - 1, 8, CHUNK, store.upload_bytes)
        == 1
        < workers_within(2 * need - 1, 8, CHUNK)
    )
    with pytest.raises(UcpError, match=f"uploads {store.upload_bytes} of them.*--memory {-(-need >> 20)}M"):
        Engine(job(1, 10), "memory://budget/a", EngineOptions(memory=need - 1)).run()
    Engine(job(1, 10), "memory://budget/b", EngineOptions(memory=need)).run()
    Engine(job(1, 10), tmp_path / "c", EngineOptions(memory=need - 1)).run()


def test_the_budget_waits_and_never_blocks_for_ever() -> None:
    budget = MemoryBudget(10)
    with budget.hold(100):  # more than there is counts as all there is
        assert budget.peak == 10
    with budget.hold(4), budget.hold(6):
        assert budget.peak == 10


def test_batches_are_neither_tiny_nor_huge() -> None:
    assert [batch_size(total) for total in (0, 1 << 30, 1 << 34, 1 << 50)] == [
        1 << 25,
        1 << 25,
        1 << 28,
        1 << 30,
    ]
