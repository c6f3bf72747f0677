"""Boxes of a segment as ranges of its bytes, cut where what lies between is worth another read."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Tensor, fresh_url, save
from ucpformat.geometry import Box, row_major_strides
from ucpformat.reader import open_checkpoint
from ucpformat.storage.checksum import BLOCK_BYTES
from ucpformat.storage.reading.byte_runs import stretches
from ucpformat.storage.stores.store import Calls


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Box, tuple[int, ...], int]:
    """A box with few indices in the dims that may be cut, in shapes with gaps on both sides of a block."""
    shape, offset, extent = [], [], []
    for _ in range(draw(st.integers(0, 4))):
        held = draw(st.sampled_from([1, 2, 3, 5, 1000, 4096, 1 << 18, (1 << 20) + 1]))
        taken = draw(st.integers(1, min(held, 4)) | st.just(held))
        shape.append(held)
        extent.append(taken)
        offset.append(draw(st.integers(0, held - taken)))
    return Box(tuple(offset), tuple(extent)), tuple(shape), draw(st.sampled_from([1, 2, 4, 8]))


@given(boxes())
def test_stretches_tile_the_box_in_order_and_no_two_share_a_block(
    drawn: tuple[Box, tuple[int, ...], int],
) -> None:
    box, shape, item = drawn
    found = []
    for one in stretches(box, shape, item):
        found.append(one)
        if len(found) > 5000:
            return  # wide gaps between many rows: more of the same
    strides = [stride * item for stride in row_major_strides(shape)]
    assert sum(one.box.size for one in found) == box.size
    for one in found:
        assert box.contains(one.box)
        assert one.start == sum(map(int.__mul__, one.box.offset, strides))
        last = [stop - 1 for stop in one.box.stop]
        assert one.stop == sum(map(int.__mul__, last, strides)) + item
        assert one.strides == tuple(strides)
    for one, other in pairwise(found):
        assert one.in_blocks[1] <= other.in_blocks[0]
        assert other.start - one.stop >= BLOCK_BYTES


@given(boxes())
def test_nothing_that_is_read_holds_a_block_without_need(drawn: tuple[Box, tuple[int, ...], int]) -> None:
    box, shape, item = drawn
    for number, one in enumerate(stretches(box, shape, item)):
        # Within a stretch two neighbouring cells of the box are never a block apart.
        strides = one.strides
        for dim in range(one.box.ndim):
            if one.box.shape[dim] > 1:
                inner = sum(
                    (extent - 1) * stride
                    for extent, stride in zip(one.box.shape[dim + 1 :], strides[dim + 1 :], strict=True)
                )
                assert strides[dim] - inner - item < BLOCK_BYTES
        if number > 100:
            break


def test_columns_of_long_rows_leave_out_the_blocks_between() -> None:
    """A quarter of rows of 4 MiB: each row's part is a stretch of its own; of rows of 1 MiB it is one stretch."""
    long = list(stretches(Box((0, 0), (4, 1 << 18)), (4, 1 << 20), 4))
    assert [one.in_blocks for one in long] == [(row << 22, (row << 22) + (1 << 20)) for row in range(4)]
    (short,) = stretches(Box((0, 0), (16, 1 << 16)), (16, 1 << 18), 4)
    assert (short.start, short.stop) == (0, (15 << 20) + (1 << 18))


@given(
    data=st.data(),
    gap=st.sampled_from([0, 16, 1000]),
    window=st.sampled_from([2, 10, 16, 100]),
    shape=st.lists(st.integers(1, 6), min_size=1),
)
def test_a_box_is_the_same_however_little_is_read_at_a_time(
    data: st.DataObject, gap: int, window: int, shape: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows lie across what is read at a time, or many in it; the destination has strides of its own."""
    shape = shape[:4]
    full = np.arange(1, 1 + math.prod(shape), dtype=np.int16).reshape(shape)
    url = fresh_url("memory", tmp_path_factory.getbasetemp())
    save(url, {("a", "value"): Tensor(full, "int16")}, storage="packed", chunk_bytes=128)
    corners = [sorted(data.draw(st.tuples(*(st.integers(0, extent),) * 2))) for extent in shape]
    index = tuple(slice(low, high) for low, high in corners)
    box = Box(tuple(low for low, _ in corners), tuple(high - low for low, high in corners))
    wide = np.zeros([2 * extent for extent in box.shape], np.int16)
    out = wide[(slice(None, None, 2),) * len(shape)]
    with open_checkpoint(url, verify=False) as checkpoint:
        checkpoint.store.calls = Calls(at_once=None, window=window, gap=gap)
        checkpoint.read_box(checkpoint["a"]["value"].stored, box, out)
    np.testing.assert_array_equal(out, full[index])
    assert np.count_nonzero(wide) == out.size
