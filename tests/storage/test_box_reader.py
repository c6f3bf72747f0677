"""Many whole slots at once: what comes back is what reading slot by slot brings (SPEC section 17.3)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import BLOSC, MIB, STORAGES, Tensor, fresh_url, save, states
from tests.builders import State as Tensors
from ucpformat.errors import UcpError
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.local_objects import LocalObjects
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

Destinations = dict[tuple[str, str], np.ndarray[tuple[int, ...], np.dtype[np.generic]]]


def floats(count: int, seed: int = 1) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).random(count, dtype=np.float32) + np.float32(1)


@given(
    states(),
    st.sampled_from(STORAGES),
    st.sampled_from(["local", "memory"]),
    st.sampled_from([16, 97, 4096]),
    st.booleans(),
    st.booleans(),
)
def test_load_brings_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    state: Tensors,
    storage: Storage,
    medium: str,
    chunk_bytes: int,
    verify: bool,
    dense: bool,
) -> None:
    """Compressed slots and destinations with strides go one by one; zero entries overwrite what was there."""
    url = fresh_url(medium, tmp_path_factory.mktemp("bulk"))
    save(url, state, storage=storage, chunk_bytes=chunk_bytes)
    into: Destinations = {}
    for key, tensor in state.items():
        room = np.empty((*tensor.data.shape, 2), tensor.data.dtype)
        room.view(np.uint8)[...] = 0xA5
        into[key] = np.ascontiguousarray(room[..., 0]) if dense and tensor.data.ndim else room[..., 0]
    with open_checkpoint(url, workers=2, verify=verify) as checkpoint:
        checkpoint.load(into)
    for key, tensor in state.items():
        assert into[key].tobytes() == tensor.data.tobytes(), key


@pytest.mark.parametrize("storage", STORAGES)
def test_large_slots_are_read_in_pieces(tmp_path: Path, storage: Storage) -> None:
    """Slots over several calls and several chunks, the last of them shorter, beside small ones."""
    path = tmp_path / "large.ucp"
    state = {
        ("a", "value"): Tensor(floats(5 * MIB // 4 + 77).reshape(-1, 1), "float32"),
        ("b", "value"): Tensor(floats(13 * MIB // 4 + 1), "float32"),
        ("c", "value"): Tensor(floats(3), "float32"),
        ("d", "value"): Tensor(floats(2 * MIB), "float32", BLOSC),
    }
    save(path, state, storage=storage, chunk_bytes=6 * MIB)
    into: Destinations = {key: np.zeros_like(tensor.data) for key, tensor in state.items()}
    with open_checkpoint(path) as checkpoint:
        checkpoint.load(into)
    for key, tensor in state.items():
        assert np.array_equal(into[key], tensor.data)


def test_chunks_written_as_boxes_are_assembled(tmp_path: Path) -> None:
    path, data = tmp_path / "boxes.ucp", floats(12).reshape(3, 4)
    with CheckpointWriter(path, [AtomSpec("a", {"value": SlotSpec("float32", (3, 4))})]) as writer:
        writer.write("a", "value", data[:, :1], (0, 0))
        writer.write("a", "value", data[:, 1:], (0, 1))
    into = np.zeros_like(data)
    with open_checkpoint(path) as checkpoint:
        checkpoint.load({("a", "value"): into})
    assert np.array_equal(into, data)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("position", [0.0, 0.5, 1.0])
def test_a_flipped_bit_is_found(tmp_path: Path, storage: Storage, position: float) -> None:
    """UCP-R-029, in the first, a middle and the last block of a slot of several calls."""
    path, data = tmp_path / "damaged.ucp", floats(9 * MIB // 4)
    save(path, {("a", "value"): Tensor(data, "float32")}, storage=storage, chunk_bytes=16 * MIB)
    (target,) = [found for found in path.rglob("*") if found.is_file() and found.stat().st_size > 8 * MIB]
    damaged = bytearray(target.read_bytes())
    damaged[int(position * (data.nbytes - 1))] ^= 4
    target.write_bytes(damaged)
    into = {("a", "value"): np.zeros_like(data)}
    with open_checkpoint(path) as checkpoint, pytest.raises(UcpError) as refusal:
        checkpoint.load(into)
    assert refusal.value.code == "UCP-E-CHECKSUM"
    assert refusal.value.at == target.relative_to(path).as_posix()
    with open_checkpoint(path, verify=False) as checkpoint:
        checkpoint.load(into)


def test_a_cut_pack_is_found(tmp_path: Path) -> None:
    path = tmp_path / "cut.ucp"
    save(path, {("a", "value"): Tensor(floats(1000), "float32")}, storage="packed")
    (pack,) = path.glob("packs/*")
    pack.write_bytes(pack.read_bytes()[:-1])
    with open_checkpoint(path) as checkpoint, pytest.raises(UcpError) as refusal:
        checkpoint.load({("a", "value"): np.zeros(1000, np.float32)})
    assert refusal.value.code == "UCP-E-LENGTH"


def test_small_slots_are_fetched_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small.ucp"
    state = {(f"a{number:03}", "value"): Tensor(floats(5, number), "float32") for number in range(100)}
    with CheckpointWriter(
        path, [AtomSpec(name, {slot: SlotSpec("float32", (5,))}) for name, slot in state], workers=1
    ) as writer:
        for (name, slot), tensor in state.items():
            writer.submit(name, slot, tensor.data)
    reads: list[str] = []
    read_into = LocalObjects.read_into

    def counted(store: LocalObjects, key: str, start: int, buffers: list[memoryview]) -> None:
        reads.append(key)
        read_into(store, key, start, buffers)

    monkeypatch.setattr(LocalObjects, "read_into", counted)
    into: Destinations = {key: np.zeros(5, np.float32) for key in state}
    with open_checkpoint(path) as checkpoint:
        checkpoint.load(into)
    assert len(reads) == 1
    assert all(np.array_equal(into[key], tensor.data) for key, tensor in state.items())


def test_destinations_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "checked.ucp"
    save(path, {(name, "value"): Tensor(floats(4), "float32") for name in "ab"})
    good = np.zeros(4, np.float32)
    with open_checkpoint(path) as checkpoint:
        with pytest.raises(UcpError) as refusal:
            checkpoint.load({("a", "value"): good, ("b", "value"): np.zeros(5, np.float32)})
        with pytest.raises(KeyError):
            checkpoint.load({("a", "value"): good, ("c", "value"): good})
    assert refusal.value.code == "UCP-E-MISMATCH"
    assert not good.any()
