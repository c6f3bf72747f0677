"""Any fsspec file system (SPEC 8)."""

from __future__ import annotations

import errno
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from tests.builders import STORAGES, State, Tensor, read_everything, result_or_refusal, save
from ucpformat.errors import UcpError
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.local_objects import LocalObjects
from ucpformat.storage.stores.remote.store import RemoteStore
from ucpformat.storage.stores.urls import open_store, open_target
from ucpformat.validation import validate

STATE: State = {("a", "value"): Tensor(np.arange(1, 31, dtype=np.int8), "int8")}


@pytest.fixture
def url() -> Iterator[str]:
    place = f"memory://{uuid4().hex}/run.ucp"
    yield place
    MemoryFileSystem.store.clear()


def test_a_store_is_chosen_by_url(tmp_path: Path, url: str) -> None:
    assert isinstance(open_store(tmp_path), LocalObjects)
    assert isinstance(open_target(tmp_path), LocalStore)
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
    store.replace("index/x", [memoryview(b"oth"), memoryview(b"er")])
    assert store.read("index/x", 0, store.size("index/x") or 0) == b"other"
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
    """UCP-R-010."""
    store = RemoteStore(url)
    for action in (lambda: store.size(key), lambda: store.read(key, 0, 1), lambda: store.create(key, [])):
        found = result_or_refusal(action)
        assert isinstance(found, UcpError)
        assert found.code == "UCP-E-KEY"


def test_debris_is_cleared_behind_the_commit_and_foreign_objects_are_not(url: str) -> None:
    """UCP-W-010: what lies there may be another's who is alive, until there is a root document."""
    memory = MemoryFileSystem()
    RemoteStore(url).create("index/debris", [memoryview(b"x")])
    store = RemoteStore(url)
    store.prepare()
    assert memory.exists(f"{url}/index/debris")
    store.close()
    save(url, STATE)
    assert validate(url) == []
    memory.pipe_file(f"{url}2/thesis.txt", b"irreplaceable")
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        save(f"{url}2", STATE)
    assert memory.cat_file(f"{url}2/thesis.txt") == b"irreplaceable"


def test_storage_plain_wants_a_place_of_its_own(url: str) -> None:
    """UCP-W-017: its keys are those of any attempt."""
    first = RemoteStore(url)
    first.prepare("plain")
    for storage in STORAGES:
        second = RemoteStore(url)
        if storage == "plain":
            with pytest.raises(UcpError, match="UCP-E-EXISTS"):
                second.prepare(storage)
        second.discard()
    save(url, STATE, storage="packed")
    assert validate(url) == []
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        first.publish(b"{}")
    assert not first.discard()
    assert validate(url) == []


def test_two_that_claim_a_place_at_the_same_moment(url: str) -> None:
    """UCP-W-017: both have listed nothing."""
    stores = [RemoteStore(url), RemoteStore(url)]
    with patch.object(MemoryFileSystem, "find", return_value=[]):
        stores[0].prepare("plain")
        with pytest.raises(UcpError, match="UCP-E-EXISTS"):
            stores[1].prepare("plain")
    stores[1].discard()
    stores[0].create("atoms/zarr.json", [memoryview(b"{}")])
    stores[0].publish(b"{}")
    assert sorted(stores[0].keys()) == ["atoms/zarr.json", "ucp.json"]


@pytest.mark.parametrize("storage", STORAGES)
def test_one_lost_answer_fails_nothing(url: str, storage: Storage) -> None:
    """UCP-W-009: each put in turn is done, and the client repeats it or tells an error."""
    real = MemoryFileSystem.pipe_file
    save(f"{url}/known", STATE)  # whether the medium keeps to conditions is asked once

    def lossy(at: int, seen: list[str], *, again: bool) -> Any:
        def put(self: Any, path: str, value: bytes, mode: str = "overwrite") -> None:
            seen.append(path)
            real(self, path, value, mode)
            if len(seen) == at:
                if again:
                    real(self, path, value, mode)
                raise ConnectionError("no answer")

        return patch.object(MemoryFileSystem, "pipe_file", put)

    for again in (True, False):
        for number in range(1, 100):
            seen: list[str] = []
            place = f"{url}/{again}/{number}"
            with lossy(number, seen, again=again):
                save(place, STATE, storage=storage)
            assert validate(place) == []
            if len(seen) < number:
                break
        assert number > 5


