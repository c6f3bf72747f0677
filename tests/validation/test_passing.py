"""Small chunks that are read by one call are judged as they are one by one (SPEC 18)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import State, Tensor, save
from ucpformat.errors import Problem
from ucpformat.storage.stores.local_objects import LocalObjects
from ucpformat.validation import validate

SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=30)


def many(sizes: list[int]) -> State:
    """Tensors of bytes and of booleans, some of them zero."""
    return {
        (f"t{number:02}", "value"): Tensor(
            np.full(size, number % 2, np.bool_ if number % 3 == 0 else np.uint8),
            "bool" if number % 3 == 0 else "uint8",
        )
        for number, size in enumerate(sizes)
    }


@given(
    sizes=SIZES,
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=4),
    kept=st.floats(0, 1) | st.none(),
    gap=st.sampled_from([0, 64, 4096]),
)
def test_together_and_alone_come_to_the_same(
    sizes: list[int], flips: list[tuple[float, int]], kept: float | None, gap: int
) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "c.ucp"
        save(path, many(sizes), storage="packed", chunk_bytes=128, workers=1)
        for pack in path.rglob("*.pack"):
            data = bytearray(pack.read_bytes())
            for place, bit in flips:
                data[int(place * len(data))] ^= 1 << bit
            pack.write_bytes(data if kept is None else data[: int(kept * len(data))])
        with patch.object(LocalObjects, "calls", LocalObjects.calls._replace(gap=gap)):
            together = validate(path, "integrity", workers=2)
        assert sorted(together, key=str) == sorted(one_by_one(path), key=str)


def one_by_one(path: Path) -> list[Problem]:
    with patch("ucpformat.validation.integrity.near_slots", return_value=[]):
        return validate(path, "integrity", workers=2)


@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=2),
    kept=st.floats(0, 1) | st.none(),
    is_mapped=st.booleans(),
    megabytes=st.sampled_from([0, 4, 64]),
)
@settings(max_examples=20, deadline=None)
def test_chunks_of_many_blocks(
    flips: list[tuple[float, int]], kept: float | None, is_mapped: bool, megabytes: int
) -> None:
    """Of one block and a bit, of one call, and of two calls and a bit; mapped where that is worth it, or read."""
    megabyte = 1 << 20
    sizes = [3, megabyte + 5, 4 * megabyte, 7, 9 * megabyte + 1]
    with TemporaryDirectory() as directory:
        path = Path(directory) / "c.ucp"
        save(path, many(sizes), storage="packed", workers=1)
        (pack,) = path.rglob("*.pack")
        with pack.open("r+b") as file:
            length = file.seek(0, 2)
            for place, bit in flips:
                at = int(place * length)
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 1 << bit]))
            if kept is not None:
                file.truncate(int(kept * length))
        with (
            patch("ucpformat.storage.stores.local_objects._MAPPED_BYTES", 1 << (21 if is_mapped else 40)),
            patch.object(LocalObjects, "glimpse_bytes", megabytes * megabyte),
        ):
            together = validate(path, "integrity", workers=2)
        assert sorted(together, key=str) == sorted(one_by_one(path), key=str)
        assert bool(together) == bool(pack.stat().st_size != length or {*flips} - {*_twice(flips, length)})


def _twice(flips: list[tuple[float, int]], length: int) -> list[tuple[float, int]]:
    """Those that undo one another."""
    places = [(int(place * length), bit) for place, bit in flips]
    return [flip for flip, at in zip(flips, places, strict=True) if places.count(at) == 2]


def test_chunks_that_lie_together_take_one_call(tmp_path: Path) -> None:
    path = tmp_path / "c.ucp"
    save(path, many([100] * 40), storage="packed", workers=1)
    read: list[str] = []
    real = LocalObjects.read_into

    def read_into(store: LocalObjects, key: str, start: int, buffers: list[memoryview]) -> None:
        read.append(key)
        real(store, key, start, buffers)

    with patch.object(LocalObjects, "read_into", read_into):
        assert validate(path, "integrity", workers=1) == []
    assert len(read) == 1
