"""Increments (SPEC section 8.5): as complete as any checkpoint, whatever becomes of the others."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import pytest

import ucpformat as ucp
from tests.builders import snapshot
from tests.distributed.saving import save_together
from tests.distributed.thread_group import run_threads
from tests.geometry.model import local_array
from ucpformat.distributed.local_state import LocalState
from ucpformat.distributed.save import SaveOptions
from ucpformat.errors import UcpError
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard, lower
from ucpformat.model.compressor import Compressor
from ucpformat.model.state import StateDocument
from ucpformat.writer import AtomSpec, SlotSpec

Arrays = dict[str, np.ndarray[Any, np.dtype[np.int32]]]
SHAPES: Final = {"rows": (23, 4), "columns": (6, 9), "vector": (70,), "scalar": (), "table": (90, 1, 12)}
FORMS: Final = ("packed", "plain", "gzip")


def fresh() -> Arrays:
    rng = np.random.default_rng(1)
    return {name: rng.integers(1, 1 << 30, shape, np.int32) for name, shape in SHAPES.items()}


def save(
    path: Path | str,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    *,
    base: Path | str | None = None,
    form: str = "packed",
    ranks: int = 1,
    dim: int = 0,
    chunk_bytes: int = 64,
) -> ucp.SaveReport:
    """Save from ``ranks`` ranks, tensors cut along ``dim`` where they have it; what the first rank reports."""
    mesh = Mesh((MeshAxis("dp", ranks),))
    layout = Layout(mesh, (Shard("dp", dim, "ceil"),))
    compressor = Compressor("gzip", {"level": 1}) if form == "gzip" else None

    def local(rank: int) -> LocalState:
        specs, held = [], {}
        for name, array in arrays.items():
            is_cut = array.ndim > dim
            mine = array
            if is_cut:
                lowering = lower(layout, array.shape)
                pieces = lowering.at(mesh.find(rank) or ())
                assert pieces is not None
                mine = local_array(pieces, array).astype(array.dtype)
            slot = SlotSpec(str(array.dtype), array.shape, layout if is_cut else None, compressor=compressor)
            specs.append(AtomSpec(name, {"value": slot}))
            held[name, "value"] = lambda mine=mine: mine
        return LocalState(specs, held, StateDocument())

    options = SaveOptions(
        storage="plain" if form == "plain" else "packed",
        chunk_bytes=chunk_bytes,
        durability="none",
        workers=2,
        base=None if base is None else str(base),
    )
    found = run_threads(ranks, lambda group: save_together(path, lambda: local(group.rank), group, options))
    reports = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        reports.append(one)
    return reports[0]


def check(path: Path | str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Whole, by the validator, and bit for bit what was saved."""
    assert list(ucp.validate(path)) == []
    with ucp.open(path) as ckpt:
        assert set(ckpt) == set(arrays)
        for name, array in arrays.items():
            assert np.array_equal(ckpt[name]["value"].read(), array), name
        if "table" in arrays:
            assert np.array_equal(ckpt["table"]["value"][7:60:3, ..., 2:9], arrays["table"][7:60:3, ..., 2:9])


def big() -> Arrays:
    rng = np.random.default_rng(0)
    return {name: rng.integers(1, 1 << 30, (16, 1 << 10), np.int32) for name in "ab"}


@pytest.mark.parametrize("form", FORMS)
def test_what_did_not_change_is_not_written_again(tmp_path: Path, form: str) -> None:
    """UCP-W-034: it is the very file, and only documents and the chunk that changed are new."""
    arrays = big()
    save(tmp_path / "1", arrays, form=form, chunk_bytes=4096)
    arrays["a"][3] += 1
    report = save(tmp_path / "2", arrays, base=tmp_path / "1", form=form, chunk_bytes=4096)
    assert report.stored.data <= 4200
    assert report.stored.shared >= 100_000
    before = {path.stat().st_ino for path in (tmp_path / "1").rglob("*") if path.is_file()}
    new = [
        path
        for path in (tmp_path / "2").rglob("*")
        if path.is_file() and path.stat().st_ino not in before and path.name != "zarr.json"
    ]
    assert sum(path.stat().st_size for path in new) < 4096 + 8192
    shutil.rmtree(tmp_path / "1")
    check(tmp_path / "2", arrays)


def test_a_layout_does_not_matter_to_what_is_shared(tmp_path: Path) -> None:
    arrays = big()
    save(tmp_path / "1", arrays, chunk_bytes=4096)
    report = save(tmp_path / "2", arrays, base=tmp_path / "1", chunk_bytes=4096, ranks=3)
    assert report.stored.data == 0
    report = save(tmp_path / "3", arrays, base=tmp_path / "2", chunk_bytes=4096)
    assert report.stored.data == 0
    check(tmp_path / "3", arrays)


