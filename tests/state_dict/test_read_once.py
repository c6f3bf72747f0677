"""Reading each stored byte once for all ranks that hold it, with threads for ranks."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ucpformat
from tests.distributed.test_save import TensorLayout as HeldSlot
from tests.distributed.test_save import cases, logical
from tests.distributed.thread_group import ThreadGroup, run_threads
from tests.geometry.model import local_array
from ucpformat import Layout, Mesh, MeshAxis, Shard, TensorLayout, UcpError
from ucpformat.distributed.local_state import SlotName
from ucpformat.geometry import Concat, lower
from ucpformat.state_dict.reading import LoadReport

Slots = dict[SlotName, HeldSlot]


def dotted(name: SlotName) -> str:
    return f"{name[0]}.{name[1]}"


def stored(path: str | Path, slots: Slots, **options: Any) -> None:
    state = {dotted(name): logical(shape, seed) for seed, (name, (shape, _, _)) in enumerate(slots.items())}
    ucpformat.save(path, state, **options)


def held_cells(rank: int, held: HeldSlot) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Which cells ``rank`` holds where in its local tensor; -1 for padding, and for the rest of a buffer."""
    shape, layout, place = held
    if layout is None:
        return np.arange(math.prod(shape)).reshape(shape)
    coordinate = layout.mesh.find(rank)
    lowering = lower(layout, shape, place=place)
    found = None if coordinate is None else lowering.at(coordinate)
    return None if found is None else local_array(found, np.arange(math.prod(shape)).reshape(lowering.view))


def load_all(
    path: str | Path, size: int, slots: Slots, **options: Any
) -> tuple[list[dict[str, Any] | BaseException], list[LoadReport], list[ThreadGroup]]:
    reports: list[Any] = [None] * size
    groups: list[Any] = [None] * size

    def work(group: ThreadGroup) -> dict[str, Any]:
        groups[group.rank] = group
        state: dict[str, Any] = {}
        layouts: dict[str, TensorLayout] = {}
        for name, held in slots.items():
            cells = held_cells(group.rank, held)
            if cells is not None:
                state[dotted(name)] = np.full(cells.shape, -5, np.int32)
                if held[1] is not None:
                    layouts[dotted(name)] = TensorLayout(held[1], held[0], held[2])
        return ucpformat.load(
            path,
            state,
            group=group,
            layouts=layouts,
            strict=False,
            report=lambda report: reports.__setitem__(group.rank, report),
            **options,
        )

    return run_threads(size, work), reports, groups


@given(
    cases(),
    st.sampled_from([1, 64]),
    st.sampled_from(["packed", "plain"]),
    st.sampled_from([None, ucpformat.Compressor("zstd", {"level": 1, "checksum": False})]),
)
def test_every_rank_gets_what_it_holds_and_nothing_is_read_twice(
    case: tuple[int, Slots], chunk_kib: int, storage: Any, compressor: Any
) -> None:
    size, slots = case
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "x.ucp")
        stored(path, slots, chunk_bytes=1024 * chunk_kib, storage=storage, compressor=compressor)
        found, reports, groups = load_all(path, size, slots, read_once=True)
        _, each, _ = load_all(path, size, slots, read_once=False)
    distinct = needed = 0
    for seed, (name, held) in enumerate(slots.items()):
        whole = logical(held[0], seed).reshape(-1)
        outside = -5 if held[1] is not None and any(isinstance(s, Concat) for s in held[1].steps) else 0
        seen = np.zeros(whole.size, bool)
        for rank in range(size):
            got, cells = found[rank], held_cells(rank, held)
            if isinstance(got, BaseException):
                raise got
            if cells is not None:
                expected = np.where(cells < 0, outside, whole[cells] if whole.size else outside)
                assert np.array_equal(got[dotted(name)], expected), (name, rank)
                seen[cells[cells >= 0]] = True
                needed += 4 * int((cells >= 0).sum())
        distinct += 4 * int(seen.sum())
    for report in (*reports, *each):
        assert report.needed_by_all == needed
    assert {report.distinct for report in reports} == {distinct}
    assert {report.distinct for report in each} == {None}
    assert {report.amplification for report in each} == {None}
    assert sum(report.read for report in reports) == reports[0].read_by_all
    # Every element that some rank holds is read by one of its holders; all others get it from that one.
    assert sum(report.sent for report in reports) == sum(group.exchanged for group in groups)
    assert sum(report.received for report in reports) == needed - distinct
    assert sum(report.sent for report in reports) == needed - distinct
    assert [report.sent + report.received for report in each] == [0] * size


