"""Small chunks that are read by one call are judged as they are one by one (SPEC 18)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import State, Tensor, save
from ucpformat.storage.local import LocalStore
from ucpformat.validate import validate

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
        with patch.object(LocalStore, "calls", LocalStore.calls._replace(gap=gap)):
            together = validate(path, "integrity", workers=2)
        with patch("ucpformat.validate.single_chunks.BLOCK_BYTES", 0):
            alone = validate(path, "integrity", workers=2)
        assert sorted(together, key=str) == sorted(alone, key=str)


def test_chunks_that_lie_together_take_one_call(tmp_path: Path) -> None:
    path = tmp_path / "c.ucp"
    save(path, many([100] * 40), storage="packed", workers=1)
    read: list[str] = []
    real = LocalStore.read_into

    def read_into(store: LocalStore, key: str, start: int, buffers: list[memoryview]) -> None:
        read.append(key)
        real(store, key, start, buffers)

    with patch.object(LocalStore, "read_into", read_into):
        assert validate(path, "integrity", workers=1) == []
    assert len(read) == 1