def test_objects_of_all_ranks_are_counted_as_shared(tmp_path: Path) -> None:
    arrays = big()
    full = save(tmp_path / "1", arrays, form="plain", chunk_bytes=4096)
    report = save(tmp_path / "2", arrays, base=tmp_path / "1", form="plain", chunk_bytes=4096, ranks=3)
    assert (report.stored.data, report.stored.shared) == (0, full.stored.data)


def test_equal_checksums_are_not_taken_for_equal_bytes(tmp_path: Path) -> None:
    """UCP-W-033: the CRC-32C of four bytes that are changed can be made any value by four others."""
    from awscrt.checksums import crc32c

    first = np.zeros(8, np.uint8)
    first[0] = 1
    wanted = crc32c(first.tobytes())
    second = first.copy()
    second[0] = 2
    # CRCs are linear: find the last four bytes that put the checksum back.
    base = crc32c(second.tobytes())
    columns = []
    for bit in range(32):
        probe = second.copy()
        probe[4 + bit // 8] ^= 1 << bit % 8
        columns.append(crc32c(probe.tobytes()) ^ base)
    rows = [(column, 1 << bit) for bit, column in enumerate(columns)]
    target, flips = base ^ wanted, 0
    for bit in range(32):
        pivot = next(row for row in rows if row[0] >> bit & 1)
        rows = [(a ^ pivot[0], b ^ pivot[1]) if a >> bit & 1 else (a, b) for a, b in rows if (a, b) != pivot]
        if target >> bit & 1:
            target, flips = target ^ pivot[0], flips ^ pivot[1]
    for bit in range(32):
        second[4 + bit // 8] ^= (flips >> bit & 1) << bit % 8
    assert crc32c(second.tobytes()) == wanted
    for form in ("packed", "plain"):
        save(tmp_path / form / "1", {"a": first}, form=form)
        report = save(tmp_path / form / "2", {"a": second}, base=tmp_path / form / "1", form=form)
        assert report.stored.shared == 0
        with ucp.open(tmp_path / form / "2") as ckpt:
            assert np.array_equal(ckpt["a"]["value"].read(), second)


NO_LINKS = (errno.EXDEV, errno.EMLINK, errno.EPERM)


@pytest.mark.parametrize("number", NO_LINKS, ids=errno.errorcode.get)
@pytest.mark.parametrize("form", FORMS)
def test_without_links_everything_is_written(tmp_path: Path, number: int, form: str) -> None:
    """UCP-W-034."""
    arrays = big()
    save(tmp_path / "1", arrays, form=form, chunk_bytes=4096)
    real = os.link

    def link(source: Any, target: Any, **options: Any) -> None:
        if "ucp.json" not in (str(source), str(target)) and not str(target).startswith("ucp"):
            raise OSError(number, os.strerror(number))
        real(source, target, **options)

    with mock.patch("ucpformat.storage.stores.linking.os.link", link):
        report = save(tmp_path / "2", arrays, base=tmp_path / "1", form=form, chunk_bytes=4096)
    assert report.stored.shared == 0
    check(tmp_path / "2", arrays)


@pytest.mark.parametrize("form", ["packed", "plain"])
def test_a_base_that_is_replaced_meanwhile_is_not_linked(tmp_path: Path, form: str) -> None:
    """UCP-W-034: the file that was compared and the one that is at its path differ."""
    arrays = big()
    save(tmp_path / "1", arrays, form=form, chunk_bytes=4096)
    real = os.link

    def link(source: Any, target: Any, **options: Any) -> None:
        if str(source).startswith(str(tmp_path / "1")):
            other = Path(source).read_bytes()
            os.unlink(source)
            Path(source).write_bytes(bytes(len(other)))
        real(source, target, **options)

    with mock.patch("ucpformat.storage.stores.linking.os.link", link):
        report = save(tmp_path / "2", arrays, base=tmp_path / "1", form=form, chunk_bytes=4096)
    assert report.stored.shared == 0
    check(tmp_path / "2", arrays)


def test_what_is_shared_is_made_durable(tmp_path: Path) -> None:
    """UCP-W-035: the base was saved with durability "none"."""
    arrays = big()
    save(tmp_path / "1", arrays)
    (pack,) = (tmp_path / "1" / "packs").iterdir()
    synced = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    with mock.patch("os.fsync", fsync):
        specs = [AtomSpec(name, {"value": SlotSpec("int32", one.shape)}) for name, one in arrays.items()]
        with ucp.CheckpointWriter(tmp_path / "2", specs, base=tmp_path / "1", chunk_bytes=64) as writer:
            for name, one in arrays.items():
                writer.write(name, "value", one)
    assert pack.stat().st_ino in synced
    assert (tmp_path / "2" / "packs").stat().st_ino in synced


def test_an_increment_that_fails_takes_nothing_from_its_base(tmp_path: Path) -> None:
    arrays = big()
    save(tmp_path / "1", arrays)
    before = snapshot(tmp_path / "1")
    specs = [AtomSpec(name, {"value": SlotSpec("int32", one.shape)}) for name, one in arrays.items()]
    writer = ucp.CheckpointWriter(tmp_path / "2", specs, base=tmp_path / "1", chunk_bytes=64)
    writer.write("a", "value", arrays["a"])
    assert [*(tmp_path / "2" / "packs").iterdir()]
    with pytest.raises(UcpError, match="UCP-E-COVER"):
        writer.commit()
    assert not (tmp_path / "2").exists()
    assert snapshot(tmp_path / "1") == before
    check(tmp_path / "1", arrays)


def test_little_used_packs_are_left_behind_and_what_is_moved_stays_apart(tmp_path: Path) -> None:
    """Frozen tensors beside others that change: moved once, and never again."""
    rng = np.random.default_rng(0)
    arrays = {
        "frozen": rng.integers(1, 1 << 30, (4, 1 << 10), np.int32),
        "trained": rng.integers(1, 1 << 30, (16, 1 << 10), np.int32),
    }
    written = []
    for step in range(6):
        base = tmp_path / str(step - 1) if step else None
        written.append(save(tmp_path / str(step), arrays, base=base, chunk_bytes=4096).stored.data)
        check(tmp_path / str(step), arrays)
        arrays["trained"] += 1
    trained = arrays["trained"].nbytes
    # The first increment shares the frozen quarter of the first pack; then that pack is too little used.
    assert written == [
        trained + arrays["frozen"].nbytes,
        trained,
        trained + arrays["frozen"].nbytes,
        *[trained] * 3,
    ]


REFUSED: Final[dict[str, tuple[Callable[[Path], dict[str, Any]], str]]] = {
    "nothing there": (lambda path: {"base": path / "none"}, "UCP-E-NOT-FOUND"),
    "in an object store": (lambda path: {"base": "memory://base"}, "UCP-E-STORE"),
    "other storage": (lambda path: {"base": path / "base", "storage": "plain"}, "UCP-E-MISMATCH"),
    "other chunks": (lambda path: {"base": path / "base", "chunk_bytes": 1024}, "UCP-E-MISMATCH"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_base_that_nothing_can_be_shared_with_is_refused(tmp_path: Path, name: str) -> None:
    ucp.save(tmp_path / "base", {"w": np.ones(4)})
    options, code = REFUSED[name]
    with pytest.raises(UcpError, match=code):
        ucp.save(tmp_path / "new", {"w": np.ones(4)}, **options(tmp_path))
    assert not (tmp_path / "new").exists()


def test_a_refused_destination_leaves_nothing_of_the_base_open(tmp_path: Path) -> None:
    ucp.save(tmp_path / "base", {"w": np.ones(4)})
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        ucp.CheckpointWriter(tmp_path / "base", [], base=tmp_path / "base")
    assert len(os.listdir("/proc/self/fd")) <= before[0]
    assert threading.active_count() <= before[1]  # others may have ended


def test_an_increment_in_an_object_store_of_a_directory_is_refused(tmp_path: Path) -> None:
    ucp.save(tmp_path / "base", {"w": np.ones(4)})
    with pytest.raises(UcpError, match="UCP-E-STORE"):
        ucp.save("memory://increments/new", {"w": np.ones(4)}, base=tmp_path / "base")


def test_an_increment_inherits_the_chunks_of_its_base(tmp_path: Path) -> None:
    state = {"w": np.arange(1, 4001, dtype=np.float32)}
    ucp.save(tmp_path / "1", state, chunk_bytes=1024)
    report = ucp.save(tmp_path / "2", state, base=tmp_path / "1")
    assert (report.stored.data, report.stored.shared) == (0, 16000)
    with ucp.open(tmp_path / "2") as ckpt:
        assert ckpt.root.chunk_bytes == 1024


def test_a_slot_of_another_form_is_written_whole(tmp_path: Path) -> None:
    ucp.save(tmp_path / "1", {"a": np.ones(8, np.float32), "b": np.ones(8, np.float32), "c": np.ones(8)})
    state = {"a": np.ones(8, np.int32), "b": np.ones((2, 4), np.float32), "c": np.ones(8), "d": np.ones(3)}
    report = ucp.save(tmp_path / "2", state, base=tmp_path / "1")
    assert (report.stored.data, report.stored.shared) == (32 + 32 + 24, 64)
    assert list(ucp.validate(tmp_path / "2")) == []


def test_saves_in_the_background_have_a_base(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": np.arange(1, 5001, dtype=np.float32), "v": np.ones(3)}
    ucp.save(tmp_path / "1", state)
    state["v"] += 1
    with ucp.AsyncSaver() as saver:
        report = saver.save(tmp_path / "2", state, base=tmp_path / "1").wait()
    assert (report.stored.data, report.stored.shared) == (24, 20000)
    assert ucp.async_save(tmp_path / "3", state, base=tmp_path / "2").wait().stored.data == 0