MIB = 1 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "x.ucp"
    stored(path, LARGE, chunk_bytes=MIB)
    return path


LARGE: Slots = {("w", "value"): ((1024, 1536), None, None), ("b", "value"): ((333,), None, None)}
NBYTES = 4 * (1024 * 1536 + 333)
GAPS = 4096 * 8
"""What alignment leaves between segments that are fetched in one call: there are 7 chunks and a small one."""


def test_replicas_read_each_stored_byte_once_and_as_much_as_one_another(large: Path) -> None:
    _, (alone,), _ = load_all(large, 1, LARGE, read_once=True)
    assert (alone.needed, alone.distinct) == (NBYTES, None)
    assert NBYTES <= alone.read <= NBYTES + GAPS
    found, reports, _ = load_all(large, 4, LARGE, read_once=True)
    assert not [one for one in found if isinstance(one, BaseException)]
    read = sum(report.read for report in reports)
    assert NBYTES <= read <= alone.read
    assert max(report.read for report in reports) <= NBYTES / 4 + MIB + GAPS
    assert {report.amplification for report in reports} == {read / NBYTES}
    _, each, _ = load_all(large, 4, LARGE, read_once=False)
    assert [report.read for report in each] == [alone.read] * 4


def test_columns_cost_what_their_blocks_do(large: Path) -> None:
    """Each rank holds columns of its own, whose blocks hold the others' as well: that is told, not hidden."""
    columns = Layout(Mesh((MeshAxis("tp", 2),)), (Shard("tp", 1),))
    slots: Slots = {("w", "value"): ((1024, 1536), columns, None)}
    _, reports, _ = load_all(large, 2, slots, read_once=True)
    assert {report.distinct for report in reports} == {4 * 1024 * 1536}
    assert {report.amplification for report in reports} == {2.0}
    assert [report.sent for report in reports] == [0, 0]


def test_a_damaged_block_that_one_rank_reads_is_raised_by_all(large: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "x.ucp"
    stored(damaged, LARGE, chunk_bytes=MIB)
    (pack,) = [max((damaged / "packs").iterdir(), key=lambda file: file.stat().st_size)]
    data = bytearray(pack.read_bytes())
    data[10_000] ^= 1  # inside a chunk, whatever comes first
    pack.write_bytes(data)
    for once in (True, False):
        found, _, _ = load_all(damaged, 3, LARGE, read_once=once)
        assert all(isinstance(one, UcpError) and one.code == "UCP-E-CHECKSUM" for one in found), found


def test_a_remote_store_is_read_once_unless_told_otherwise(large: Path) -> None:
    url = "memory://read-once/x.ucp"
    try:
        stored(url, LARGE, chunk_bytes=MIB)
        for where, options, once in (
            (url, {}, True),
            (url, {"read_once": False}, False),
            (large, {}, False),
            (large, {"read_once": True}, True),
        ):
            _, reports, _ = load_all(where, 2, LARGE, **options)
            times = 1 if once else 2
            assert times * NBYTES <= reports[0].read_by_all <= times * (NBYTES + GAPS)
    finally:
        fsspec.filesystem("memory").rm("/read-once", recursive=True)


def test_all_ranks_give_the_same(large: Path) -> None:
    found = run_threads(
        2,
        lambda group: ucpformat.load(
            large,
            {dotted(name): np.zeros(shape, np.int32) for name, (shape, _, _) in LARGE.items()},
            group=group,
            read_once=group.rank == 0,
        ),
    )
    assert all(isinstance(one, UcpError) and one.code == "UCP-E-MISMATCH" for one in found), found


def test_one_slot_under_two_names_and_casts_in_waves(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucpformat.state_dict.reading._STAGED_BYTES", 1)
    reports: list[Any] = []

    def work(group: ThreadGroup) -> dict[str, Any]:
        state = {
            "a": np.zeros((1024, 1536), np.float64),
            "c": np.zeros((1024, 1536), np.int32, "F"),
            dotted(("b", "value")): np.zeros(333, np.int32),
        }
        return ucpformat.load(
            large,
            state,
            group=group,
            rename=lambda name: "w.value" if name in "ac" else name,
            cast=True,
            read_once=True,
            report=reports.append,
        )

    whole = logical((1024, 1536), 0)
    for one in run_threads(3, work):
        assert isinstance(one, dict), one
        assert np.array_equal(one["a"], whole)
        assert np.array_equal(one["c"], whole)
        assert np.array_equal(one["b.value"], logical((333,), 1))
    nbytes = 4 * (2 * whole.size + 333)
    assert nbytes <= sum(report.read for report in reports) <= nbytes + 3 * GAPS
