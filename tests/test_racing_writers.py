"""Two writers at one place: at most one commits, and what it commits is whole (SPEC 8)."""

from __future__ import annotations

import errno
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
from ucpformat.model.root import Storage
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


@pytest.mark.parametrize("medium", ["local", "memory"])
@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize("storage", STORAGES)
def test_without_locks_two_writers_do_each_other_no_harm(
    tmp_path: Path, storage: Storage, order: str, medium: str
) -> None:
    """UCP-W-004, UCP-W-006: the second takes the first for debris; what is committed is whole all the same."""
    url = fresh_url(medium, tmp_path)
    with no_locks():
        first = begin(url, storage)
        second = begin(url, storage)
        writers = [first, second] if order == "first" else [second, first]
        committed = [finish(writer) for writer in writers]
    assert sum(committed) <= 1
    assert is_whole_or_absent(url) == any(committed)
    if storage == "packed" or order == "second":
        assert committed == [writer is second for writer in writers]


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
