"""Slots that are looked at where they lie: what a read gives, without a copy, and checked as a read is."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import GZIP, STORAGES, State, Tensor, guillotine, region, save, states
from ucpformat.errors import UcpError
from ucpformat.geometry import Box
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.views import SlotView
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

FLOATS = np.arange(1, 40_001, dtype="<f4").reshape(200, 200)


def is_mapped(array: Any) -> bool:
    """Whether an array owns nothing, and what it looks at is a mapping of a file."""
    while isinstance(array, np.ndarray):
        if array.flags.owndata or array.flags.writeable:
            return False
        array = array.base
    return isinstance(array.obj if isinstance(array, memoryview) else array, mmap.mmap)


def assembled(slot: SlotView) -> Any:
    """What the parts come to; cells that no part has stay random bits."""
    whole = np.frombuffer(os.urandom(slot.nbytes), np.uint8).view(slot.dtype.numpy).reshape(slot.shape).copy()
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
            assert {box for box, _ in slot.mapped_parts()} == set(boxes)
            assert np.array_equal(assembled(slot), whole)
            if len(boxes) == 1:
                assert np.array_equal(slot.mapped(), whole)
            else:
                with pytest.raises(UcpError, match=f"lies in {len(boxes)} parts"):
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
