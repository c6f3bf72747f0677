"""Files that go to the disk while others are written: nothing is forgotten, nothing is lost by an error."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.storage.stores.local import LocalStore, WriteBack

NAMES = st.sampled_from("abcde")
SIZES = st.integers(0, 12)


class Disk:
    """Stands in for the disk: what was written when, and when the sync began that took it along."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = 0
        self.written: dict[Path, int] = {}
        self.synced: dict[Path, int] = {}
        self.calls: list[Path] = []
        self.fails: Callable[[Path], OSError | None] = lambda _: None

    def tick(self) -> int:
        with self.lock:
            self.now += 1
            return self.now

    def write(self, path: Path) -> None:
        self.written[path] = self.tick()

    def sync(self, path: Path) -> None:
        begun = self.tick()
        with self.lock:
            self.calls.append(path)
        if failure := self.fails(path):
            raise failure
        with self.lock:
            self.synced[path] = max(begun, self.synced.get(path, 0))

    def is_complete(self) -> bool:
        return all(self.synced.get(path, 0) > when for path, when in self.written.items())


@given(
    steps=st.lists(st.tuples(NAMES, SIZES) | st.none(), max_size=40),
    step=st.integers(1, 40),
)
def test_a_flush_leaves_nothing_that_was_written_before(
    steps: list[tuple[str, int] | None], step: int
) -> None:
    """UCP-W-002, whatever began in the background; None is a flush."""
    disk = Disk()
    with patch("ucpformat.storage.stores.local.sync", disk.sync):
        writing = WriteBack(step)
        for one in [*steps, None]:
            if one is None:
                writing.flush()
                assert disk.is_complete()
            else:
                disk.write(Path(one[0]))
                writing.wrote(Path(one[0]), one[1])
        writing.close()


@given(counts=st.lists(st.integers(1, 30), min_size=2, max_size=4), step=st.integers(1, 20))
def test_threads_write_at_once(counts: list[int], step: int) -> None:
    disk = Disk()

    def work(name: int, count: int) -> None:
        for number in range(count):
            path = Path(f"{name}-{number % 3}")
            disk.write(path)
            writing.wrote(path, 1)

    with patch("ucpformat.storage.stores.local.sync", disk.sync):
        writing = WriteBack(step)
        threads = [threading.Thread(target=work, args=item) for item in enumerate(counts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writing.flush()
        writing.close()
    assert disk.is_complete()


@given(sizes=st.lists(SIZES, min_size=1, max_size=20), step=st.integers(1, 20), broken=st.integers(0, 100))
def test_an_error_of_any_sync_comes_out_of_every_flush(sizes: list[int], step: int, broken: int) -> None:
    disk = Disk()
    unlucky = Path(str(broken % len(sizes)))
    disk.fails = lambda path: OSError(errno.EIO, "lost") if path == unlucky else None
    with patch("ucpformat.storage.stores.local.sync", disk.sync):
        writing = WriteBack(step)
        for name, size in enumerate(sizes):
            writing.wrote(Path(str(name)), size)
        for _ in range(2):
            with pytest.raises(OSError, match="lost"):
                writing.flush()
        writing.close()
    assert disk.calls.count(unlucky) == 1


@given(names=st.lists(NAMES, max_size=5), count=st.integers(0, 20), broken=st.none() | st.integers(0, 19))
def test_a_flush_does_what_else_is_asked_for_beside_it(
    names: list[str], count: int, broken: int | None
) -> None:
    """Directories and the draft: all of it is done before the flush returns, or it says what was not."""
    disk = Disk()
    done: set[int] = set()

    def other(number: int) -> None:
        if number == broken:
            raise OSError(errno.EIO, "lost")
        done.add(number)

    with patch("ucpformat.storage.stores.local.sync", disk.sync):
        writing = WriteBack()
        for name in names:
            disk.write(Path(name))
            writing.wrote(Path(name), 1)
        others = [partial(other, number) for number in range(count)]
        if broken is not None and broken < count:
            for _ in range(2):
                with pytest.raises(OSError, match="lost"):
                    writing.flush(others)
                others = []
        else:
            writing.flush(others)
            assert len(done) == count
            assert disk.is_complete()
        writing.close()


def test_syncing_begins_before_the_flush() -> None:
    disk = Disk()
    begun = threading.Event()

    def sync(path: Path) -> None:
        disk.sync(path)
        begun.set()

    with patch("ucpformat.storage.stores.local.sync", sync):
        writing = WriteBack(10)
        writing.wrote(Path("a"), 9)
        assert disk.calls == []
        writing.wrote(Path("b"), 1)
        assert begun.wait(60)
        writing.flush()
        assert sorted(disk.calls) == [Path("a"), Path("b")]
        writing.flush()  # nothing was written since
        assert len(disk.calls) == 2
        writing.close()


def test_a_file_that_is_made_again_is_synced_again(tmp_path: Path) -> None:
    """The background may come when it is gone."""
    path = tmp_path / "a"
    writing = WriteBack(1)
    writing.wrote(path, 1)  # it is not there yet
    path.write_bytes(b"x")
    writing.flush()
    path.unlink()
    writing.wrote(path, 0)
    with pytest.raises(FileNotFoundError):
        writing.flush()
    writing.close()


def test_a_store_syncs_its_packs_while_they_grow(tmp_path: Path) -> None:
    """And its objects; the flush has the rest, and the directories."""
    synced: list[str] = []
    arrived = threading.Event()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)
        arrived.set()

    with patch("os.fsync", fsync), patch("ucpformat.storage.stores.local._STEP", 100):
        store = LocalStore(tmp_path / "c")
        store.prepare()
        pack = store.create_pack("packs/a-0.pack")
        pack.append([memoryview(bytes(99))], 64)
        assert synced == []
        pack.append([memoryview(bytes(1))], 64)
        assert arrived.wait(60)
        store.create("index/a.json", [memoryview(b"{}")])
        pack.close()
        store.flush()
        store.close()
    names = [Path(name).name for name in synced]
    assert names.count("a-0.pack") == 1
    assert names.count("a.json") == 1
    assert {"packs", "index"} <= set(names)
