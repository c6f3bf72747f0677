"""Slots that are looked at where they lie: what a read gives, without a copy, and checked as a read is."""

from __future__ import annotations

import ctypes
import gc
import itertools
import mmap
import os
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ucpformat as ucp
from tests.builders import GZIP, STORAGES, State, Tensor, guillotine, region, save, states
from ucpformat.errors import UcpError
from ucpformat.geometry import Box
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.storage.reading.held_boxes import _joined
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.store import Durability
from ucpformat.validation import validate
from ucpformat.views import SlotView
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

FLOATS = np.arange(1, 40_001, dtype="<f4").reshape(200, 200)


def is_mapped(array: Any) -> bool:
    """Whether an array owns nothing, and what it looks at is a mapping of a file, or of several in a row."""
    while isinstance(array, np.ndarray):
        if array.flags.owndata or array.flags.writeable:
            return False
        array = array.base
    found = array.obj if isinstance(array, memoryview) else array
    return isinstance(found, mmap.mmap | ctypes.Array)


def assembled(slot: SlotView) -> Any:
    """What the parts come to; cells that no part has stay random bits."""
    whole = np.frombuffer(os.urandom(slot.nbytes), np.uint8).view(slot.dtype).reshape(slot.shape).copy()
    for box, part in slot.mapped_parts():
        assert not part.flags.writeable
        whole[region(box)] = part
    return whole


@given(state=states(), storage=st.sampled_from(STORAGES), chunk_bytes=st.sampled_from([1 << 16, 1 << 24]))
def test_parts_are_what_is_read(state: State, storage: Storage, chunk_bytes: int) -> None:
    with TemporaryDirectory() as directory:
        save(Path(directory, "c"), state, storage=storage, chunk_bytes=chunk_bytes)
        with open_checkpoint(Path(directory, "c")) as checkpoint:
            for (atom, name), tensor in state.items():
                slot = checkpoint[atom][name]
                if tensor.compressor is None:
                    assert assembled(slot).tobytes() == tensor.data.tobytes()
                    continue
                with pytest.raises(UcpError) as caught:
                    list(slot.mapped_parts())
                assert (caught.value.code, caught.value.at) == ("UCP-E-STORE", f"{atom}/{name}")


@given(data=st.data(), rows=st.integers(1, 30), columns=st.integers(1, 30))
def test_boxes_that_several_have_written_are_parts(data: st.DataObject, rows: int, columns: int) -> None:
    whole = np.arange(1, rows * columns + 1, dtype="<f4").reshape(rows, columns)
    boxes = data.draw(guillotine(Box.whole((rows, columns)), 3))
    with TemporaryDirectory() as directory:
        spec = AtomSpec("w", {"value": SlotSpec("float32", whole.shape)})
        with CheckpointWriter(Path(directory, "c"), [spec]) as writer:
            for box in boxes:
                writer.write("w", "value", np.ascontiguousarray(whole[region(box)]), box.offset)
        with open_checkpoint(Path(directory, "c")) as checkpoint:
            slot = checkpoint["w"]["value"]
            parts = [box for box, _ in slot.mapped_parts()]
            assert len(parts) <= len(boxes)
            assert all(any(part.contains(box) for part in parts) for box in boxes)
            assert np.array_equal(assembled(slot), whole)
            if len(parts) == 1:
                assert np.array_equal(slot.mapped(), whole)
            else:  # no box of so few elements fills pages
                with pytest.raises(UcpError, match=f"lies in {len(parts)} parts"):
                    slot.mapped()


@pytest.mark.parametrize("storage", STORAGES)
def test_nothing_is_copied_and_the_checkpoint_may_be_closed(tmp_path: Path, storage: Storage) -> None:
    save(tmp_path / "c", {("w", "value"): Tensor(FLOATS, "float32")}, storage=storage)
    with open_checkpoint(tmp_path / "c", verify=False) as checkpoint:
        found = checkpoint["w"]["value"].mapped()
    assert is_mapped(found)
    assert np.array_equal(found, FLOATS)


