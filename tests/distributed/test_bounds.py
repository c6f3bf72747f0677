"""What saving and loading cost: bytes that are stored, each accounted for, and memory beyond a rank's share."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ucpformat
from tests.distributed.saving import save_together
from tests.distributed.test_save import TensorLayout as HeldSlot
from tests.distributed.test_save import cases, local_state, save_all
from tests.distributed.thread_group import ThreadGroup, run_threads
from ucpformat import Layout, Mesh, MeshAxis, Shard, TensorLayout
from ucpformat.distributed.local_state import SlotName
from ucpformat.distributed.save import SaveOptions, SaveReport
from ucpformat.model.root import Storage
from ucpformat.state_dict.state import live_state


@given(cases())
def test_what_is_stored_is_accounted_for(case: tuple[int, dict[SlotName, HeldSlot]]) -> None:
    """A packed checkpoint is logical bytes plus alignment plus documents: there is no other byte in its directory."""
    count, slots = case
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "x.ucp")
        reports = save_all(path, count, slots, chunk_bytes=1024)
        for report in reports:
            if isinstance(report, BaseException):
                raise report
        stored = {report.stored for report in reports if isinstance(report, SaveReport)}
        (one,) = stored
        total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        packs = sum(file.stat().st_size for file in path.glob("packs/*"))
        assert one.data == sum(4 * math.prod(shape) for shape, _, _ in slots.values()), "no element is zero"
        assert one.data + one.alignment == packs
        assert one.data + one.alignment + one.documents == total
        assert one.alignment >= 0


@given(cases(), st.sampled_from([1, 2, 5]))
def test_objects_are_two_for_each_writer_and_a_few_documents(
    case: tuple[int, dict[SlotName, HeldSlot]], workers: int
) -> None:
    count, slots = case
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "x.ucp")

        def work(group: ThreadGroup) -> SaveReport:
            options = SaveOptions(chunk_bytes=1024, workers=workers, durability="none")
            return save_together(path, lambda: local_state(group.rank, slots), group, options)

        for report in run_threads(count, work):
            if isinstance(report, BaseException):
                raise report
        with ucpformat.open(path) as checkpoint:
            documents = 2 * len(checkpoint.root.parts) + len(checkpoint.state.blobs)
        objects = sum(file.is_file() for file in path.rglob("*"))
        # The root document, the list of packs, and the state; index parts have a table each.
        assert objects <= 2 * count + 3 + documents


def test_zeros_and_compressed_chunks_take_less(tmp_path: Path) -> None:
    state = {"zeros": np.zeros(5000, np.int32), "ones": np.ones(5000, np.int32)}
    zstd = ucpformat.Compressor("zstd", {"level": 3, "checksum": False})
    reports = [
        ucpformat.save(tmp_path / "a", state),
        ucpformat.save(tmp_path / "b", state, compressor=zstd),
        ucpformat.save(tmp_path / "c", state, storage="plain"),
    ]
    assert reports[0].stored.data == 20_000
    assert 0 < reports[1].stored.data < 20_000
    assert (reports[2].stored.data, reports[2].stored.alignment) == (20_004, 0)
    assert all(report.nbytes == 40_000 for report in reports)


MIB = 1 << 20
SIZE = 4
MESH = Mesh((MeshAxis("a", SIZE),))
SHAPE = (4096, 1024)
WHOLE = 4 * math.prod(SHAPE)
STAGED = 2 * MIB
"""Beyond tensors: buffers of threads, descriptions and receipts, for each rank."""


def peak(work: Callable[[ThreadGroup], object]) -> int:
    """The most memory that the ranks of a group have at once beyond what they had, all of them together."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for one in run_threads(SIZE, work):
            if isinstance(one, BaseException):
                raise one
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def spread(dim: int) -> TensorLayout:
    return TensorLayout(Layout(MESH, (Shard("a", dim),)), SHAPE)


def local_parts(dim: int) -> list[np.ndarray[Any, np.dtype[np.int32]]]:
    whole = np.arange(1, math.prod(SHAPE) + 1, dtype=np.int32).reshape(SHAPE)
    return [np.ascontiguousarray(part) for part in np.split(whole, SIZE, dim)]


@pytest.mark.parametrize(
    ("storage", "dim", "most"),
    [
        ("packed", 0, 0),  # rows go from the tensor to the file
        ("packed", 1, WHOLE),  # columns are made dense, chunk by chunk, in the background
        ("plain", 0, 0),
        ("plain", 1, WHOLE),  # chunks are put together by their owners
    ],
)
def test_saving_takes_a_share_of_memory_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: Storage, dim: int, most: int
) -> None:
    """At most so many bytes for all ranks beyond their tensors: for each, a multiple of its own share."""
    parts = local_parts(dim)
    monkeypatch.setattr("ucpformat.distributed.transport.MESSAGE_BYTES", 1 << 16)

    def work(group: ThreadGroup) -> SaveReport:
        return save_together(
            tmp_path / "x.ucp",
            lambda: live_state({"w": parts[group.rank]}, rank=group.rank, layouts={"w": spread(dim)}),
            group,
            SaveOptions(storage, chunk_bytes=MIB, workers=1, durability="none"),
        )

    assert peak(work) <= most + SIZE * STAGED


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize(
    ("dim", "most"),
    [
        (0, 0),  # rows come from the file into the tensor
        (1, SIZE * MIB),  # of columns a chunk is fetched whole, one by each thread
        (None, 0),  # everything on every rank: messages come from tensors and go into them
    ],
)
def test_loading_takes_no_memory_but_the_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dim: int | None, most: int, once: bool
) -> None:
    monkeypatch.setattr("ucpformat.distributed.transport.MESSAGE_BYTES", 1 << 16)
    whole = np.concatenate(local_parts(0))
    path = tmp_path / "x.ucp"
    ucpformat.save(path, {"w": whole}, chunk_bytes=MIB)
    targets = [np.zeros_like(whole if dim is None else part) for part in local_parts(dim or 0)]

    def work(group: ThreadGroup) -> object:
        layouts = {} if dim is None else {"w": spread(dim)}
        state: dict[str, Any] = {"w": targets[group.rank]}
        return ucpformat.load(path, state, group=group, layouts=layouts, read_once=once)

    assert peak(work) <= most + SIZE * STAGED
    for rank, target in enumerate(targets):
        assert np.array_equal(target, whole if dim is None else local_parts(dim)[rank])
