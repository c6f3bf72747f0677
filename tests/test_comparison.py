"""Comparing checkpoints by what they hold."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ucpformat
from tests.builders import BLOSC, GZIP, Forgery, State, Tensor, bits, compressors, save, states
from ucpformat.comparison import Comparison, Difference, compare
from ucpformat.errors import UcpError
from ucpformat.model.dtype import DTYPES
from ucpformat.model.root import Storage
from ucpformat.model.state import StateDocument
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

STORAGES = st.sampled_from(["plain", "packed"])


def differences(first: str | Path, second: str | Path) -> list[Difference]:
    with ucpformat.open(first) as a, ucpformat.open(second) as b:
        return list(compare(a, b).differences)


def stored(state: State, **options: Any) -> str:
    url = f"memory://{uuid4().hex}"
    save(url, state, **options)
    return url


@settings(max_examples=30)
@given(states(), STORAGES, STORAGES, st.sampled_from([16, 4096]), st.none() | compressors())
def test_how_does_not_count(
    state: State, first: Storage, second: Storage, chunk: int, compressor: Any
) -> None:
    """Storage, chunks, compression are how, not what."""
    other = {key: Tensor(tensor.data, tensor.dtype, compressor) for key, tensor in state.items()}
    assert differences(stored(state, storage=first), stored(other, storage=second, chunk_bytes=chunk)) == []


@settings(max_examples=30)
@given(states(), states())
def test_swapping_turns_every_difference_around(first: State, second: State) -> None:
    a, b = stored(first), stored(second)
    turned = {"added": "removed", "removed": "added", "changed": "changed"}
    there = [(difference.kind, difference.what) for difference in differences(a, b)]
    back = [(turned[difference.kind], difference.what) for difference in differences(b, a)]
    assert there == back
    bits_of = {key: (t.dtype, t.data.shape, t.data.tobytes()) for key, t in first.items()}
    other = {key: (t.dtype, t.data.shape, t.data.tobytes()) for key, t in second.items()}
    assert (there == []) == (bits_of == other)


@settings(max_examples=30)
@given(st.data(), st.sampled_from(sorted(DTYPES)), st.booleans(), st.sampled_from([None, GZIP, BLOSC]))
def test_one_changed_byte_is_found(data: st.DataObject, name: str, content: bool, compressor: Any) -> None:
    """With and without recorded content digests."""
    entry = DTYPES[name]
    shape = data.draw(st.sampled_from([(), (1,), (5, 3), (2, 1, 7)]))
    before = bits(data.draw(st.integers(0, 2**32)), shape, entry)
    after = before.copy()
    place = data.draw(st.integers(0, before.nbytes - 1))
    mask = 1 if entry.used_mask is not None else data.draw(st.sampled_from([1, 4, 128]))
    after.reshape(-1).view(np.uint8)[place] ^= mask
    urls = [
        boxed({("w", "value"): Tensor(tensor, name, compressor)}, content)
        for tensor in (before, after, before)
    ]
    (difference,) = differences(urls[0], urls[1])
    assert (difference.kind, difference.what) == ("changed", "atoms/w/value")
    assert difference.tensor is not None
    assert difference.tensor.changed == difference.tensor.changed_rows == 1
    assert differences(urls[0], urls[2]) == []


def boxed(state: State, content: bool) -> str:
    """The state in memory, without content digests unless ``content``."""
    url = f"memory://{uuid4().hex}"
    ((atom, slot), tensor) = next(iter(state.items()))
    specs = [AtomSpec(atom, {slot: SlotSpec(tensor.dtype, tensor.data.shape, compressor=tensor.compressor)})]
    with CheckpointWriter(url, specs, chunk_bytes=16, workers=1) as writer:
        writer.write(atom, slot, tensor.data)
    if not content:
        forget_content(url)
    return url


def forget_content(url: str) -> None:
    """Take the optional content digests out of a checkpoint in memory and seal it again."""
    import tempfile

    import fsspec

    memory = fsspec.filesystem("memory")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "copy"
        memory.get(url.removeprefix("memory:/"), str(path), recursive=True)
        forget(path)
        memory.put(f"{path}/", url.removeprefix("memory:/"), recursive=True)


def forget(path: Path) -> Path:
    def drop(index: Any) -> None:
        for atom in index["atoms"]:
            for slot in atom["slots"].values():
                slot.pop("content", None)

    return Forgery(path).edit("index", drop).sealed()


def weight(path: Path, data: Any, **atom: Any) -> Path:
    specs = [AtomSpec("w", {"value": SlotSpec("int16", data.shape)}, **atom)]
    with CheckpointWriter(path, specs, chunk_bytes=16, workers=1) as writer:
        writer.write("w", "value", data)
    return path


def test_without_content_digests_chunks_are_read(tmp_path: Path) -> None:
    data = np.arange(64, dtype=np.int16)
    other = data.copy()
    other[[3, 40]] += 1
    first, second = weight(tmp_path / "a", data), forget(weight(tmp_path / "b", other))
    (found,) = differences(first, second)
    assert found.detail == "2 of 64 rows, 2 elements; at most 1 absolute, 0.25 relative"
    assert found.tensor is not None
    assert found.tensor.ranges == ((3, 4), (40, 41))
    assert differences(second, second) == []
    assert differences(first, forget(weight(tmp_path / "c", data))) == []


def test_damage_is_an_error_and_not_a_difference(tmp_path: Path) -> None:
    """UCP-R-029 while comparing."""
    first = forget(weight(tmp_path / "a", np.arange(64, dtype=np.int16)))
    second = forget(weight(tmp_path / "b", np.arange(64, dtype=np.int16)))
    pack = next((second / "packs").iterdir())
    content = bytearray(pack.read_bytes())
    content[0] ^= 1
    pack.write_bytes(content)
    with pytest.raises(UcpError) as caught:
        differences(first, second)
    assert caught.value.code == "UCP-E-CHECKSUM"


def test_a_flipped_byte_is_found_where_bytes_are_compared(tmp_path: Path) -> None:
    """Recorded digests say nothing about damage that came later, and the comparison says what it went by."""
    first = weight(tmp_path / "a", np.arange(64, dtype=np.int16))
    second = weight(tmp_path / "b", np.arange(64, dtype=np.int16))
    with ucpformat.open(first) as a, ucpformat.open(second) as b:
        assert compare(a, b, by="bytes") == Comparison((), 0, 1)
    pack = next((second / "packs").iterdir())
    content = bytearray(pack.read_bytes())
    content[0] ^= 1
    pack.write_bytes(content)
    with ucpformat.open(first) as a, ucpformat.open(second) as b:
        assert compare(a, b) == Comparison((), 1, 0)
        with pytest.raises(UcpError) as caught:
            compare(a, b, by="bytes")
    assert (caught.value.code, caught.value.path) == ("UCP-E-CHECKSUM", str(second))


def test_blobs_are_read_where_bytes_are_compared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with CheckpointWriter(tmp_path / name, []) as writer:
            writer.add_blob("b", b"1", "text/plain")
    (blob,) = (tmp_path / "b" / "blobs").iterdir()
    blob.write_bytes(b"2")
    assert differences(tmp_path / "a", tmp_path / "b") == []
    with (
        ucpformat.open(tmp_path / "a") as a,
        ucpformat.open(tmp_path / "b") as b,
        pytest.raises(UcpError) as caught,
    ):
        compare(a, b, by="bytes")
    assert caught.value.code == "UCP-E-DIGEST"


def test_types_shapes_slots_and_aliases(tmp_path: Path) -> None:
    def write(name: str, aliases: tuple[str, ...], slots: dict[str, Any]) -> Path:
        specs = {slot: SlotSpec(str(data.dtype), data.shape) for slot, data in slots.items()}
        with CheckpointWriter(tmp_path / name, [AtomSpec("w", specs, aliases)]) as writer:
            for slot, data in slots.items():
                writer.write("w", slot, data)
        return tmp_path / name

    one = write("a", ("x", "y"), {"value": np.zeros((2, 3)), "old": np.zeros(1), "same": np.ones(2)})
    two = write("b", ("y",), {"value": np.zeros((3, 2)), "new": np.zeros(1), "same": np.ones(2)})
    assert differences(one, two) == [
        Difference("changed", "atoms/w/aliases", old=["x", "y"], new=["y"]),
        Difference("added", "atoms/w/new"),
        Difference("removed", "atoms/w/old"),
        Difference("changed", "atoms/w/value", "float64[2, 3] to float64[3, 2]"),
    ]


def test_a_tie_that_was_broken(tmp_path: Path) -> None:
    w = np.ones(3)
    ucpformat.save(tmp_path / "tied", {"a": w, "b": w})
    ucpformat.save(tmp_path / "apart", {"a": w, "b": w.copy()})
    assert differences(tmp_path / "tied", tmp_path / "apart") == [
        Difference("changed", "atoms/a/aliases", old=["b"], new=[]),
        Difference("added", "atoms/b"),
    ]


def blob(data: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {"media_type": "text/plain", "digest": digest, "length": len(data)}


def test_values_optimizers_and_blobs(tmp_path: Path) -> None:
    def write(name: str, values: dict[str, Any], lr: dict[str, float], blobs: dict[str, bytes]) -> Path:
        with CheckpointWriter(tmp_path / name, []) as writer:
            writer.set_state(StateDocument(annotations={"org.example": {"run": name}}))
            for key, value in values.items():
                writer.set_value(key, value)
            for key, rate in lr.items():
                writer.set_optimizer(key, [([], {"lr": rate})])
            for key, data in blobs.items():
                writer.add_blob(key, data, "text/plain")
        return tmp_path / name

    one = write(
        "a", {"same": [1, {"a": 2}], "old": 1, "type": 1}, {"o": 0.5, "p": 0.5}, {"b": b"1", "c": b"2"}
    )
    two = write(
        "b", {"same": [1, {"a": 2}], "new": 1, "type": True}, {"o": 0.5, "p": 0.25}, {"b": b"1", "d": b"2"}
    )
    assert differences(one, two) == [
        Difference("added", "values/new", new=1),
        Difference("removed", "values/old", old=1),
        Difference("changed", "values/type", old=1, new=True),
        Difference("changed", "optimizers/p/groups/0/options/lr", old=0.5, new=0.25),
        Difference("removed", "blobs/c", old=blob(b"2")),
        Difference("added", "blobs/d", new=blob(b"2")),
    ]
    assert differences(one, one) == []


def test_the_root_may_have_no_state_document(tmp_path: Path) -> None:
    weight(tmp_path / "a", np.zeros(1, np.int16))
    forgery = Forgery(weight(tmp_path / "b", np.zeros(1, np.int16)))
    del forgery.root["state"]
    assert differences(tmp_path / "a", forgery.sealed()) == []