def test_zeros_take_nothing_and_an_empty_slot_is_itself(tmp_path: Path) -> None:
    state = {
        ("w", "value"): Tensor(np.zeros((300, 300), np.float32), "float32"),
        ("w", "empty"): Tensor(np.zeros((3, 0), np.float32), "float32"),
    }
    save(tmp_path / "c", state)
    with open_checkpoint(tmp_path / "c") as checkpoint:
        zeros = checkpoint["w"]["value"].mapped()
        assert (zeros.shape, zeros.strides, zeros.any()) == ((300, 300), (0, 0), np.False_)
        assert checkpoint["w"]["empty"].mapped().shape == (3, 0)


def test_many_slots_of_a_pack_share_one_mapping(tmp_path: Path) -> None:
    state = {(f"w{number}", "value"): Tensor(FLOATS, "float32") for number in range(30)}
    save(tmp_path / "c", state, workers=1)
    with open_checkpoint(tmp_path / "c", verify=False) as checkpoint:
        before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
        held = [checkpoint[name]["value"].mapped() for name in checkpoint]
        assert all(np.array_equal(array, FLOATS) for array in held)
        if before:
            assert len(os.listdir("/proc/self/fd")) <= before + 2
        places = {array.ctypes.data for array in held}
        assert len(places) == 30
        assert max(places) - min(places) < 31 * (FLOATS.nbytes + 4096)


