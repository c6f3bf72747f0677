from __future__ import annotations

import math
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tests.conversion.formats.dcp.strategies import boxes_of, index_of, shapes
from ucpformat.tensor_files import byte_source
from ucpformat.tensor_files.byte_source import (
    MemoryRange,
    contiguous_strides,
    element_view,
    read_strided,
    slabs,
)


@given(st.data())
def test_every_box_of_every_strided_tensor(data: st.DataObject) -> None:
    """Against numpy's own striding; tiny spans so that splitting is reached."""
    size = data.draw(st.sampled_from([1, 2, 4, 8, 16]))
    shape = data.draw(shapes)
    strides = data.draw(st.permutations(contiguous_strides(shape)) | st.just(contiguous_strides(shape)))
    strides = [stride * data.draw(st.sampled_from([1, 1, 1, 0, 3])) for stride in strides]
    count = 5 + sum(max(extent - 1, 0) * stride for extent, stride in zip(shape, strides, strict=True))
    raw = np.arange(count * size, dtype=np.uint64).astype(np.uint8)
    full = np.lib.stride_tricks.as_strided(
        raw[3 * size :].view(f"V{size}"), shape, [stride * size for stride in strides]
    )
    offset, extent = data.draw(boxes_of(shape))
    out = np.zeros(math.prod(extent) * size, dtype=np.uint8)
    start = (3 + sum(o * s for o, s in zip(offset, strides, strict=True))) * size
    small, most = data.draw(st.sampled_from([(0, 64), (8, 16), (1000, 9999)]))
    with patch.multiple(byte_source, _SMALL_SPAN=small, _MAX_SPAN=most):
        read_strided(MemoryRange(raw.tobytes(), "x"), start, strides, element_view(out, size, extent))
    assert out.tobytes() == full[index_of(offset, extent)].tobytes()


class Counting(MemoryRange):
    """Counts the bytes that are read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, "x")
        self.total = self.largest = 0

    def _count(self, count: int) -> None:
        self.total += count
        self.largest = max(self.largest, count)

    def read(self, offset: int, count: int) -> bytes:
        self._count(count)
        return super().read(offset, count)

    def read_into(self, offset: int, out: memoryview) -> None:
        self._count(len(out))
        super().read_into(offset, out)


@pytest.mark.parametrize(
    ("offset", "extent"), [((5, 0), (10, 1024)), ((0, 7), (2000, 1)), ((100, 5), (50, 500))]
)
def test_only_what_is_wanted_is_read(offset: tuple[int, int], extent: tuple[int, int]) -> None:
    shape = (2000, 1024)
    full = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
    source = Counting(full.tobytes())
    out = np.zeros(4 * math.prod(extent), dtype=np.uint8)
    read_strided(source, 4 * (offset[0] * 1024 + offset[1]), (1024, 1), element_view(out, 4, extent))
    assert out.tobytes() == full[index_of(offset, extent)].tobytes()
    small = byte_source._SMALL_SPAN
    assert source.total <= max(byte_source._MAX_WASTE * out.size, math.ceil(2000 / (small // 4096)) * small)
    assert source.largest <= max(byte_source._MAX_SPAN, out.size)


@given(shapes, st.integers(1, 300), st.sampled_from([1, 4]))
def test_slabs_tile_in_order(shape: tuple[int, ...], limit: int, size: int) -> None:
    marks = np.zeros(shape, dtype=int)
    for number, (offset, extent) in enumerate(slabs(shape, size, limit), 1):
        assert math.prod(extent) * size <= max(limit, size)
        box = index_of(offset, extent)
        assert not marks[box].any()
        marks[box] = number
    assert (marks > 0).all()
    assert (np.diff(marks.reshape(-1)) >= 0).all()
