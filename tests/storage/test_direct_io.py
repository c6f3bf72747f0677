"""What goes past the page cache is the same file as what does not, whatever the medium allows."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.errors import UcpError
from ucpformat.storage.stores.local import LocalStore

SIZES = st.integers(0, 5 * 4096) | st.sampled_from([4096, 8192, 12288, 65536])
APPENDS = st.lists(st.lists(st.tuples(SIZES, st.sampled_from([0, 16, 64])), max_size=4), max_size=6)

Write = Callable[[int, memoryview, int], int]
REAL: Write = os.pwrite


def data(size: int, shift: int, fill: int) -> memoryview:
    """Bytes that begin so many bytes behind a page."""
    memory = np.full(size + 4096 + shift, fill, np.uint8)
    start = -memory.ctypes.data % 4096 + shift
    return memory[start : start + size].data


@contextmanager
def small_limits() -> Iterator[None]:
    with (
        patch("ucpformat.storage.stores.local_pack.LEAST_BYTES", 4096),
        patch("ucpformat.storage.stores.local_pack._COPIED_BYTES", 8192),
        patch("ucpformat.storage.stores.local_pack._CALL_BYTES", 16384),
    ):
        yield


def written(path: Path, appends: list[list[tuple[int, int]]], alignment: int) -> tuple[bytes, bytes]:
    """What a pack of these pieces holds, and what it should."""
    expected = bytearray()
    fill = 0
    with small_limits():
        store = LocalStore(path)
        store.prepare()
        pack = store.create_pack("packs/a-0.pack")
        for pieces in appends:
            buffers = []
            expected += bytes(-len(expected) % alignment)
            for size, shift in pieces:
                fill = fill % 255 + 1
                buffers.append(data(size, shift, fill))
                expected += bytes([fill]) * size
            start = len(expected) - sum(size for size, _ in pieces)
            assert pack.append(buffers, alignment) == start
        length = pack.close()
        store.flush()
        store.close()
    found = (path / "packs" / "a-0.pack").read_bytes()
    assert length == len(expected)
    # A gap at the end was never written.
    return found, bytes(expected[: len(found)] if not any(expected[len(found) :]) else expected)


def takes_direct(directory: Path) -> bool:
    try:
        os.close(os.open(directory / "probe", os.O_CREAT | os.O_WRONLY | getattr(os, "O_DIRECT", 1 << 30)))
    except OSError:
        return False
    return True


@given(appends=APPENDS, alignment=st.sampled_from([64, 4096]))
def test_a_pack_is_its_pieces(appends: list[list[tuple[int, int]]], alignment: int) -> None:
    with TemporaryDirectory() as directory:
        found, expected = written(Path(directory, "c"), appends, alignment)
    assert found == expected


@given(
    appends=APPENDS,
    fault=st.sampled_from(["open", errno.EINVAL, errno.EFAULT, "short", "nothing"]),
    after=st.integers(0, 3),
    count=st.integers(0, 20000),
)
def test_what_the_medium_refuses_goes_through_the_page_cache(
    appends: list[list[tuple[int, int]]], fault: str | int, after: int, count: int
) -> None:
    """At the first direct write or a later one; a part of a piece may have been written."""
    calls = 0

    def pwrite(descriptor: int, part: memoryview, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls <= after:
            return REAL(descriptor, part, offset)
        if isinstance(fault, int):
            raise OSError(fault, "not here")
        kept = 0 if fault == "nothing" else min(count, part.nbytes)
        if kept:  # without O_DIRECT, so that any length can be written
            own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
            REAL(own, part[:kept], offset)
            os.close(own)
        return kept

    real_open = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, **options: Any) -> int:
        if str(path).startswith("/proc/self/fd/") and flags & getattr(os, "O_DIRECT", 0):
            raise OSError(errno.EINVAL, "not here")
        return real_open(path, flags, mode, **options)

    with (
        TemporaryDirectory() as directory,
        patch("os.open", refuse) if fault == "open" else patch("os.pwrite", pwrite),
    ):
        found, expected = written(Path(directory, "c"), appends, 4096)
    assert found == expected


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    if not takes_direct(tmp_path):
        pytest.skip("the file system has no O_DIRECT")

    def pwrite(descriptor: int, part: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    with patch("os.pwrite", pwrite), pytest.raises(UcpError, match="no space") as refusal:
        written(tmp_path / "c", [[(8192, 0)]], 4096)
    assert refusal.value.code == "UCP-E-STORE"


@pytest.mark.parametrize(
    ("durability", "size", "expected"), [("fsync", 8192, 1), ("fsync", 4095, 0), ("none", 8192, 0)]
)
def test_only_large_data_that_have_to_be_durable_go_past_the_cache(
    tmp_path: Path, durability: str, size: int, expected: int
) -> None:
    if not takes_direct(tmp_path):
        pytest.skip("the file system has no O_DIRECT")
    calls: list[int] = []

    def pwrite(descriptor: int, part: memoryview, offset: int) -> int:
        calls.append(part.nbytes)
        return REAL(descriptor, part, offset)

    with small_limits(), patch("os.pwrite", pwrite):
        store = LocalStore(tmp_path / "c", durability="fsync" if durability == "fsync" else "none")
        store.prepare()
        pack = store.create_pack("packs/a-0.pack")
        pack.append([data(size, 16, 7)], 4096)
        pack.close()
        store.flush()
        store.close()
    assert len(calls) == expected
    # Of this directory: what tests before it have left is closed at any time.
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    left = [os.readlink(link) for link in links if link.is_symlink()]
    assert not [path for path in left if path.startswith(str(tmp_path))]