def test_damage_is_found_unless_nobody_asks(tmp_path: Path) -> None:
    save(tmp_path / "c", {("w", "value"): Tensor(FLOATS, "float32")})
    (pack,) = (tmp_path / "c" / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[100] ^= 1
    pack.write_bytes(data)
    with open_checkpoint(tmp_path / "c") as checkpoint, pytest.raises(UcpError) as caught:
        checkpoint["w"]["value"].mapped()
    assert caught.value.code == "UCP-E-CHECKSUM"
    with open_checkpoint(tmp_path / "c", verify=False) as checkpoint:
        assert not np.array_equal(checkpoint["w"]["value"].mapped(), FLOATS)
    pack.write_bytes(data[:1000])
    with open_checkpoint(tmp_path / "c", verify=False) as checkpoint, pytest.raises(UcpError) as caught:
        checkpoint["w"]["value"].mapped()
    assert caught.value.code == "UCP-E-LENGTH"


def test_a_remote_object_is_not_mapped() -> None:
    save("memory://mapped-c", {("w", "value"): Tensor(FLOATS, "float32")})
    with (
        open_checkpoint("memory://mapped-c") as checkpoint,
        pytest.raises(UcpError, match="read it") as caught,
    ):
        checkpoint["w"]["value"].mapped()
    assert caught.value.code == "UCP-E-STORE"


def test_what_was_mapped_counts_as_fetched(tmp_path: Path) -> None:
    save(
        tmp_path / "c",
        {("w", "value"): Tensor(FLOATS, "float32"), ("z", "value"): Tensor(FLOATS, "float32", GZIP)},
    )
    with open_checkpoint(tmp_path / "c") as checkpoint:
        checkpoint["w"]["value"].mapped()
        assert checkpoint.fetched == FLOATS.nbytes


WIDE = np.arange(1, (3 << 16) + 1, dtype="<i8").reshape(3, 1 << 15, 2)  # six chunks of 256 KiB


def contiguous(slot: SlotView, expected: Any) -> bool:
    """Whether a slot of several chunks is one part, and is what it should be."""
    assert slot.stored.grid.count > 1
    found = slot.mapped()
    return is_mapped(found) and bool(np.array_equal(found, expected))


@pytest.mark.parametrize("how", ["write", "submit", "boxes"])
@pytest.mark.parametrize(("workers", "durability"), [(1, "none"), (2, "none"), (5, "fsync")])
def test_a_large_slot_of_one_writer_is_mapped_whole(
    tmp_path: Path, how: str, workers: int, durability: Durability
) -> None:
    """Chunks that several threads write lie one behind the other, between slots of any size."""
    large = [f"w{number}" for number in range(3)]
    specs = [AtomSpec(name, {"value": SlotSpec("int64", WIDE.shape)}) for name in large]
    specs += [AtomSpec(f"s{number}", {"value": SlotSpec("float32", FLOATS.shape)}) for number in range(9)]
    with (
        patch("ucpformat.storage.writing.slot_writer._BATCH_BYTES", 1 << 18),
        CheckpointWriter(
            tmp_path / "c", specs, chunk_bytes=1 << 18, workers=workers, durability=durability
        ) as writer,
    ):
        for spec in sorted(specs, key=lambda spec: spec.name[1]):
            if spec.name[0] == "s":
                writer.submit(spec.name, "value", FLOATS)
            elif how == "write":
                writer.write(spec.name, "value", WIDE)
            elif how == "submit":
                writer.submit(spec.name, "value", WIDE)
            else:  # as a snapshot is handed over: cut at chunks, and somewhere waited for
                edges = [0, 1 << 12, 1 << 15] if spec.name == "w1" else [0, 1 << 14, 1 << 15]
                for first, stop in pairwise(edges):
                    writer.submit(spec.name, "value", WIDE[:1, first:stop], (0, first, 0))
                    if spec.name == "w2" and workers <= LocalStore.packs_at_once:
                        writer.pieces.drain()
                writer.submit(spec.name, "value", WIDE[1:], (1, 0, 0))
    assert validate(tmp_path / "c") == []
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert all(contiguous(checkpoint[name]["value"], WIDE) for name in large)
        assert all(np.array_equal(checkpoint[f"s{number}"]["value"].mapped(), FLOATS) for number in range(9))


ODD = np.arange(1, 80_001, dtype="<u2").reshape(400, 200)  # in chunks of 200 to 132,000 bytes, none of 4096


@pytest.mark.parametrize("how", ["write", "submit", "boxes"])
@pytest.mark.parametrize("chunk_bytes", [400, 9000, 50_000, 132_000])
@pytest.mark.parametrize("durability", ["none", "fsync"])
def test_chunks_of_any_length_lie_without_gaps(
    tmp_path: Path, how: str, chunk_bytes: int, durability: Durability
) -> None:
    """UCP-D-107: as GPT-2's embedding of 50257 by 768 has them; few go by one call, many as a run."""
    names = ["a", "b"]
    specs = [AtomSpec(name, {"value": SlotSpec("uint16", ODD.shape)}) for name in names]
    with (
        patch(
            "ucpformat.storage.writing.slot_writer._BATCH_BYTES", 1 << 17 if chunk_bytes > 9000 else 1 << 22
        ),
        CheckpointWriter(
            tmp_path / "c", specs, chunk_bytes=chunk_bytes, workers=2, durability=durability
        ) as writer,
    ):
        for name in names:
            if how == "write":
                writer.write(name, "value", ODD)
            elif how == "submit":
                writer.submit(name, "value", ODD)
            else:
                for first, stop in pairwise([0, 7, 150, 400]):
                    writer.submit(name, "value", ODD[first:stop], (first, 0))
    assert validate(tmp_path / "c") == []
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert all(contiguous(checkpoint[name]["value"], ODD) for name in names)


def test_what_the_readme_saves_is_mapped_whole(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {name: torch.arange(6 << 20, dtype=torch.float32).reshape(-1, 1024) for name in ("a", "b")}
    ucp.save(tmp_path / "now", state)
    ucp.async_save(tmp_path / "later", state).wait()
    for name in ("now", "later"):
        with open_checkpoint(tmp_path / name) as checkpoint:
            assert all(contiguous(checkpoint[atom]["value"], state[atom].numpy()) for atom in state)


def test_zeros_take_no_room_between_chunks(tmp_path: Path) -> None:
    """What is zero is not stored, and is a part of its own; a chunk that only begins with zeros is stored."""
    data = np.ones((6, 1 << 18), "<f8")
    data[1:3] = 0
    data[5, : 1 << 17] = 0
    with CheckpointWriter(
        tmp_path / "c", [AtomSpec("w", {"value": SlotSpec("float64", data.shape)})], chunk_bytes=1 << 21
    ) as writer:
        writer.submit("w", "value", data)
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert [pack.length for pack in checkpoint.packs or ()] == [data[1:5].nbytes]
        slot = checkpoint["w"]["value"]
        assert [(box.offset[0], box.shape[0]) for box, _ in slot.mapped_parts()] == [(0, 1), (1, 2), (3, 3)]
        assert np.array_equal(assembled(slot), data)


ROWS = np.arange(1, (1 << 19) + 1, dtype="<f4").reshape(512, 1024)  # a row takes 4096 bytes
pages = pytest.mark.skipif(mmap.PAGESIZE > 4096, reason="memory has larger pages here")


def put_apart(path: Path, data: Any, edges: list[int], **options: Any) -> None:
    """Save rows as several processes do: each range of them in a pack of its own."""
    spec = AtomSpec("w", {"value": SlotSpec("float32", data.shape)})
    with CheckpointWriter(path, [spec], chunk_bytes=1 << 20, workers=2, **options) as writer:
        for first, stop in pairwise(edges):
            writer.write("w", "value", data[first:stop], (first, 0))
            writer.pieces._chunks._current.clear()  # type: ignore[attr-defined]


def mappings_below(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{path}/")


@pages
def test_parts_that_fill_pages_are_one_array(tmp_path: Path) -> None:
    """From several packs, and with zeros between, which are stored nowhere; the files are let go of at the end."""
    data = ROWS.copy()
    data[256:512] = 0
    data[300] = 7
    put_apart(tmp_path / "c", data, [0, 3, 200, 512])
    with open_checkpoint(tmp_path / "c") as checkpoint:
        slot = checkpoint["w"]["value"]
        assert len([*slot.mapped_parts()]) == 3
        assert len(checkpoint.packs or ()) == 3
        found = slot.mapped()
    assert is_mapped(found)
    assert np.array_equal(found, data)
    with pytest.raises(ValueError, match="WRITEABLE"):
        found.flags.writeable = True
    row = found[300, :2]
    del found
    gc.collect()
    assert row.tolist() == [7, 7]
    assert mappings_below(tmp_path) >= 3
    del row, slot, checkpoint
    gc.collect()
    assert mappings_below(tmp_path) == 0


@pages
def test_zeros_that_fill_pages_are_part_of_the_array(tmp_path: Path) -> None:
    data = ROWS.copy()
    data[:256] = 0
    for storage in STORAGES:
        save(
            tmp_path / storage,
            {("w", "value"): Tensor(data, "float32")},
            storage=storage,
            chunk_bytes=1 << 20,
        )
        with open_checkpoint(tmp_path / storage) as checkpoint:
            assert len([*checkpoint["w"]["value"].mapped_parts()]) == 2
            fetched = checkpoint.fetched
            found = checkpoint["w"]["value"].mapped()
            assert checkpoint.fetched - fetched == data.nbytes // 2
        assert is_mapped(found)
        assert np.array_equal(found, data)


@pages
def test_an_edge_chunk_of_storage_plain_is_checked_with_its_padding(tmp_path: Path) -> None:
    data = ROWS[:511]
    save(tmp_path / "c", {("w", "value"): Tensor(data, "float32")}, storage="plain", chunk_bytes=1 << 20)
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert np.array_equal(checkpoint["w"]["value"].mapped(), data)


@pages
def test_damage_of_any_part_is_found_and_none_is_mapped_beyond_its_file(tmp_path: Path) -> None:
    put_apart(tmp_path / "c", ROWS, [0, 200, 512])
    for pack in (tmp_path / "c" / "packs").iterdir():
        data = pack.read_bytes()
        for broken, code in (
            (data[:5000] + bytes([data[5000] ^ 1]) + data[5001:], "UCP-E-CHECKSUM"),
            (data[:-1], "UCP-E-LENGTH"),
        ):
            pack.write_bytes(broken)
            with open_checkpoint(tmp_path / "c") as checkpoint, pytest.raises(UcpError) as caught:
                checkpoint["w"]["value"].mapped()
            assert (caught.value.code, caught.value.at) == (code, f"packs/{pack.name}")
        pack.write_bytes(data)


@pages
def test_parts_that_do_not_fill_pages_stay_apart(tmp_path: Path) -> None:
    """Rows of 4092 bytes end a page nowhere; a page larger than 4096 bytes is filled by none of the others."""
    put_apart(tmp_path / "c", np.ascontiguousarray(ROWS[:, :1023]), [0, 200, 512])
    put_apart(tmp_path / "d", ROWS, [0, 201, 512])
    for name, size in (("c", mmap.PAGESIZE), ("d", 1 << 14)):
        with (
            patch("mmap.PAGESIZE", size),
            open_checkpoint(tmp_path / name) as checkpoint,
            pytest.raises(UcpError, match="2 parts, saved in boxes, by several processes"),
        ):
            checkpoint["w"]["value"].mapped()


@pages
@pytest.mark.parametrize("how", ["write", "submit"])
@pytest.mark.parametrize(("columns", "packs"), [(1024, 2), (512, 2), (1023, 1)])
def test_a_very_large_slot_lies_in_several_packs_and_is_mapped_whole(
    tmp_path: Path, how: str, columns: int, packs: int
) -> None:
    """Each lane has its share, cut where a page ends; one that ends a page nowhere is not cut."""
    data = np.ascontiguousarray(ROWS[:509, :columns])
    spec = AtomSpec("w", {"value": SlotSpec("float32", data.shape)})
    with (
        patch("ucpformat.storage.writing.slot_writer._BATCH_BYTES", 1 << 18),
        patch("ucpformat.storage.writing.slot_writer._SHARED_BYTES", 1 << 19),
        patch("ucpformat.storage.writing.slot_writer._LEAST_SHARE", 1 << 17),
        CheckpointWriter(tmp_path / "c", [spec], chunk_bytes=1 << 16, workers=4) as writer,
    ):
        getattr(writer, how)("w", "value", data)
    assert validate(tmp_path / "c") == []
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert contiguous(checkpoint["w"]["value"], data)
        lengths = [pack.length for pack in checkpoint.packs or ()]
        assert len(lengths) == packs
        # No share is larger than half by more than a page of memory and the chunk that fills it.
        assert max(lengths) <= -(-data.nbytes // packs) + (1 << 17)


def test_parts_say_why(tmp_path: Path) -> None:
    spec = AtomSpec("w", {"value": SlotSpec("float32", FLOATS.shape)})
    halves = [(FLOATS[:, :100], (0, 0)), (FLOATS[:, 100:], (0, 100))]
    for storage, parts, reason in (
        ("plain", [(FLOATS, (0, 0))], "in storage plain each chunk is a file"),
        ("packed", halves, "saved in boxes"),
    ):
        path = tmp_path / storage
        with CheckpointWriter(path, [spec], storage=storage, chunk_bytes=100_000) as writer:  # type: ignore[arg-type]
            for data, offset in parts:
                writer.write("w", "value", data, offset)
        with open_checkpoint(path) as checkpoint, pytest.raises(UcpError, match=reason):
            checkpoint["w"]["value"].mapped()


@given(data=st.data(), shape=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple))
def test_boxes_are_joined_where_their_elements_follow_one_another(
    data: st.DataObject, shape: tuple[int, ...]
) -> None:
    cells = np.arange(int(np.prod(shape))).reshape(shape)
    boxes = data.draw(st.lists(st.sampled_from([*cells_of(shape)]), min_size=2, max_size=2))
    joined = _joined(boxes[0], boxes[1])
    run = [*cells[region(boxes[0])].ravel(), *cells[region(boxes[1])].ravel()]
    fits = [box for box in cells_of(shape) if [*cells[region(box)].ravel()] == run]
    assert fits == ([] if joined is None else [joined])


def cells_of(shape: tuple[int, ...]) -> list[Box]:
    """All boxes of a small tensor that are not empty."""
    edges = [[(start, stop) for start in range(n) for stop in range(start + 1, n + 1)] for n in shape]
    return [
        Box(tuple(start for start, _ in one), tuple(stop - start for start, stop in one))
        for one in itertools.islice(itertools.product(*edges), 300)
    ]
