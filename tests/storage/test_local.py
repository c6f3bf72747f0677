"""Local directories: links, special files, other people's files (SPEC 8, UCP-S-001)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import STORAGES, State, Tensor, read_everything, result_or_refusal, save
from ucpformat.errors import UcpError
from ucpformat.model.root import Storage
from ucpformat.storage.stores import local_io, local_objects
from ucpformat.storage.stores.local import LocalStore
from ucpformat.update_log.place import LogPlace
from ucpformat.validation import validate

STATE: State = {("a", "value"): Tensor(np.arange(1, 31, dtype=np.int8), "int8")}


def symlink(path: Path) -> None:
    """The same content by way of a link to a place outside."""
    outside = path.parents[3] / f"outside-{path.name}"
    path.rename(outside)
    path.symlink_to(outside)


def relative_link(path: Path) -> None:
    """A link that stays inside the checkpoint."""
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def fifo(path: Path) -> None:
    """Opening it for reading would wait for ever."""
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


FILES = {
    "root": "ucp.json",
    "index": "index/x-0.json",
    "table": "index/x-0.bin",
    "state": "index/x-state.json",
}
PACKED = {**FILES, "pack": "packs/x-0-0.pack", "pack list": "index/x-packs.json"}
PLAIN = {**FILES, "chunk": "atoms/a/value/c/0", "metadata": "atoms/a/value/zarr.json"}


@pytest.mark.parametrize("damage", [symlink, relative_link, loop, dangling, fifo, directory])
@pytest.mark.parametrize(
    ("storage", "key"),
    [("packed", key) for key in PACKED.values()] + [("plain", key) for key in PLAIN.values()],
)
def test_only_regular_files_are_opened(
    tmp_path: Path, storage: Storage, key: str, damage: Callable[[Path], None]
) -> None:
    """UCP-S-001."""
    path = tmp_path / "1" / "2" / "c"
    save(path, STATE, storage=storage, attempt="x", workers=1)
    damage(path / key)
    errors = [problem for problem in validate(path, workers=1) if problem.severity == "error"]
    assert {problem.code for problem in errors} == {"UCP-E-LINK"}
    assert {problem.at for problem in errors} == {key}
    found = result_or_refusal(lambda: read_everything(path))
    if key.endswith("zarr.json"):
        assert not isinstance(found, UcpError)  # derived documents are for others
    else:
        assert isinstance(found, UcpError)
        assert (found.code, found.at) == ("UCP-E-LINK", key)


@pytest.mark.parametrize(
    ("storage", "key"),
    [
        ("packed", "index"),
        ("packed", "packs"),
        *(("plain", key) for key in ("atoms", "atoms/a", "atoms/a/value/c")),
    ],
)
def test_links_to_directories_are_not_followed(tmp_path: Path, storage: Storage, key: str) -> None:
    """UCP-S-001."""
    path = tmp_path / "c"
    save(path, STATE, storage=storage)
    (path / key).rename(tmp_path / "outside")
    (path / key).symlink_to(tmp_path / "outside")
    errors = [problem for problem in validate(path) if problem.severity == "error"]
    assert {problem.code for problem in errors} == {"UCP-E-LINK"}
    found = result_or_refusal(lambda: read_everything(path))
    assert isinstance(found, UcpError)
    assert found.code == "UCP-E-LINK"


@pytest.mark.parametrize("storage", STORAGES)
def test_a_file_in_place_of_a_directory_is_refused(tmp_path: Path, storage: Storage) -> None:
    path = tmp_path / "c"
    save(path, STATE, storage=storage)
    room = path / ("atoms/a/value/c" if storage == "plain" else "packs")
    room.rename(tmp_path / "outside")
    room.write_bytes(b"")
    assert {problem.code for problem in validate(path) if problem.severity == "error"} == {"UCP-E-LINK"}
    found = result_or_refusal(lambda: read_everything(path))
    assert isinstance(found, UcpError)
    assert found.code == "UCP-E-LINK"
    (problem,) = validate(room)  # which is a file itself, and no checkpoint
    assert (problem.code, problem.at) == ("UCP-E-NOT-FOUND", str(room))


def test_links_and_special_files_that_nothing_reaches_are_reported(tmp_path: Path) -> None:
    """UCP-V-002."""
    path = tmp_path / "c"
    save(path, STATE)
    (path / "index" / "link").symlink_to("/")
    os.mkfifo(path / "pipe")
    assert {(problem.code, problem.at) for problem in validate(path)} == {
        ("UCP-W-UNREFERENCED", "index/link"),
        ("UCP-W-UNREFERENCED", "pipe"),
    }


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/x", "a//x", ".x", "a/.", "", "a\0b", "__x/y"])
def test_the_store_itself_refuses_unsafe_keys(tmp_path: Path, key: str) -> None:
    """UCP-R-010, once more where nothing can go round it."""
    store = LocalStore(tmp_path)
    actions: list[Callable[[], object]] = [
        lambda: store.size(key),
        lambda: store.read(key, 0, 1),
        lambda: store.read_into(key, 0, [memoryview(bytearray(1))]),
        lambda: store.create(key, []),
        lambda: store.create_pack(key),
    ]
    for action in actions:
        found = result_or_refusal(action)
        assert isinstance(found, UcpError)
        assert found.code == "UCP-E-KEY"
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(0, 50), st.sampled_from([1, 3]))
def test_vectored_reads_and_writes_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], start: int, at_most: int
) -> None:
    """The operating system may do less than it was asked to, and takes a limited number of buffers."""
    data = bytes(range(1, 256))
    store = LocalStore(tmp_path_factory.mktemp("io"))
    pieces = [memoryview(data)[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(len(sizes))]
    write, read, whole = os.pwritev, os.preadv, os.pread
    with (
        patch.object(local_io, "_IOV_LIMIT", 2),
        patch("os.pwritev", lambda fd, buffers, offset: write(fd, [buffers[0][:at_most]], offset)),
        patch("os.preadv", lambda fd, buffers, offset: read(fd, [buffers[0][:at_most]], offset)),
    ):
        store.create("index/x", pieces)
        total = sum(sizes)
        assert store.size("index/x") == total
        buffers = [memoryview(bytearray(size)) for size in sizes]
        store.read_into("index/x", 0, buffers)
        assert b"".join(buffers) == data[:total]
        with pytest.raises(UcpError, match="UCP-E-LENGTH"):
            store.read_into("index/x", start, [memoryview(bytearray(total + 1))])
        with patch("os.pread", lambda fd, count, offset: whole(fd, min(count, at_most), offset)):
            assert store.read("index/x", 0, total) == data[:total]


def test_a_length_that_is_not_there_takes_no_memory(tmp_path: Path) -> None:
    """UCP-S-002."""
    store = LocalStore(tmp_path)
    store.create("index/x", [memoryview(b"abc")])
    with pytest.raises(UcpError) as refusal:
        store.read("index/x", 0, 2**50)
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-LENGTH", "index/x")


def test_descriptors_of_packs_are_kept_up_to_a_limit(tmp_path: Path) -> None:
    with patch.object(local_objects, "_OPEN_PACKS", 2):
        store = LocalStore(tmp_path)
        for number in range(4):
            pack = store.create_pack(f"packs/{number}.pack")
            assert pack.append([memoryview(b"abc")], 64) == 0
            assert pack.append([memoryview(b"d"), memoryview(b"ef")], 64) == 64
            assert (pack.close(), pack.close()) == (67, 67)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda n: store.read(f"packs/{n % 4}.pack", 64, 67), range(40)))
        assert set(found) == {b"def"}
        before = len(os.listdir("/proc/self/fd"))
        store.close()
        assert before - len(os.listdir("/proc/self/fd")) == 2
        assert store.read("packs/0.pack", 0, 3) == b"abc"


def test_what_the_operating_system_says_becomes_a_registered_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("index/x", [memoryview(b"abc")])
    for number, code in (
        (errno.EIO, "UCP-E-STORE"),
        (errno.ELOOP, "UCP-E-LINK"),
        (errno.ENOENT, "UCP-E-MISSING"),
    ):
        with patch("os.preadv", side_effect=OSError(number, "injected")), pytest.raises(UcpError, match=code):
            store.read_into("index/x", 0, [memoryview(bytearray(3))])
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        store.create("index/x", [memoryview(b"other")])
    with pytest.raises(UcpError, match="UCP-E-MISSING"):
        store.read("index/y", 0, 1)
    assert store.size("index/y") is None
    assert store.size("nowhere/y") is None
    assert store.read("index/x", 1, 3) == b"bc"


def test_replaced_objects_are_whole_at_any_time(tmp_path: Path) -> None:
    """Whoever writes the same object meanwhile, and whatever a writer that died has left of it."""
    store = LocalStore(tmp_path / "c", durability="none")
    store.prepare()
    store.create("atoms/a/0", [memoryview(b"half")])
    contents = [bytes([number]) * 5000 for number in range(8)]

    def replace(content: bytes) -> bytes:
        for _ in range(25):
            store.replace("atoms/a/0", [memoryview(content)[:1234], memoryview(content)[1234:]])
        return store.read("atoms/a/0", 0, 5000)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(replace, contents)) <= set(contents)
    assert store.read("atoms/a/0", 0, 5000) in contents
    store.replace("atoms/b/1/2", [])
    assert sorted(store.keys()) == ["atoms/a/0", "atoms/b/1/2"]
    store.discard()
    assert sorted(store.keys()) == ["atoms/a/0", "atoms/b/1/2"], "somebody else may go by them"
    with (
        patch("os.pwritev", side_effect=OSError(errno.ENOSPC, "full")),
        pytest.raises(UcpError, match="full"),
    ):
        store.replace("atoms/a/0", [memoryview(b"new")])
    assert sorted(store.keys()) == ["atoms/a/0", "atoms/b/1/2"]
    assert store.read("atoms/a/0", 0, 5000) in contents
    store.close()


def test_what_never_became_an_object_can_be_removed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / ".ucp.json.0").touch()
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / ".ucp.json.0").touch()
    store.remove(".ucp.json.0")
    assert list(store.keys()) == ["index/.ucp.json.0"]
    with pytest.raises(UcpError, match="UCP-E-KEY"):
        store.remove("index/.ucp.json.0")


def test_an_empty_place_has_no_keys(tmp_path: Path) -> None:
    assert list(LocalStore(tmp_path / "nowhere").keys()) == []
    assert str(tmp_path) == LocalStore(tmp_path).url


def test_discarding_leaves_files_that_others_made(tmp_path: Path) -> None:
    """UCP-W-005: a path that somebody else has taken meanwhile is theirs."""
    store = LocalStore(tmp_path / "c")
    store.prepare()
    store.create("index/mine", [memoryview(b"x")])
    store.create("index/theirs", [memoryview(b"x")])
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "other").rename(tmp_path / "c" / "index" / "theirs")
    store.discard()
    assert list(store.keys()) == ["index/theirs"]
    store.close()


def test_durability_can_be_given_up(tmp_path: Path) -> None:
    """For benchmarks and tests: nothing is synced, all else is the same."""
    with patch("os.fsync", side_effect=AssertionError("synced")):
        store = LocalStore(tmp_path / "c", durability="none")
        store.prepare()
        store.create("index/x", [memoryview(b"x")])
        store.flush()
        store.publish(b"{}")
        store.close()
    assert sorted(store.keys()) == ["index/x", "ucp.json"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors have no names")
@pytest.mark.parametrize(
    ("made", "saved"),
    [
        ("run", "run/step-1.ucp"),
        ("run", "run/of/many/step-1.ucp"),
        ("run/updates.ucplog", ""),
        ("run/updates.ucplog/batches/0/3", ""),
    ],
)
def test_a_directory_that_another_has_just_made_is_made_durable(
    tmp_path: Path, made: str, saved: str
) -> None:
    """Who has made the last one may have died before it was durable; nothing may rest on it then."""
    (tmp_path / made).mkdir(parents=True)
    synced = []
    real = os.fsync

    def sync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    with patch("os.fsync", sync):
        if saved:
            store = LocalStore(tmp_path / saved)
            store.prepare()
            store.flush()
            store.publish(b"{}")
            store.close()
        else:
            place = LogPlace(str(tmp_path / "run/updates.ucplog"))
            for step in range(2):
                place.create(f"batches/0/3/{step}.batch", [memoryview(b"batch")])
            place.close()
    assert (tmp_path / made).parent in synced[:-1], "before the commit"
