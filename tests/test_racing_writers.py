"""Two writers at one place: at most one commits, and what it commits is whole (SPEC 8)."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.builders import (
    STORAGES,
    declare,
    fresh_url,
    result_or_refusal,
)
from tests.test_commit import STATE, is_whole_or_absent
from ucpformat.errors import UcpError
from ucpformat.manager.collection import collect
from ucpformat.manager.retention import Retention
from ucpformat.manager.run_directory import RunDirectory, open_run
from ucpformat.model.root import Storage
from ucpformat.storage.stores.directory_claim import DirectoryClaim
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.remote.store import RemoteStore
from ucpformat.validation import validate
from ucpformat.writer import CheckpointWriter


@contextmanager
def no_locks() -> Iterator[None]:
    """A medium that knows no locks, as some parallel file systems are mounted."""
    with patch("fcntl.flock", side_effect=OSError(errno.ENOSYS, "no locks here")):
        yield


def begin(url: str | Path, storage: Storage) -> CheckpointWriter:
    writer = CheckpointWriter(url, declare(STATE), storage=storage, chunk_bytes=64, workers=1)
    writer.write("a", "value", STATE["a", "value"].data)
    return writer


def finish(writer: CheckpointWriter) -> bool:
    """Whether the writer says that it has committed."""

    def act() -> None:
        writer.write("a", "zero", STATE["a", "zero"].data)
        writer.commit()

    refusal = result_or_refusal(act)
    if isinstance(refusal, UcpError):
        assert refusal.code in ("UCP-E-EXISTS", "UCP-E-MISSING"), refusal
        writer.abort()
    return refusal is None


@pytest.mark.parametrize("storage", STORAGES)
def test_a_writer_that_is_alive_is_not_taken_for_debris(tmp_path: Path, storage: Storage) -> None:
    """UCP-W-006."""
    first = begin(tmp_path / "c", storage)
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        begin(tmp_path / "c", storage)
    assert finish(first)
    assert is_whole_or_absent(tmp_path / "c")


@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize("storage", STORAGES)
def test_without_locks_two_writers_do_each_other_no_harm(
    tmp_path: Path, storage: Storage, order: str
) -> None:
    """UCP-W-004, UCP-W-006: the second takes the first for debris; what is committed is whole all the same."""
    with no_locks():
        first = begin(tmp_path / "c", storage)
        second = begin(tmp_path / "c", storage)
        writers = [first, second] if order == "first" else [second, first]
        committed = [finish(writer) for writer in writers]
    assert committed == [writer is second for writer in writers]
    assert is_whole_or_absent(tmp_path / "c")


@pytest.mark.parametrize("order", ["first", "second"])
def test_two_writers_to_an_object_store_do_each_other_no_harm(tmp_path: Path, order: str) -> None:
    """UCP-W-010: neither touches what is the other's; the first to commit has."""
    url = fresh_url("memory", tmp_path)
    first = begin(url, "packed")
    second = begin(url, "packed")
    writers = [first, second] if order == "first" else [second, first]
    assert [finish(writer) for writer in writers] == [True, False]
    assert is_whole_or_absent(url)
    assert validate(url) == []


def test_a_second_writer_to_an_object_store_removes_nothing_of_what_is_committed(tmp_path: Path) -> None:
    """UCP-W-010: it has listed the first one's objects when there was no root document yet."""
    url = fresh_url("memory", tmp_path)
    first = begin(url, "packed")
    real = RemoteStore.keys

    def slow(self: RemoteStore) -> Iterator[str]:
        found = list(real(self))
        if "ucp.json" not in found:
            with patch.object(RemoteStore, "keys", real):
                assert finish(first)
        yield from found

    with patch.object(RemoteStore, "keys", slow):
        second = begin(url, "packed")
    assert not finish(second)
    assert is_whole_or_absent(url)


@pytest.mark.parametrize("storage", STORAGES)
def test_without_locks_a_commit_behind_the_listing_is_no_debris(tmp_path: Path, storage: Storage) -> None:
    """UCP-W-015: the second has listed the first one's objects when there was no root document yet."""
    with no_locks():
        first = begin(tmp_path / "c", storage)
        real = DirectoryClaim.condemn

        def late(self: DirectoryClaim) -> bool:
            assert finish(first)
            return real(self)

        with patch.object(DirectoryClaim, "condemn", late), pytest.raises(UcpError, match="UCP-E-EXISTS"):
            begin(tmp_path / "c", storage)
    assert is_whole_or_absent(tmp_path / "c")
    assert validate(tmp_path / "c") == []
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("storage", STORAGES)
def test_a_writer_from_the_dead_publishes_nothing_in_the_directory_of_another(
    tmp_path: Path, storage: Storage
) -> None:
    """UCP-W-012: it has seen the directory to be its own, and comes back when another has begun."""
    with no_locks():
        first = begin(tmp_path / "c", storage)
        began: list[CheckpointWriter] = []
        real = os.fsync

        def sleep(descriptor: int) -> None:
            real(descriptor)
            # The last thing before its root document gets its name.
            if not began and ".ucp.json." in os.readlink(f"/proc/self/fd/{descriptor}"):
                began.append(begin(tmp_path / "c", storage))

        with patch("os.fsync", sleep):
            assert not finish(first)
        assert finish(began[0])
    assert is_whole_or_absent(tmp_path / "c")
    assert validate(tmp_path / "c") == []