def test_what_may_still_become_the_root_document_keeps_its_objects(url: str) -> None:
    """UCP-W-009: a put without an answer may be done later."""
    store = RemoteStore(url)
    store.prepare()
    store.create("index/x", [memoryview(b"x")])
    with (
        patch.object(MemoryFileSystem, "pipe_file", side_effect=ConnectionError("no answer")),
        pytest.raises(UcpError, match="UCP-E-STORE"),
    ):
        store.publish(b"{}")
    assert not store.discard()
    assert list(store.keys()) == ["index/x"]


def test_an_attempt_that_was_silent_for_long_gives_up(url: str) -> None:
    """UCP-W-018: others remove what has not changed for a day."""
    store = RemoteStore(url)
    store.prepare()
    store.create("index/x", [memoryview(b"x")])
    now = time.time()
    with patch("ucpformat.storage.stores.remote.store.time.time", lambda: now + 13 * 3600):
        store.create("index/y", [memoryview(b"y")])
        with pytest.raises(UcpError, match=r"UCP-E-STORE.*12 hours"):
            store.publish(b"{}")
    assert store.size("ucp.json") is None


def unconditional(self: Any, path: str, value: bytes) -> None:
    """A file system that has never heard of conditions."""
    self.open(path, "wb", data=value)


def ignoring(self: Any, path: str, value: bytes, mode: str = "overwrite") -> None:
    """A server that does not look at a header that it does not know."""
    self.open(path, "wb", data=value)


def unimplemented(self: Any, path: str, value: bytes, mode: str = "overwrite") -> None:
    """HTTP 501, which s3fs makes ENOSYS of."""
    if mode == "create":
        raise OSError(errno.ENOSYS, "A header you provided implies functionality that is not implemented")
    self.open(path, "wb", data=value)


@pytest.mark.parametrize("put", [unconditional, ignoring, unimplemented, AbstractFileSystem.pipe_file])
def test_a_medium_without_conditional_writes_is_refused_at_once(url: str, put: Any) -> None:
    """UCP-W-008: the last one looks and then writes, as fsspec does for media that have nothing better."""
    with (
        patch.object(MemoryFileSystem, "pipe_file", put),
        pytest.raises(UcpError, match=r"UCP-E-STORE.*under the condition"),
    ):
        save(url, STATE)
    assert MemoryFileSystem().find(url) == []


def test_a_root_that_appears_in_between_wins(url: str) -> None:
    """UCP-W-004, UCP-W-016: the conditional write decides, not the look before it."""
    save(url, STATE)
    store = RemoteStore(url)
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        store.publish(b"{}")
    store.discard()
    assert validate(url) == []


def test_a_root_whose_answer_was_lost_is_recognised(url: str) -> None:
    """UCP-W-004: a client repeats the put, which then meets what the first has done."""
    real = MemoryFileSystem.pipe_file

    def twice(self: Any, path: str, value: bytes, **named: Any) -> None:
        if path.endswith("ucp.json"):
            real(self, path, value, **named)
        real(self, path, value, **named)

    with patch.object(MemoryFileSystem, "pipe_file", twice):
        save(url, STATE)
    assert validate(url) == []


def test_object_stores_have_no_directories_and_their_buckets_are_not_made(url: str) -> None:
    with patch.object(MemoryFileSystem, "protocol", ("s3", "s3a")):
        with patch.object(MemoryFileSystem, "makedirs", side_effect=RuntimeError("asked for")):
            save(url, STATE)
        nowhere = patch.object(MemoryFileSystem, "pipe_file", side_effect=FileNotFoundError("NoSuchBucket"))
        with nowhere, pytest.raises(UcpError, match=r"UCP-E-STORE.*no such bucket"):
            save(f"{url}2", STATE)
    assert validate(url) == []


def test_a_medium_that_does_not_know_sizes_has_no_objects(url: str) -> None:
    with patch.object(MemoryFileSystem, "size", return_value=None):
        assert RemoteStore(url).size("ucp.json") is None
    with (
        patch.object(MemoryFileSystem, "size", side_effect=RuntimeError("injected")),
        pytest.raises(UcpError, match="UCP-E-STORE"),
    ):
        RemoteStore(url).size("ucp.json")


