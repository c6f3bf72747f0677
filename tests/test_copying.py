"""Copies of checkpoints: the same bytes, read back before they are committed, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import ucpformat
from tests.builders import GZIP, State, Tensor, read_everything, save
from ucpformat.copying import copy_checkpoint
from ucpformat.errors import UcpError
from ucpformat.model.root import Storage
from ucpformat.storage.stores.remote.store import RemoteStore
from ucpformat.validation import validate

STATE: State = {
    ("a", "value"): Tensor(np.arange(3000, dtype=np.int16).reshape(60, 50), "int16"),
    ("a", "exp_avg"): Tensor(np.zeros((60, 50), np.float32), "float32"),
    ("b", "value"): Tensor(np.arange(3000, dtype=np.int16), "int16", GZIP),
    ("c", "value"): Tensor(np.array(7, np.int8), "int8"),
    ("d", "value"): Tensor(np.zeros((0, 2), np.int8), "int8"),
}


@pytest.fixture
def url() -> Iterator[str]:
    yield f"memory://{uuid4().hex}/run.ucp"
    MemoryFileSystem.store.clear()


@pytest.mark.parametrize("storage", ["packed", "plain"])
def test_there_and_back(tmp_path: Path, url: str, storage: Storage) -> None:
    source = tmp_path / "a.ucp"
    save(source, STATE, storage=storage, chunk_bytes=1024)
    counted: list[int] = []
    there = copy_checkpoint(source, url, progress=counted.append)
    assert sum(counted) >= there.nbytes
    for copied in (there, copy_checkpoint(url, tmp_path / "b.ucp"), copy_checkpoint(url, tmp_path / "c.ucp")):
        with ucpformat.open(source) as opened:
            assert copied == (there.__class__)(there.objects, there.nbytes, opened.digest)
    files = {path.relative_to(source): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    copy = tmp_path / "b.ucp"
    assert files == {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert there.objects == len(files)
    assert there.nbytes == sum(map(len, files.values()))
    assert validate(copy) == []
    assert {key: value.tobytes() for key, value in read_everything(copy).items()} == {
        key: tensor.data.tobytes() for key, tensor in STATE.items()
    }


def test_values_optimizers_and_blobs_are_copied_and_debris_is_not(tmp_path: Path) -> None:
    from ucpformat.writer import CheckpointWriter

    with CheckpointWriter(tmp_path / "a", []) as writer:
        writer.set_value("epoch", 3)
        writer.add_blob("code", b"1" * 100, "text/plain")
    (tmp_path / "a" / "packs").mkdir(exist_ok=True)
    (tmp_path / "a" / "packs" / "dead.pack").write_bytes(b"debris")
    copy_checkpoint(tmp_path / "a", tmp_path / "b")
    with ucpformat.open(tmp_path / "b") as opened:
        assert (opened.objects["epoch"], opened.blobs["code"]) == (3, b"1" * 100)
    assert validate(tmp_path / "b") == []


@pytest.mark.parametrize("storage", ["packed", "plain"])
def test_damage_is_not_copied(tmp_path: Path, storage: Storage) -> None:
    """Any object of the source but the root document, flipped once: nothing is visible at the target."""
    source = tmp_path / "a.ucp"
    save(source, STATE, storage=storage, chunk_bytes=1 << 16)
    for path in [path for path in source.rglob("*") if path.is_file() and path.name != "ucp.json"]:
        whole = path.read_bytes()
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        with pytest.raises(UcpError) as caught:
            copy_checkpoint(source, tmp_path / "b.ucp")
        assert caught.value.path in (str(source), str(tmp_path / "b.ucp"))
        assert not (tmp_path / "b.ucp").exists(), path
        path.write_bytes(whole)
    copy_checkpoint(source, tmp_path / "b.ucp")


def test_what_arrives_otherwise_is_not_committed(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target is read back: a store that keeps other bytes than it was given is found out."""
    save(tmp_path / "a.ucp", STATE, storage="plain")
    put = RemoteStore.create

    def lose(self: RemoteStore, key: str, buffers: list[memoryview]) -> None:
        put(self, key, [memoryview(bytes(len(buffers[0])))] if "/c/" in key else buffers)

    monkeypatch.setattr(RemoteStore, "create", lose)
    with pytest.raises(UcpError, match="so the copy does not verify, and was given up") as caught:
        copy_checkpoint(tmp_path / "a.ucp", url)
    assert caught.value.path == url
    with pytest.raises(UcpError, match="UCP-E-NOT-FOUND"):
        ucpformat.open(url)


def test_targets_that_are_taken(tmp_path: Path) -> None:
    save(tmp_path / "a.ucp", STATE)
    save(tmp_path / "b.ucp", STATE)
    before = (tmp_path / "b.ucp" / "ucp.json").read_bytes()
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        copy_checkpoint(tmp_path / "a.ucp", tmp_path / "b.ucp")
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        copy_checkpoint(tmp_path / "a.ucp", tmp_path / "a.ucp")
    assert (tmp_path / "b.ucp" / "ucp.json").read_bytes() == before
    assert validate(tmp_path / "a.ucp") == []


def test_a_pack_that_is_too_long_for_an_object(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ucpformat.storage.stores.remote import packs as remote_pack

    big: State = {("a", "value"): Tensor(np.ones(9 << 20, np.int8), "int8")}
    save(tmp_path / "a.ucp", big)
    monkeypatch.setattr(remote_pack, "_STREAM_BYTES", 1 << 20)
    with pytest.raises(UcpError, match="write the checkpoint anew") as caught:
        copy_checkpoint(tmp_path / "a.ucp", url)
    assert caught.value.code == "UCP-E-LIMIT"
