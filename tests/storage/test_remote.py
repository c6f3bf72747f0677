"""Any fsspec file system (SPEC 8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.builders import State, Tensor, read_everything, result_or_refusal, save
from ucpformat.errors import UcpError
from ucpformat.storage.local import LocalStore
from ucpformat.storage.remote import RemoteStore
from ucpformat.storage.store import open_store
from ucpformat.validate import validate

STATE: State = {("a", "value"): Tensor(np.arange(1, 31, dtype=np.int8), "int8")}


@pytest.fixture
def url() -> Iterator[str]:
    place = f"memory://{uuid4().hex}/run.ucp"
    yield place
    MemoryFileSystem.store.clear()


def test_a_store_is_chosen_by_url(tmp_path: Path, url: str) -> None:
    assert isinstance(open_store(tmp_path), LocalStore)
    assert open_store(f"file://{tmp_path}").url == str(tmp_path)
    assert isinstance(open_store(url), RemoteStore)
    assert open_store(url).url == url
    with pytest.raises(UcpError) as refusal:
        open_store("nosuchprotocol://x")
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-STORE", "nosuchprotocol://x")


def test_a_local_directory_is_one_through_fsspec_as_well(tmp_path: Path) -> None:
    url = f"simplecache::file://{tmp_path}/c"
    save(tmp_path / "c", STATE)
    assert read_everything(url)["a", "value"].tolist() == list(range(1, 31))


def test_objects(url: str) -> None:
    store = RemoteStore(url)
    store.prepare()
    store.create("index/x", [memoryview(b"abc"), memoryview(b"def")])
    assert store.size("index/x") == 6
    assert store.size("index/y") is None
    assert store.read("index/x", 2, 5) == b"cde"
    assert store.read("index/x", 2, 2) == b""
    buffers = [memoryview(bytearray(2)), memoryview(bytearray(3))]
    store.read_into("index/x", 1, buffers)
    assert [bytes(buffer) for buffer in buffers] == [b"bc", b"def"]
    with pytest.raises(UcpError, match="UCP-E-LENGTH"):
        store.read("index/x", 2, 7)
    with pytest.raises(UcpError, match="UCP-E-MISSING"):
        store.read("index/y", 0, 1)
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        store.create("index/x", [memoryview(b"other")])
    assert store.read("index/x", 0, 6) == b"abcdef"
    assert list(store.keys()) == ["index/x"]
    store.discard()
    assert list(store.keys()) == []
    store.close()


def test_packs_are_streams(url: str) -> None:
    store = RemoteStore(url)
    pack = store.create_pack("packs/x.pack")
    assert pack.append([memoryview(b"abc")], 64) == 0
    assert pack.append([memoryview(b"d"), memoryview(b"ef")], 64) == 64
    assert pack.close() == 67
    assert store.read("packs/x.pack", 0, 67) == b"abc" + bytes(61) + b"def"


@pytest.mark.parametrize("key", ["../x", "/x", "a//x", ""])
def test_unsafe_keys_are_refused(url: str, key: str) -> None:
    """UCP-R-009."""
    store = RemoteStore(url)
    for action in (lambda: store.size(key), lambda: store.read(key, 0, 1), lambda: store.create(key, [])):
        found = result_or_refusal(action)
        assert isinstance(found, UcpError)
        assert found.code == "UCP-E-KEY"


def test_debris_is_cleared_and_foreign_objects_are_not(url: str) -> None:
    store = RemoteStore(url)
    store.create("index/debris", [memoryview(b"x")])
    save(url, STATE, storage="plain")
    assert validate(url) == []
    memory = MemoryFileSystem()
    memory.pipe_file(f"{url}2/thesis.txt", b"irreplaceable")
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        save(f"{url}2", STATE)
    assert memory.cat_file(f"{url}2/thesis.txt") == b"irreplaceable"


def test_a_medium_without_conditional_writes_is_looked_at_first(url: str) -> None:
    """UCP-W-004."""
    real = MemoryFileSystem.pipe_file

    def unconditional(self: Any, path: str, value: bytes) -> None:
        real(self, path, value)

    with patch.object(MemoryFileSystem, "pipe_file", unconditional):
        save(url, STATE, storage="plain")
        assert validate(url) == []
        with pytest.raises(UcpError, match="UCP-E-EXISTS"):
            RemoteStore(url).publish(b"{}")
    assert validate(url) == []


def test_a_root_that_appears_in_between_wins(url: str) -> None:
    """UCP-W-004: the conditional write decides, not the look before it."""
    save(url, STATE)
    store = RemoteStore(url)
    with (
        patch.object(MemoryFileSystem, "exists", side_effect=[False, True]),
        pytest.raises(UcpError, match="UCP-E-EXISTS"),
    ):
        store.publish(b"{}")
    store.discard()
    assert validate(url) == []


def test_a_medium_that_does_not_know_sizes_has_no_objects(url: str) -> None:
    with patch.object(MemoryFileSystem, "size", return_value=None):
        assert RemoteStore(url).size("ucp.json") is None
    with (
        patch.object(MemoryFileSystem, "size", side_effect=RuntimeError("injected")),
        pytest.raises(UcpError, match="UCP-E-STORE"),
    ):
        RemoteStore(url).size("ucp.json")
