"""A pack is what was appended, with or without room taken ahead, looked at or not."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.errors import UcpError
from ucpformat.storage.stores import local, local_pack
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.local_io import sync
from ucpformat.storage.stores.local_pack import FileRoom
from ucpformat.storage.stores.store import Durability

BLOCK = 16
PAGE = 32  # stands in for 2 MiB

APPENDS = st.lists(
    st.tuples(
        st.lists(st.binary(max_size=90), max_size=3),
        st.sampled_from([1, 8, 64]),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    max_size=8,
)
"""Buffers, alignment; whether they are looked at, may be kept, and whether what waits is settled after them."""


@contextmanager
def small(room: object = None) -> Iterator[None]:
    """Limits so small that little data meets them, on disks and in memory; ``room`` stands in for the call."""
    with (
        patch("ucpformat.storage.stores.local_pack._is_in_memory", lambda _: False),
        patch("ucpformat.storage.stores.local_pack.BLOCK_BYTES", BLOCK),
        patch("ucpformat.storage.stores.local_pack._HUGE_PAGE", PAGE),
        patch("ucpformat.storage.stores.local_pack._LEAST_ROOM_BYTES", 64),
        patch("ucpformat.storage.stores.local_pack._MOST_ROOM_BYTES", 4096),
        patch("ucpformat.storage.stores.local_pack._ROOM_ALIGNMENT", 512),
        patch("ucpformat.storage.stores.local_pack._fallocate", room or local_pack._fallocate),
    ):
        yield


@given(appends=APPENDS, durability=st.sampled_from(["none", "fsync"]), has_room=st.booleans())
def test_a_pack_is_what_was_appended(
    appends: list[tuple[list[bytes], int, bool, bool, bool]], durability: Durability, has_room: bool
) -> None:
    with TemporaryDirectory() as directory, small(None if has_room else lambda *_: -1):
        store = LocalStore(Path(directory, "c"), durability=durability)
        store.prepare()
        pack = store.create_pack("packs/a-0.pack")
        path = Path(directory, "c", "packs", "a-0.pack")
        expected = bytearray()
        for pieces, alignment, is_looked_at, is_kept, is_settled in appends:
            expected += bytes(-len(expected) % alignment)
            seen: list[memoryview] = []
            memory = [bytearray(piece) for piece in pieces]
            buffers = [memoryview(piece) for piece in memory]
            offset = pack.append(buffers, alignment, seen.append if is_looked_at else None, keep=is_kept)
            assert offset == len(expected)
            expected += b"".join(pieces)
            if is_looked_at:
                assert_looked_at(seen, pieces)
            if is_settled:
                pack.settle()
            if is_settled or not is_kept:
                for piece in memory:
                    piece[:] = bytes(len(piece))  # it may change now
                assert path.read_bytes()[: len(expected)].ljust(len(expected), b"\0") == expected
        assert pack.close() == len(expected)
        store.flush()
        store.close()
        found = path.read_bytes()
        # A gap at the end is written by nobody where no room was taken.
        assert found == expected[: len(found)]
        assert not any(expected[len(found) :])


def assert_looked_at(seen: list[memoryview], pieces: list[bytes]) -> None:
    """Every byte once, in order, in pieces of whole blocks of their buffer, or with its end."""
    assert b"".join(seen) == b"".join(pieces)
    ends = iter(seen)
    for piece in pieces:
        done = 0
        while done < len(piece):
            done += next(ends).nbytes
            assert done % BLOCK == 0 or done == len(piece)


def test_each_call_ends_where_a_large_page_does_and_was_just_looked_at(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "c", durability="none")
    store.prepare()
    pack = store.create_pack("packs/a-0.pack")
    pack.append([memoryview(bytes(8))], 1)
    events: list[tuple[str, int]] = []
    real = os.pwritev

    def pwritev(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        events.append(("write", offset + sum(buffer.nbytes for buffer in buffers)))
        return real(descriptor, buffers, offset)

    with small(), patch.object(os, "pwritev", pwritev):
        pack.append([memoryview(bytes(100))], 8, lambda piece: events.append(("look", piece.nbytes)))
    assert events == [
        ("look", 32), ("write", 32),
        ("look", 32), ("write", 64),
        ("look", 32), ("write", 96),
        ("look", 4), ("write", 108),
    ]  # fmt: skip
    pack.close()


@given(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=12))
def test_what_may_be_kept_comes_by_a_call_for_each_large_page(sizes: list[int]) -> None:
    events: list[tuple[int, int]] = []
    real = os.pwritev

    def pwritev(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        events.append((offset, offset + sum(buffer.nbytes for buffer in buffers)))
        return real(descriptor, buffers, offset)

    with TemporaryDirectory() as directory, small(), patch.object(os, "pwritev", pwritev):
        store = LocalStore(Path(directory, "c"), durability="none")
        store.prepare()
        pack = store.create_pack("packs/a-0.pack")
        for number, size in enumerate(sizes):
            pack.append([memoryview(bytes([number + 1]) * size)], 8, keep=True)
        length = pack.close()
    written = max((stop for _, stop in events), default=0)
    assert events == [(start, min(start + PAGE, written)) for start in range(0, written, PAGE)]
    assert length - written < 8  # zeros, which nobody writes


@pytest.mark.parametrize("later", ["append", "settle"])
def test_a_pack_that_lost_what_it_took_over_is_not_finished(tmp_path: Path, later: str) -> None:
    """Whoever goes on after an error must not commit what an earlier call was given."""
    store = LocalStore(tmp_path / "c", durability="none")
    store.prepare()
    pack = store.create_pack("packs/a-0.pack")
    pack.append([memoryview(b"one")], 8, keep=True)
    fails = pack.settle if later == "settle" else partial(pack.append, [memoryview(b"two")], 8)
    with patch.object(os, "pwritev", side_effect=OSError(28, "full")), pytest.raises(UcpError):
        fails()
    pack.append([memoryview(b"three")], 8)
    for end in (pack.settle, pack.close):
        with pytest.raises(UcpError) as caught:
            end()
        assert (caught.value.code, caught.value.at) == ("UCP-E-STORE", "packs/a-0.pack")
    pack.abort()


def test_a_pack_that_is_given_up_writes_nothing_more(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "c", durability="none")
    store.prepare()
    pack = store.create_pack("packs/a-0.pack")
    pack.append([memoryview(b"one")], 8, keep=True)
    with patch.object(os, "pwritev", side_effect=AssertionError):
        pack.abort()


def test_a_flush_comes_after_room_was_given_back(tmp_path: Path) -> None:
    """However much was synced before: a crash would leave the pack longer than is recorded."""
    events: list[str] = []
    cut = os.ftruncate

    def ftruncate(descriptor: int, length: int) -> None:
        events.append("cut")
        cut(descriptor, length)

    def synced(path: Path | str, within: int | None = None) -> None:
        if Path(path).suffix == ".pack":
            events.append("sync")
        sync(path, within)

    with small(), patch.object(local, "_STEP", 1), patch.object(local, "sync", synced):
        store = LocalStore(tmp_path / "c")
        store.prepare()
        pack = store.create_pack("packs/a-0.pack")
        pack.append([memoryview(bytes(5000))], 8)
        wait(store._write_back._begun)  # type: ignore[union-attr]
        assert events == ["sync"]
        with patch.object(os, "ftruncate", ftruncate):
            pack.close()
        store.flush()
        store.close()
    assert events in (["sync", "cut", "sync"], ["sync", "sync"])  # the latter where no room was to be had


def test_several_threads_append_to_one_pack(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "c", durability="none")
    store.prepare()
    pack = store.create_pack("packs/a-0.pack")

    def append(number: int) -> tuple[int, bytes]:
        data = bytes([number + 1]) * (number * 7)
        return pack.append([memoryview(data)], 8, lambda _: None, keep=number % 3 > 0), data

    with small(), ThreadPoolExecutor(8) as pool:
        placed = list(pool.map(append, range(100)))
        length = pack.close()
    found = (tmp_path / "c" / "packs" / "a-0.pack").read_bytes()
    assert all(found[offset : offset + len(data)] == data for offset, data in placed)
    assert length == len(found) == max(offset + len(data) for offset, data in placed)


@pytest.mark.skipif(local_pack._fallocate is None, reason="room is taken on Linux alone")
@given(stops=st.lists(st.integers(0, 9000), max_size=8))
def test_room_is_ahead_within_bounds_and_given_back(stops: list[int]) -> None:
    with TemporaryDirectory() as directory, small():
        descriptor = os.open(Path(directory, "x"), os.O_CREAT | os.O_WRONLY, 0o600)
        room = FileRoom(descriptor)
        reached = 0
        for stop in stops:
            room.reach(stop)
            reached = max(reached, stop)
            size = os.fstat(descriptor).st_size
            if size:  # or the medium has none to give
                assert stop <= size <= reached + 4096 + 512
        room.leave(reached)
        assert os.fstat(descriptor).st_size in (0, reached)
        os.close(descriptor)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no file system in memory")
def test_in_memory_no_room_is_taken() -> None:
    """It would be pages that are cleared: 1.1 GiB of them for a checkpoint of 384 MiB, at twice the time."""
    with TemporaryDirectory(dir="/dev/shm") as directory:
        descriptor = os.open(Path(directory, "x"), os.O_CREAT | os.O_WRONLY, 0o600)
        with small():
            assert FileRoom(descriptor)._is_possible
        room = FileRoom(descriptor)
        room.reach(1 << 26)
        assert os.fstat(descriptor).st_blocks == 0
        assert not room.leave(0)
        os.close(descriptor)


def test_of_little_that_is_free_nothing_is_taken(tmp_path: Path) -> None:
    """Another writer may need it."""
    descriptor = os.open(tmp_path / "x", os.O_CREAT | os.O_WRONLY, 0o600)
    free = os.fstatvfs(descriptor)
    with small(), patch.object(os, "fstatvfs", lambda _: free):
        with patch.object(local_pack, "_FREE_PARTS", free.f_bavail * free.f_frsize):
            room = FileRoom(descriptor)
            room.reach(10_000)
            room.reach(100_000)
            assert not room.leave(0)
        if free.f_bavail * free.f_frsize > 64 << 20:
            room = FileRoom(descriptor)
            room.reach(10_000)
            was_longer = room.leave(5)
            assert was_longer == (os.fstat(descriptor).st_size == 5)  # where the medium has any to give
    os.close(descriptor)


def test_where_no_room_is_to_be_had_it_is_not_asked_for_again(tmp_path: Path) -> None:
    asked: list[object] = []

    def none(*_: object) -> int:
        asked.append(None)
        return -1

    fails: Callable[..., int] = none
    with small(fails):
        descriptor = os.open(tmp_path / "x", os.O_CREAT | os.O_WRONLY, 0o600)
        room = FileRoom(descriptor)
        room.reach(10_000)
        room.reach(100_000)
        room.leave(5)
        assert (len(asked), os.fstat(descriptor).st_size) == (1, 0)
        os.close(descriptor)


@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_an_error_of_closing_is_a_registered_one(tmp_path: Path, durability: Durability) -> None:
    """Some network file systems tell only then that something could not be written."""
    store = LocalStore(tmp_path / "c", durability=durability)
    store.prepare()
    pack = store.create_pack("packs/x.pack")
    pack.append([memoryview(bytes(1 << 21))], 4096)
    real = os.close

    def close(descriptor: int) -> None:
        real(descriptor)
        raise OSError(errno.EIO, "at close")

    with patch("os.close", close), pytest.raises(UcpError, match=r"UCP-E-STORE at packs/x\.pack"):
        pack.close()
    assert pack.close() == 1 << 21, "nothing is closed twice"
    store.close()
