"""Logs in object stores are read whole, several objects at once, and whatever comes in between is seen through."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.update_log.logs import LogMaker
from ucpformat.errors import UcpError, error
from ucpformat.storage.stores.remote.objects import RemoteObjects
from ucpformat.storage.stores.remote.store import RemoteStore
from ucpformat.update_log import objects
from ucpformat.update_log.durability import Extent, extent_of
from ucpformat.update_log.objects import LogObjects
from ucpformat.update_log.place import LogPlace
from ucpformat.update_log.pruning import prune
from ucpformat.update_log.reading import StoredLog
from ucpformat.update_log.steps import whole_steps
from ucpformat.update_log.validation import log_problems


def made(steps: int = 6) -> LogMaker:
    """A log with two epochs, of which the first was left at step 2."""
    maker = LogMaker(f"memory://{uuid4().hex}/updates.ucplog")
    maker.epoch()
    maker.steps(0, 0, 3)
    maker.epoch(1, first_step=2, after=0)
    maker.steps(1, 2, steps)
    return maker


def extent(maker: LogMaker) -> Extent:
    with StoredLog(str(maker.path)) as log:
        return extent_of(log, (0, 0))


def contents(maker: LogMaker) -> list[tuple[int, bytes]]:
    """Every step of the branch, and the bytes of its entries."""
    found = []
    with StoredLog(str(maker.path), verify=False) as log:
        for part in extent_of(log, (0, 0)).replayed:
            steps = whole_steps(log, part.epoch, part.chains, part.begin)
            for number, step in zip(range(part.begin, part.stop), steps, strict=False):
                data = b"".join(bytes(one.data) for _, one in sorted(step.entries.items()))
                found.append((number, data))
    return found


@contextmanager
def answers(change: Any) -> Iterator[Counter[str]]:
    """Let ``change`` have what each read answers; count calls."""
    calls: Counter[str] = Counter()
    lock = threading.Lock()
    real_read, real_head = RemoteObjects.read, RemoteObjects.head

    def read(self: RemoteObjects, key: str, start: int, stop: int) -> bytes:
        with lock:
            calls["read"] += 1
        data: bytes = change(key, real_read(self, key, start, stop))
        return data

    def head(self: RemoteObjects, key: str, most: int) -> bytes | None:
        with lock:
            calls["head"] += 1
        return real_head(self, key, most)

    with patch.object(RemoteObjects, "read", read), patch.object(RemoteObjects, "head", head):
        yield calls


@given(data=st.data())
def test_a_listing_that_is_late_hides_no_step(data: st.DataObject) -> None:
    """UCP-R-040: the newest epoch and the last batches are looked for by their keys, whatever a listing shows."""
    maker = made()
    true = extent(maker)
    # What was put last, and any others of the newest epoch but the first ones.
    hidden = {f"batches/1/{rank}/{step}.batch" for rank in (0, 1) for step in range(data.draw(FIRST), 6)}
    hidden |= data.draw(st.sets(st.sampled_from([f"batches/1/0/{step}.batch" for step in range(3, 6)])))
    hidden |= data.draw(st.sets(st.just("epochs/1.json")))
    real = RemoteObjects.lengths

    def late(self: RemoteObjects) -> Iterator[tuple[str, int | None]]:
        return ((key, size) for key, size in real(self) if key not in hidden)

    with patch.object(RemoteObjects, "lengths", late):
        assert extent(maker) == true
        assert true.stop_step == 6
        assert contents(maker) == CONTENTS


CONTENTS = contents(made())
FIRST = st.integers(2, 6)


@given(number=st.integers(1, 60), how=st.sampled_from(["a bit", "cut"]), seed=st.integers(0, 1 << 30))
def test_bytes_that_are_harmed_on_their_way_are_asked_for_again(number: int, how: str, seed: int) -> None:
    maker = made()
    chance = random.Random(seed)
    count = 0

    def harmed(key: str, data: bytes) -> bytes:
        nonlocal count
        count += key.endswith(".batch")
        if count != number or not key.endswith(".batch"):
            return data
        count += 1
        if how == "cut":
            raise error("UCP-E-LENGTH", "the object ends before that", at=key)
        found = bytearray(data)
        found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
        return bytes(found)

    with answers(harmed):
        assert extent(maker).stop_step == 6
        assert contents(maker) == CONTENTS


@pytest.mark.parametrize("last", ["batches/1/0/5.batch", "batches/1/1/2.batch"])
def test_a_store_that_does_not_answer_is_not_the_end_of_the_log(last: str) -> None:
    """UCP-R-040: nothing is known of the batch, and steps behind it may be durable."""
    maker = made()

    def silent(key: str, data: bytes) -> bytes:
        if key == last:
            raise error("UCP-E-STORE", "no answer", at=key)
        return data

    with answers(silent), pytest.raises(UcpError, match="UCP-E-STORE"):
        extent(maker)
    with answers(silent):
        assert [problem.code for problem in log_problems(str(maker.path))] == ["UCP-E-STORE"]


def test_damage_is_found_all_the_same() -> None:
    maker = made()
    store = RemoteStore(str(maker.path))
    key = "batches/1/0/5.batch"
    data = store.read(key, 0, store.size(key) or 0)
    store.replace(key, [memoryview(data[:-1])])
    found = extent(maker)
    assert (found.stop_step, found.lost) == (5, False)
    store.replace("batches/1/0/4.batch", [memoryview(data)])
    with StoredLog(str(maker.path)) as log:
        found = extent_of(log, (0, 0))
    assert (found.stop_step, found.lost) == (4, True)


def test_requests_of_a_reading() -> None:
    """One for each batch, beside a few; not one for each of its parts."""
    maker = made(42)
    with answers(lambda _, data: data) as calls:
        assert extent(maker).stop_step == 42
    assert calls["read"] == 2 * (3 + 40)
    assert calls["head"] <= 8


@pytest.mark.parametrize("verify", [True, False])
def test_what_is_large_is_read_in_parts(monkeypatch: pytest.MonkeyPatch, verify: bool) -> None:
    """By calls of a bounded length, and no more of it is held than is allowed."""
    maker = made()
    monkeypatch.setattr(RemoteObjects, "calls", RemoteObjects.calls._replace(window=100))
    monkeypatch.setattr(objects, "_HELD_BYTES", 1000)
    with answers(lambda _, data: data):
        assert contents(maker) == CONTENTS
    with StoredLog(str(maker.path), verify=verify) as log:
        assert extent_of(log, (0, 0)).stop_step == 6
        assert log.store._held == 0


@given(data=st.data())
def test_objects_are_what_they_are_whoever_fetches_them(data: st.DataObject) -> None:
    """Any sizes, windows and bounds; keys in any order, of which some are not there; readers that stop early."""
    url = f"memory://{uuid4().hex}/x"
    store = RemoteStore(url)
    sizes = data.draw(st.lists(st.integers(0, 400), min_size=1, max_size=8))
    contents = {f"index/{n}": np.random.default_rng(n).bytes(size) for n, size in enumerate(sizes)}
    for key, content in contents.items():
        store.replace(key, [memoryview(content)])
    window, held = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 900))
    is_listed = data.draw(st.booleans())
    with (
        patch.object(RemoteObjects, "calls", RemoteObjects.calls._replace(window=window)),
        patch.object(objects, "_HELD_BYTES", held),
        closing(LogObjects(url)) as log,
    ):
        if is_listed:
            assert {*log.keys()} == {*contents}
        keys = data.draw(st.permutations(sorted(contents)))
        most = data.draw(st.integers(1, held))
        stops = data.draw(st.integers(0, len(keys)))
        with closing(log.ahead(keys, most=most)) as ahead:
            for key in keys[:stops]:
                assert next(ahead) == key
                size = log.size(key)
                assert size == len(contents[key])
                begin = data.draw(st.integers(0, size))
                end = data.draw(st.integers(begin, size))
                assert log.read(key, begin, end) == contents[key][begin:end]
                if data.draw(st.booleans()):
                    log.drop(key)
        assert log._held == 0
        assert not log._fetched


def test_what_is_pruned_is_removed_together() -> None:
    maker = made()
    place = LogPlace(str(maker.path))
    with StoredLog(str(maker.path)) as log, patch.object(RemoteStore, "remove", side_effect=AssertionError):
        done = prune(log, place, 4)
    assert done.removed == 2 * 5
    assert extent_at(maker, 4) == 6
    place.remove(["batches/1/0/0.batch"])  # it is gone
    with StoredLog(str(maker.path)) as log:
        assert prune(log, place, 4).removed == 0


def extent_at(maker: LogMaker, step: int) -> int:
    with StoredLog(str(maker.path)) as log:
        return extent_of(log, (1, step)).stop_step


def test_a_log_of_which_nothing_is_listed_is_refused_and_not_called_empty() -> None:
    maker = made()
    with patch.object(RemoteObjects, "lengths", lambda _: iter(())):
        assert [problem.code for problem in log_problems(str(maker.path))] == ["UCP-E-STORE"]
