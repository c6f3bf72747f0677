"""Sums that say whether two states of a tensor are the same, under any layout (SPEC-UPDATE-LOGS section 5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.geometry import Box

__all__ = ["box_sum"]

_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_AT_ONCE: Final = 1 << 16
"""Elements looked at together: their intermediate results fit the processor's cache."""
_MODULUS: Final = 1 << 64


def box_sum(elements: NDArray[np.generic], box: Box, shape: tuple[int, ...]) -> int:
    """Return the sum of a box of a tensor of this shape; ``elements`` has the shape of the box.

    >>> from ucpformat.geometry import Box
    >>> whole = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> left = box_sum(whole[:, :1], Box((0, 0), (2, 1)), (2, 3))
    >>> right = box_sum(whole[:, 1:], Box((0, 1), (2, 2)), (2, 3))
    >>> (left + right) % 2**64 == box_sum(whole, Box.whole((2, 3)), (2, 3))
    True
    """
    if not elements.size:
        return 0
    width = elements.dtype.itemsize
    words = max(1, width // 8)
    data = np.ascontiguousarray(elements)
    values = data.view(np.dtype(f"<u{min(width, 8)}")).reshape(-1)
    # Elements of a row lie one behind another in the tensor.
    inner = box.shape[-1] if box.shape else 1
    row = inner * words
    starts = _row_starts(box, shape)
    total = 0
    rows_at_once = max(1, _AT_ONCE // row)
    for first in range(0, len(starts), rows_at_once):
        some = starts[first : first + rows_at_once]
        for low in range(0, row, _AT_ONCE):
            high = min(row, low + _AT_ONCE)
            along: NDArray[np.uint64] = np.arange(low, high, dtype=np.uint64)
            places: NDArray[np.uint64] = (some[:, None] * np.uint64(words) + along).reshape(-1)
            found = values.reshape(len(starts), row)[first : first + rows_at_once, low:high].reshape(-1)
            total += int(_mixed(_mixed(places + np.uint64(1)) ^ found.astype(np.uint64)).sum(dtype=np.uint64))
    return total % _MODULUS


def _row_starts(box: Box, shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """Return where each row of the box begins in the tensor, in elements."""
    if not shape:
        return np.zeros(1, np.uint64)
    starts = np.zeros(1, np.uint64)
    for dim in range(len(shape) - 1):
        stride = np.uint64(math.prod(shape[dim + 1 :]))
        along = (np.arange(box.shape[dim], dtype=np.uint64) + np.uint64(box.offset[dim])) * stride
        starts = (starts[:, None] + along[None, :]).reshape(-1)
    return starts + np.uint64(box.offset[-1])


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA '14) of each value, modulo 2^64."""
    values = values + _STEP
    values ^= values >> np.uint64(30)
    values *= _FIRST
    values ^= values >> np.uint64(27)
    values *= _SECOND
    values ^= values >> np.uint64(31)
    return values
