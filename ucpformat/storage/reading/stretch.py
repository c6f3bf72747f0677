"""Which bytes of an uncompressed segment a box takes: the same for a plan and for a reader (SPEC section 17.2)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from ucpformat.geometry import Box, row_major_strides
from ucpformat.storage.checksum import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Stretch", "stretches"]


class Stretch(NamedTuple):
    """Bytes ``[start, stop)`` of a segment, which hold ``box``, in coordinates of the segment, and what lies between.

    ``strides`` are in bytes.
    """

    box: Box
    start: int
    stop: int
    strides: tuple[int, ...]

    @property
    def in_blocks(self) -> tuple[int, int]:
        """The range widened to whole checksum blocks; the last one may be longer than the segment."""
        return self.start // BLOCK_BYTES * BLOCK_BYTES, -(-self.stop // BLOCK_BYTES) * BLOCK_BYTES


def stretches(box: Box, shape: tuple[int, ...], item_bytes: int) -> Iterator[Stretch]:
    """Cut a box of a dense tensor of ``shape``, not empty, where a whole checksum block or more lies between its bytes.

    No two stretches share a block, so that each is read and verified once, and a block that is not needed is not read.
    """
    strides = tuple(stride * item_bytes for stride in row_major_strides(shape))
    span, cut = item_bytes, 0  # bytes from the first to the last cell, in the dims that are not cut
    # Outer gaps are at least as wide as inner ones: the first that is wide, from within, is the last to be cut at.
    for dim in range(box.ndim - 1, -1, -1):
        if box.shape[dim] > 1 and strides[dim] - span >= BLOCK_BYTES:
            cut = dim + 1
            break
        span += (box.shape[dim] - 1) * strides[dim]
    first = sum(map(int.__mul__, box.offset, strides))
    if not cut:
        yield Stretch(box, first, first + span, strides)
        return
    inner = (1,) * cut + box.shape[cut:]
    for index in itertools.product(*map(range, box.shape[:cut])):
        start = first + sum(map(int.__mul__, index, strides))
        offset = (*map(int.__add__, box.offset, index), *box.offset[cut:])
        yield Stretch(Box(offset, inner), start, start + span, strides)
