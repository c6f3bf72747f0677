"""What every object store has to be able to do for checkpoints, asked by HTTP of a server (SPEC 8).

A room has a module that makes a fixture ``url``, below which nothing lies, and takes these tests by importing them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import numpy as np
import pytest

import ucpformat as ucp
from tests.builders import STORAGES, State, Tensor, save
from tests.conversion.engine.jobs import assert_same, make, rewrite
from tests.test_commit import is_whole_or_absent
from tests.test_racing_writers import begin, finish
from ucpformat.copying import copy_checkpoint
from ucpformat.errors import UcpError
from ucpformat.geometry import Box
from ucpformat.manager.collection import collect
from ucpformat.manager.retention import Retention
from ucpformat.manager.run_directory import open_run
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.remote.conditional_put import ConditionalPuts
from ucpformat.storage.stores.remote.copies import BackgroundCopies
from ucpformat.storage.stores.remote.store import RemoteStore
from ucpformat.validation import LEVELS, validate

__all__ = [
    "test_a_committed_checkpoint_and_foreign_objects_are_left_alone",
    "test_a_conversion_and_a_copy_come_back",
    "test_a_copy_within_the_store_is_made_by_it",
    "test_a_failed_save_leaves_nothing",
    "test_an_increment_of_a_base_that_is_replaced_leaves_nothing",
    "test_an_increment_sends_what_has_changed",
    "test_of_eight_puts_at_once_one_creates",
    "test_of_two_writers_one_commits",
    "test_saved_validated_and_loaded",
    "test_steps_and_debris_are_collected",
    "test_storage_plain_wants_a_place_of_its_own",
]

LARGE = np.random.default_rng(3).integers(1, 100, (40, 1 << 20), np.int8)  # more than a block of a stream
STATE: State = {
    ("large", "value"): Tensor(LARGE, "int8"),
    ("small", "value"): Tensor(np.arange(30, dtype=np.float32).reshape(6, 5), "float32"),
    ("zero", "value"): Tensor(np.zeros(9, np.int8), "int8"),
}
SMALL: State = {("small", "value"): STATE["small", "value"]}


def keys(url: str) -> set[str]:
    return set(RemoteStore(url).keys())


@pytest.mark.parametrize("storage", STORAGES)
def test_saved_validated_and_loaded(url: str, storage: Storage) -> None:
    save(url, STATE, storage=storage)
    for level in LEVELS:
        assert validate(url, level) == []
    into = {name: np.ones_like(tensor.data) for name, tensor in STATE.items()}
    out = np.zeros((8, 1 << 20), np.int8)
    with open_checkpoint(url) as checkpoint:
        checkpoint.load(into)
        checkpoint.read_boxes([(checkpoint["large"]["value"].stored, Box((13, 0), out.shape), out)])
    assert all(np.array_equal(into[name], tensor.data) for name, tensor in STATE.items())
    assert np.array_equal(out, LARGE[13:21])


def test_of_eight_puts_at_once_one_creates(url: str) -> None:
    """UCP-W-016: the server decides, whoever looks when."""
    store = RemoteStore(url)
    puts = ConditionalPuts(store._filesystem, store._head)

    def put(number: int) -> bool:
        try:
            puts.put(store._full("index/x"), b"%d" % number)
        except FileExistsError:
            return False
        return True

    for _ in range(3):
        with ThreadPoolExecutor(8) as executor:
            made = list(executor.map(put, range(8)))
        assert made.count(True) == 1
        assert store.read("index/x", 0, 1) == b"%d" % made.index(True)
        store.remove("index/x")


@pytest.mark.parametrize("order", ["first", "second"])
def test_of_two_writers_one_commits(url: str, order: str) -> None:
    """UCP-W-010."""
    first, second = begin(url, "packed"), begin(url, "packed")
    writers = [first, second] if order == "first" else [second, first]
    assert [finish(writer) for writer in writers] == [True, False]
    assert is_whole_or_absent(url)
    assert validate(url) == []


def test_storage_plain_wants_a_place_of_its_own(url: str) -> None:
    """UCP-W-017."""
    first = begin(url, "plain")
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        begin(url, "plain")
    assert finish(first)
    assert validate(url) == []


def test_a_committed_checkpoint_and_foreign_objects_are_left_alone(url: str) -> None:
    save(url, SMALL)
    before = keys(url)
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        save(url, SMALL)
    assert keys(url) == before
    filesystem, path = fsspec.url_to_fs(f"{url}2/thesis.txt")
    filesystem.pipe_file(path, b"irreplaceable")
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        save(f"{url}2", SMALL)
    assert keys(f"{url}2") == {"thesis.txt"}


def test_a_failed_save_leaves_nothing(url: str) -> None:
    with pytest.raises(RuntimeError, match="the user's own"), begin(url, "packed"):
        raise RuntimeError("the user's own")
    assert keys(url) == set()


def test_a_conversion_and_a_copy_come_back(url: str, tmp_path: Path) -> None:
    out: Any = url
    make(tmp_path / "source.ucp")
    rewrite(tmp_path / "source.ucp", out)
    assert_same(tmp_path / "source.ucp", out)
    copy_checkpoint(url, f"{url}2")
    copy_checkpoint(f"{url}2", tmp_path / "copy.ucp")
    assert_same(tmp_path / "source.ucp", tmp_path / "copy.ucp")


def test_steps_and_debris_are_collected(url: str) -> None:
    for step in (1, 2):
        save(f"{url}/step-{step}.ucp", SMALL)
    writer = begin(f"{url}/step-3.ucp", "packed")
    writer.pieces.finish()  # and no more is heard of it
    assert keys(f"{url}/step-3.ucp")
    young = collect(open_run(url), Retention(last=1))
    assert (young.kept, young.removed, young.failed) == ([2], ["step-1.ucp"], {})
    assert keys(f"{url}/step-3.ucp")
    old = collect(open_run(url), Retention(last=1), debris_age=0)
    assert (old.kept, old.removed, list(old.failed.items())) == ([2], ["step-3.ucp"], [])
    assert {key.partition("/")[0] for key in keys(url)} == {"step-2.ucp"}
    assert validate(f"{url}/step-2.ucp") == []


@pytest.mark.parametrize("storage", STORAGES)
def test_a_copy_within_the_store_is_made_by_it(url: str, storage: Storage) -> None:
    ucp.save(f"{url}/1", {"large": LARGE, "small": np.arange(1, 31, dtype=np.float32)}, storage=storage)
    with (
        patch.object(RemoteStore, "create", side_effect=AssertionError("an object is sent")),
        patch.object(RemoteStore, "create_pack", side_effect=AssertionError("a pack is sent")),
    ):
        copied = copy_checkpoint(f"{url}/1", f"{url}/2")
    assert keys(f"{url}/2") == keys(f"{url}/1")
    assert copied.nbytes > LARGE.nbytes
    filesystem, path = fsspec.url_to_fs(f"{url}/1")
    filesystem.rm(path, recursive=True)
    assert validate(f"{url}/2") == []


@pytest.mark.parametrize("storage", STORAGES)
def test_an_increment_sends_what_has_changed(url: str, storage: Storage) -> None:
    """UCP-W-034: the server copies the rest, and the base may go."""
    state = {"large": LARGE, "small": np.arange(1, 31, dtype=np.float32)}
    ucp.save(f"{url}/1", state, storage=storage)
    state["small"] += 1
    report = ucp.save(f"{url}/2", state, base=f"{url}/1", storage=storage)
    assert report.stored.data <= 124  # of storage plain, a checksum among them
    assert report.stored.shared >= LARGE.nbytes
    filesystem, path = fsspec.url_to_fs(f"{url}/1")
    filesystem.rm(path, recursive=True)
    assert validate(f"{url}/2") == []
    found = ucp.load(f"{url}/2")
    assert all(np.array_equal(found[name], array) for name, array in state.items())


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("is_there", [True, False], ids=["replaced", "removed"])
def test_an_increment_of_a_base_that_is_replaced_leaves_nothing(
    url: str, storage: Storage, is_there: bool
) -> None:
    """UCP-W-034: between the listing of the base and the copy."""
    state = {"small": np.arange(1, 31, dtype=np.float32)}
    ucp.save(f"{url}/1", state, storage=storage)
    begin = BackgroundCopies.begin

    def harmed(self: BackgroundCopies, source: Any, path: str) -> None:
        if is_there:
            self._filesystem.pipe_file(source.path, bytes(source.nbytes))
        else:
            self._filesystem.rm_file(source.path)
        begin(self, source, path)

    with patch.object(BackgroundCopies, "begin", harmed), pytest.raises(UcpError, match="UCP-E-NOT-FOUND"):
        ucp.save(f"{url}/2", state, base=f"{url}/1", storage=storage)
    assert keys(f"{url}/2") == set()
