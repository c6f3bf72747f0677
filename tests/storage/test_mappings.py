"""Bytes that are looked at where they lie: the same as are read, and nothing of them stays."""

from __future__ import annotations

import ctypes
import errno
import mmap
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ucpformat.errors import UcpError
from ucpformat.storage import mappings
from ucpformat.storage.local import LocalStore
from ucpformat.storage.scratch import Scratch

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
    return LocalStore(path)


def nothing(nbytes: int) -> Any:
    raise AssertionError(f"{nbytes} bytes are copied")


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
def test_a_glimpse_is_what_a_read_is(store: LocalStore, data: bytes, edges: list[int]) -> None:
    start, stop = edges
    with store.glimpse(KEY, start, stop, Scratch().take) as found:
        assert found == data[start:stop]


def test_what_is_large_is_mapped_and_let_go(store: LocalStore, data: bytes) -> None:
    path = Path(store.url) / KEY
    with store.glimpse(KEY, 5, SIZE, nothing) as found:
        assert found == data[5:]
        assert isinstance(found.obj, mmap.mmap)
        assert resident(path) >= (SIZE >> 10) - 8
    assert resident(path) == 0
    with store.glimpse(KEY, 5, 6, Scratch().take) as found:
        assert not isinstance(found.obj, mmap.mmap)


def test_what_cannot_be_mapped_is_read(store: LocalStore, data: bytes) -> None:
    """Old systems, media without mappings, and pages that cannot be read: the read then says why."""

    def refused(*arguments: Any) -> int:
        ctypes.set_errno(errno.EFAULT)
        return -1

    for name, value in (("_madvise", refused), ("_madvise", None)):
        with (
            patch.object(mappings, name, value),
            store.glimpse(KEY, 0, SIZE, Scratch().take) as found,
        ):
            assert found == data
            assert not isinstance(found.obj, mmap.mmap)
    with (
        patch("mmap.mmap", side_effect=OSError(errno.ENODEV, "No such device")),
        LocalStore(store.url).glimpse(KEY, 0, SIZE, Scratch().take) as found,
    ):
        assert found == data
    with (
        patch.object(mappings, "_madvise", refused),
        patch("os.preadv", side_effect=OSError(errno.EIO, "Input/output error")),
        pytest.raises(UcpError, match="Input/output error"),
        store.glimpse(KEY, 0, SIZE, Scratch().take),
    ):
        pass


def test_pages_that_stay_do_no_harm(store: LocalStore, data: bytes) -> None:
    """A process that locks its memory (mlockall) cannot let go of them."""
    advise = mappings._advise

    def locked(first: int, nbytes: int, advice: int) -> None:
        if advice == mmap.MADV_DONTNEED:
            raise OSError(errno.EINVAL, "Invalid argument")
        advise(first, nbytes, advice)

    with (
        patch.object(mappings, "_advise", locked),
        store.glimpse(KEY, 0, SIZE, nothing) as found,
    ):
        assert found == data


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_errors_are_those_of_a_read(store: LocalStore, size: int) -> None:
    for key, start, code in ((KEY, SIZE - 1, "UCP-E-LENGTH"), ("packs/b.pack", 0, "UCP-E-MISSING")):
        with (
            pytest.raises(UcpError, match=code),
            store.glimpse(key, start, start + size, Scratch().take),
        ):
            pass
    with (
        pytest.raises(ZeroDivisionError),
        store.glimpse(KEY, 0, size, Scratch().take),
    ):
        raise ZeroDivisionError
    with (
        pytest.raises(UcpError, match="mine"),
        store.glimpse(KEY, 0, size, Scratch().take),
    ):
        raise UcpError("UCP-E-STORE", "mine")


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
