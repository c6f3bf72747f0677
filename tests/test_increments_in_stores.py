"""Increments in object stores (SPEC section 8.5): what did not change is copied by the store, and never sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from uuid import uuid4

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

import ucpformat as ucp
from tests.test_increments import FORMS, Arrays, big, check, save
from ucpformat.errors import UcpError
from ucpformat.storage.stores.remote.store import RemoteStore

CHUNK = 4096


@pytest.fixture
def url() -> Iterator[str]:
    yield f"memory://{uuid4().hex}"
    MemoryFileSystem.store.clear()


@contextmanager
def requests() -> Iterator[dict[str, int]]:
    """Count bytes that are sent, and copies."""
    counts = {"sent": 0, "copies": 0}
    lock = threading.Lock()
    put, opened, copied = MemoryFileSystem.pipe_file, MemoryFileSystem._open, MemoryFileSystem.cp_file

    def count(name: str, number: int) -> None:
        with lock:
            counts[name] += number

    def pipe_file(self: Any, path: str, value: bytes, **options: Any) -> Any:
        count("sent", len(value))
        return put(self, path, value, **options)

    def _open(self: Any, path: str, *args: Any, **options: Any) -> Any:
        file = opened(self, path, *args, **options)
        write = file.write

        def counted(data: Any) -> Any:
            count("sent", len(data))
            return write(data)

        file.write = counted
        return file

    def cp_file(self: Any, *paths: str, **options: Any) -> None:
        count("copies", 1)
        copied(self, *paths, **options)

    with (
        mock.patch.object(MemoryFileSystem, "pipe_file", pipe_file),
        mock.patch.object(MemoryFileSystem, "_open", _open),
        mock.patch.object(MemoryFileSystem, "cp_file", cp_file),
    ):
        yield counts


def remove(url: str) -> None:
    MemoryFileSystem().rm(url, recursive=True)


def objects(url: str) -> set[str]:
    return set(RemoteStore(url).keys())


@contextmanager
def before_each_copy(act: Callable[[str], None]) -> Iterator[None]:
    """Do something when a copy is about to be made; it is told from where."""
    real = MemoryFileSystem.cp_file

    def cp_file(self: Any, source: str, target: str, **options: Any) -> None:
        act(source)
        real(self, source, target, **options)

    with mock.patch.object(MemoryFileSystem, "cp_file", cp_file):
        yield


@pytest.mark.parametrize("form", FORMS)
def test_what_did_not_change_is_not_sent_again(url: str, form: str) -> None:
    """UCP-W-033, UCP-W-034: and the increment stands when its base is gone."""
    arrays = big()
    save(f"{url}/1", arrays, form=form, chunk_bytes=CHUNK)
    arrays["a"][3] += 1
    with requests() as counts:
        report = save(f"{url}/2", arrays, base=f"{url}/1", form=form, chunk_bytes=CHUNK)
    assert report.stored.data <= CHUNK + 104
    assert report.stored.shared >= 100_000
    assert counts["sent"] < CHUNK + 14_000  # documents among them
    # A pack is copied once, however many threads find something in it; in storage plain, each chunk is an object.
    assert counts["copies"] == (31 if form == "plain" else 1)
    remove(f"{url}/1")
    check(f"{url}/2", arrays)


def test_a_copied_pack_has_a_key_of_the_attempt_and_is_marked(url: str) -> None:
    arrays = big()
    save(f"{url}/1", arrays, chunk_bytes=CHUNK)
    for name in ("2", "3"):
        arrays["a"][int(name)] += 1
        save(f"{url}/{name}", arrays, base=f"{url}/{int(name) - 1}", chunk_bytes=CHUNK)
    packs = []
    for name in ("1", "2", "3"):
        with ucp.open(f"{url}/{name}") as checkpoint:
            packs.append({pack.key: pack.shared for pack in checkpoint.packs or ()})
    assert [sorted(found.values()) for found in packs] == [[False], [False, True], [False, True, True]]
    assert len({key for found in packs for key in found}) == 6


@pytest.mark.parametrize("form", FORMS)
def test_ranks_share_under_any_layout(url: str, form: str) -> None:
    arrays = big()
    save(f"{url}/1", arrays, form=form, chunk_bytes=CHUNK, ranks=2)
    arrays["b"][-1] += 1
    report = save(f"{url}/2", arrays, base=f"{url}/1", form=form, chunk_bytes=CHUNK, ranks=3)
    assert report.stored.data <= CHUNK + 104
    remove(f"{url}/1")
    check(f"{url}/2", arrays)
    if form != "plain":
        # All ranks of an attempt have one copy of a pack.
        assert sum(".pack" in key for key in objects(f"{url}/2")) == 3


def test_rows_are_layers_here_as_well(url: str) -> None:
    rng = np.random.default_rng(0)
    table: Arrays = {"table": rng.integers(1, 1 << 30, (4096, 64), np.int32)}
    save(f"{url}/1", table, chunk_bytes=1 << 20)
    table["table"][rng.integers(0, 4096, 100)] += 1
    report = save(f"{url}/2", table, base=f"{url}/1", chunk_bytes=1 << 20)
    assert report.stored.data <= 100 * 256
    remove(f"{url}/1")
    check(f"{url}/2", table)


def test_what_is_known_is_not_fetched(url: str) -> None:
    """A snapshot tells what has changed, and declared rows do: of the base, no pack is read."""
    read = RemoteStore.read
    fetched: list[str] = []

    def noted(self: RemoteStore, key: str, start: int, stop: int) -> bytes:
        fetched.append(key)
        return read(self, key, start, stop)

    state = {"table": np.ones((1000, 64), np.float32), "w": np.arange(1, 5001, dtype=np.float32)}
    with mock.patch.object(RemoteStore, "read", noted):
        with ucp.CheckpointManager(url, incremental=True, asynchronous=True) as manager:
            manager.save(1, state).wait()
            state["table"][7] += 1
            report = manager.save(2, state).wait()
            assert report.stored.data == 256
        changed = {"table": [8], "w": []}
        state["table"][8] += 1
        report = ucp.save(f"{url}/other", state, base=f"{url}/step-2.ucp", changed=changed)
        assert report.stored.data == 256
    assert not [key for key in fetched if key.startswith("packs/")]
    remove(f"{url}/step-1.ucp")
    remove(f"{url}/step-2.ucp")
    assert ucp.validate(f"{url}/other") == []
    assert np.array_equal(ucp.load(f"{url}/other")["table"], state["table"])


def test_a_run_of_increments_keeps_and_removes(url: str) -> None:
    frozen = np.arange(1, 50_001, dtype=np.float32)
    with ucp.CheckpointManager(url, incremental=True, keep_last=2) as manager:
        for step in range(1, 6):
            with requests() as counts:
                manager.save(step, {"frozen": frozen, "trained": np.full(10, step, np.float32)}).wait()
            assert step == 1 or counts["sent"] < 10_000
            for left in manager.steps():
                assert ucp.validate(manager.path(left)) == []
        assert manager.steps() == [4, 5]
    assert {key.partition("/")[0] for key in objects(url)} == {"step-4.ucp", "step-5.ucp"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", ["removed", "replaced", "replaced by the same length"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_base_that_changes_meanwhile_fails_the_save(url: str, form: str, how: str, ranks: int) -> None:
    """UCP-W-034: nothing of the increment is visible, and nothing of it is left."""
    arrays = big()
    save(f"{url}/1", arrays, form=form, chunk_bytes=CHUNK)

    def harm(source: str) -> None:
        memory = MemoryFileSystem()
        if how == "removed":
            memory.store.pop(source, None)
        elif source in memory.store:
            size = memory.size(source)
            memory.pipe_file(source, bytes(size if "length" in how else 7))

    with before_each_copy(harm), pytest.raises(UcpError, match=r"UCP-E-NOT-FOUND.*base"):
        save(f"{url}/2", arrays, base=f"{url}/1", form=form, chunk_bytes=CHUNK, ranks=ranks)
    assert objects(f"{url}/2") == set()


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_that_fails_fails_the_save(url: str, form: str) -> None:
    arrays = big()
    save(f"{url}/1", arrays, form=form, chunk_bytes=CHUNK)

    def fail(source: str) -> None:
        raise ConnectionError("no answer")

    with before_each_copy(fail), pytest.raises(UcpError, match=r"UCP-E-STORE.*no answer"):
        save(f"{url}/2", arrays, base=f"{url}/1", form=form, chunk_bytes=CHUNK)
    # A copy that nobody has answered may come later: nobody else is to have its key then.
    assert objects(f"{url}/2") == ({"index/claim"} if form == "plain" else set())


def test_an_increment_that_fails_takes_nothing_from_its_base(url: str) -> None:
    arrays = big()
    save(f"{url}/1", arrays, chunk_bytes=CHUNK)
    before = dict(MemoryFileSystem.store)
    specs = [ucp.AtomSpec(name, {"value": ucp.SlotSpec("int32", one.shape)}) for name, one in arrays.items()]
    writer = ucp.CheckpointWriter(f"{url}/2", specs, base=f"{url}/1", chunk_bytes=CHUNK)
    writer.write("a", "value", arrays["a"])
    with pytest.raises(UcpError, match="UCP-E-COVER"):
        writer.commit()
    assert MemoryFileSystem.store == before


def test_a_damaged_base_is_not_shared(url: str) -> None:
    arrays = big()
    save(f"{url}/1", arrays, chunk_bytes=CHUNK)
    (pack,) = (path for path in MemoryFileSystem.store if path.endswith(".pack"))
    MemoryFileSystem().pipe_file(pack, bytes(MemoryFileSystem().size(pack)))
    report = save(f"{url}/2", arrays, base=f"{url}/1", chunk_bytes=CHUNK)
    assert report.stored.shared == 0
    check(f"{url}/2", arrays)


def test_a_store_without_copies_is_refused_before_anything_is_asked(url: str) -> None:
    state = {"w": np.ones(4)}
    ucp.save(f"{url}/1", state)
    before = set(MemoryFileSystem.store)
    with mock.patch.object(MemoryFileSystem, "cp_file", AbstractFileSystem.cp_file):
        with pytest.raises(UcpError, match=r"UCP-E-STORE.*copies"):
            ucp.save(f"{url}/2", state, base=f"{url}/1")
        with pytest.raises(UcpError, match=r"UCP-E-STORE.*copies"):
            ucp.CheckpointManager(url, incremental=True)
    assert set(MemoryFileSystem.store) == before
