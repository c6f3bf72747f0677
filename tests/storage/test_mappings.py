"""Bytes that are looked at where they lie: the same as are read, and nothing of them stays."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ucpformat.errors import UcpError
from ucpformat.storage.stores import local_objects
from ucpformat.storage.stores.local import LocalStore

KEY = "packs/a.pack"
SIZE = (5 << 20) + 123


@pytest.fixture(scope="module")
def data() -> bytes:
    return np.random.default_rng(3).bytes(SIZE)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> LocalStore:
    path = tmp_path_factory.mktemp("store")
    (path / "packs").mkdir()
    (path / KEY).write_bytes(data)
    (path / KEY).chmod(0o644)
    return LocalStore(path)


def resident(path: Path) -> int:
    """KiB of a file that this process has mapped and present."""
    found, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            found = line.endswith(str(path))
        elif found and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@settings(max_examples=50, deadline=None)
@given(edges=st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(sorted))
def test_a_glimpse_of_much_is_what_a_read_is(store: LocalStore, data: bytes, edges: list[int]) -> None:
    start, stop = edges
    with store.glimpse(KEY, start, stop) as found:
        assert (None if found is None else bytes(found)) == (
            data[start:stop] if stop - start >= 1 << 21 else None
        )


def test_what_is_large_is_mapped_and_let_go(store: LocalStore, data: bytes) -> None:
    path = Path(store.url) / KEY
    with store.glimpse(KEY, 5, SIZE) as found:
        assert found is not None
        assert bytes(found) == data[5:]
        assert resident(path) >= (SIZE >> 10) - 8
    assert resident(path) == 0


def test_what_cannot_be_mapped_is_to_be_read(store: LocalStore) -> None:
    """Old systems, media without mappings, pages that cannot be read, and what is not there: a read then says why."""

    def refused(*arguments: Any) -> int:
        ctypes.set_errno(errno.EFAULT)
        return -1

    for value in (refused, None):
        with patch.object(local_objects, "_madvise", value), store.glimpse(KEY, 0, SIZE) as found:
            assert found is None
    with (
        patch("mmap.mmap", side_effect=OSError(errno.ENODEV, "No such device")),
        LocalStore(store.url).glimpse(KEY, 0, SIZE) as found,
    ):
        assert found is None
    for key, start in ((KEY, 1), ("packs/b.pack", 0)):
        with store.glimpse(key, start, start + SIZE) as found:
            assert found is None


def test_a_file_that_others_may_cut_is_read(tmp_path: Path, data: bytes) -> None:
    """Cutting it ends whoever looks at the mapping, by a signal; of one's own files nobody else can."""
    (tmp_path / "packs").mkdir()
    (tmp_path / KEY).write_bytes(data)
    store = LocalStore(tmp_path)
    for mode, is_mapped in ((0o644, True), (0o664, False), (0o646, False), (0o600, True)):
        (tmp_path / KEY).chmod(mode)
        with store.glimpse(KEY, 0, SIZE) as found:
            assert (found is not None) == is_mapped
    other = os.geteuid() + 1
    with patch("os.geteuid", return_value=other), store.glimpse(KEY, 0, SIZE) as found:
        assert (found is not None) == (os.stat(tmp_path / KEY).st_uid == 0)


def test_errors_of_who_looks_are_theirs(store: LocalStore) -> None:
    for mine in (ZeroDivisionError("mine"), UcpError("UCP-E-STORE", "mine"), OSError(1, "mine")):
        with pytest.raises(type(mine), match="mine"), store.glimpse(KEY, 0, SIZE):
            raise mine


def test_pages_that_stay_do_no_harm(store: LocalStore, data: bytes) -> None:
    """A process that locks its memory (mlockall) cannot let go of them."""
    advise = local_objects._advise

    def locked(first: int, nbytes: int, advice: int) -> None:
        if advice == mmap.MADV_DONTNEED:
            raise OSError(errno.EINVAL, "Invalid argument")
        advise(first, nbytes, advice)

    with (
        patch.object(local_objects, "_advise", locked),
        store.glimpse(KEY, 0, SIZE) as found,
    ):
        assert found is not None
        assert bytes(found) == data


def test_a_file_that_grew_is_mapped_anew(tmp_path: Path) -> None:
    (tmp_path / "packs").mkdir()
    (tmp_path / KEY).write_bytes(b"abc")
    store = LocalStore(tmp_path)
    first = store.mapped(KEY, 0, 3)
    with (tmp_path / KEY).open("ab") as file:
        file.write(b"defg")
    assert bytes(store.mapped(KEY, 2, 7)) == b"cdefg"
    store.close()
    assert bytes(first) == b"abc"