def test_a_directory_that_was_moved_away_is_no_success(tmp_path: Path) -> None:
    """UCP-W-013: where its user has done that, the checkpoint is not where it was promised."""
    writer = begin(tmp_path / "c", "packed")
    real = os.link

    def moved(*args: str, **options: int) -> None:
        real(*args, **options)  # type: ignore[arg-type]
        (tmp_path / "c").rename(tmp_path / "elsewhere")

    with patch("os.link", moved):
        assert not finish(writer)
    assert is_whole_or_absent(tmp_path / "elsewhere")


def test_of_two_that_begin_at_the_same_moment_one_sees_the_other(tmp_path: Path) -> None:
    """UCP-W-011: drafts are made first, and looked for then."""
    stores = [LocalStore(tmp_path / "c"), LocalStore(tmp_path / "c")]
    real = DirectoryClaim._is_empty

    def late(self: DirectoryClaim) -> bool:
        if stores[1]._claim.directory is None:
            with patch.object(DirectoryClaim, "_is_empty", real):
                stores[1].prepare()
        return real(self)

    with no_locks(), patch.object(DirectoryClaim, "_is_empty", late):
        stores[0].prepare()
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        stores[1].publish(b"{1}")
    stores[0].publish(b"{}")
    for store in stores:
        store.close()
    assert [path.name for path in tmp_path.rglob("*")] == ["c", "ucp.json"]


@pytest.mark.parametrize("medium", ["local", "memory"])
def test_a_collection_spares_what_is_committed_behind_its_listing(tmp_path: Path, medium: str) -> None:
    """UCP-W-010: with locks and without."""
    url = fresh_url(medium, tmp_path)
    writers = {step: begin(f"{url}/step-{step}.ucp", "packed") for step in (1, 2)}
    real = RunDirectory.without_root

    def late(self: RunDirectory) -> list[str]:
        found = real(self)
        assert finish(writers.pop(1))
        writers.pop(2).leave()
        return found

    with patch.object(RunDirectory, "without_root", late):
        collected = collect(open_run(url), Retention(), debris_age=0)
    assert collected.removed == ["step-2.ucp"]
    assert {name: problem.code for name, problem in collected.failed.items()} == {
        "step-1.ucp": "UCP-E-EXISTS"
    }
    assert is_whole_or_absent(f"{url}/step-1.ucp")


def test_what_was_moved_aside_with_its_root_document_is_never_removed(tmp_path: Path) -> None:
    """UCP-W-010: whoever moved it there died before it could be moved back."""
    assert finish(begin(tmp_path / "step-1.ucp", "packed"))
    aside = tmp_path / "step-1.ucp.debris-0123abcd"
    (tmp_path / "step-1.ucp").rename(aside)
    collected = collect(open_run(tmp_path), Retention(), debris_age=0)
    assert collected.removed == []
    assert collected.failed[aside.name].code == "UCP-E-EXISTS"
    assert is_whole_or_absent(aside)


def test_a_directory_whose_clearing_broke_off(tmp_path: Path) -> None:
    """UCP-W-015: with locks, and after a while, nobody is at it any more; otherwise the user has to say so."""
    place = tmp_path / "c"
    begin(place, "packed").leave()
    condemned = place / ".ucp.json.condemned"
    condemned.touch()
    with pytest.raises(UcpError, match="died while it did; remove it"):
        begin(place, "packed")
    os.utime(condemned, (1e9, 1e9))
    with no_locks(), pytest.raises(UcpError, match="died while it did; remove it"):
        begin(place, "packed")
    assert finish(begin(place, "packed"))
    assert validate(place) == []


@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize("storage", STORAGES)
def test_of_racing_writers_exactly_one_commits(tmp_path: Path, storage: Storage, locks: bool) -> None:
    """UCP-W-004, UCP-W-006."""
    for number in range(12):
        place = tmp_path / f"race{number}" / "c"
        barrier = threading.Barrier(3)
        committed: list[bool] = []
        refusals: list[str] = []

        def race(
            place: Path = place,
            barrier: threading.Barrier = barrier,
            committed: list[bool] = committed,
            refusals: list[str] = refusals,
        ) -> None:
            barrier.wait()
            writer = result_or_refusal(lambda: begin(place, storage))
            if isinstance(writer, UcpError):
                refusals.append(writer.code)
                committed.append(False)
            else:
                committed.append(finish(writer))

        threads = [threading.Thread(target=race) for _ in range(3)]
        with no_locks() if not locks else contextmanager(lambda: iter([None]))():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(committed) == 3
        assert set(refusals) <= {"UCP-E-EXISTS", "UCP-E-MISSING"}
        assert sum(committed) == 1 if locks else sum(committed) <= 1
        assert is_whole_or_absent(place) == any(committed)