@contextmanager
def counted_calls() -> Iterator[list[tuple[str, int, int]]]:
    """The ranges that the file system in memory is asked for."""
    calls: list[tuple[str, int, int]] = []
    read = MemoryFileSystem.cat_file

    def counting(self: MemoryFileSystem, path: str, start: int, end: int, **rest: object) -> bytes:
        calls.append((path.rpartition("/")[2], start, end))
        data: bytes = read(self, path, start=start, end=end, **rest)
        return data

    with patch.object(MemoryFileSystem, "cat_file", counting):
        yield calls


def test_few_large_calls_fetch_many_small_slots(url: str) -> None:
    """One call for each document, without a look at its size; then 4 MiB of data at a time."""
    state = {(f"a{n}", "value"): Tensor(np.full(500, n % 100 + 1, np.int8), "int8") for n in range(3000)}
    state["large", "value"] = Tensor(np.ones((11, 1 << 20), np.int8), "int8")
    save(url, state)
    into = {name: np.zeros(tensor.data.shape, np.int8) for name, tensor in state.items()}
    with counted_calls() as calls, open_checkpoint(url) as checkpoint:
        assert len(calls) == 1
        checkpoint.load(into)
        nbytes, parts = checkpoint.fetched, len(checkpoint.root.parts)
    assert all((into[name] == tensor.data).all() for name, tensor in state.items())
    packs = [call for call in calls if call[0].endswith(".pack")]
    documents = len(calls) - len(packs)
    assert documents == 2 + 2 * parts
    assert len(packs) <= nbytes // (1 << 22) + 4
    assert max(end - start for _, start, end in packs) <= 1 << 22


def test_sixteen_calls_wait_at_once(url: str) -> None:
    """None of them returns before sixteen are there: fewer threads would never come together."""
    state: State = {("a", "value"): Tensor(np.ones((64, 1 << 20), np.int8), "int8")}
    save(url, state)
    meeting = threading.Barrier(16)
    read = MemoryFileSystem.cat_file

    def meet(self: MemoryFileSystem, path: str, start: int, end: int, **rest: object) -> bytes:
        if path.endswith(".pack"):
            meeting.wait(timeout=300)
        data: bytes = read(self, path, start=start, end=end, **rest)
        return data

    out = np.zeros((64, 1 << 20), np.int8)
    with patch.object(MemoryFileSystem, "cat_file", meet), open_checkpoint(url) as checkpoint:
        checkpoint.load({("a", "value"): out})
    assert out.all()


@pytest.mark.parametrize(("parts", "wanted"), [(8, 16), (1, 2)])
def test_documents_of_parts_wait_at_once(url: str, parts: int, wanted: int) -> None:
    """None returns before so many are asked for: those of one part, or of eight."""
    state: State = {(f"a{n}", "value"): Tensor(np.ones(3, np.int8), "int8") for n in range(parts)}
    with patch("ucpformat.writer._ATOMS_PER_PART", 1):
        save(url, state)
    meeting = threading.Barrier(wanted)
    read = MemoryFileSystem.cat_file

    def meet(self: MemoryFileSystem, path: str, start: int, end: int, **rest: object) -> bytes:
        if re.search(r"-[0-9]+\.(json|bin)$", path):
            meeting.wait(timeout=300)
        data: bytes = read(self, path, start=start, end=end, **rest)
        return data

    with patch.object(MemoryFileSystem, "cat_file", meet), open_checkpoint(url) as checkpoint:
        assert list(checkpoint) == sorted(name for name, _ in state)


def test_a_medium_that_refuses_ranges_beyond_the_end_is_asked_for_the_size(url: str) -> None:
    save(url, STATE)
    read = MemoryFileSystem.cat_file

    def strict(self: MemoryFileSystem, path: str, start: int, end: int, **rest: object) -> bytes:
        if end > self.size(path):
            raise OSError("416 Range Not Satisfiable")
        data: bytes = read(self, path, start=start, end=end, **rest)
        return data

    with patch.object(MemoryFileSystem, "cat_file", strict):
        assert read_everything(url)["a", "value"].tolist() == list(range(1, 31))
