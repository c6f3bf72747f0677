"""Checksums of many runs at once, as columns (SPEC section 11.3; one at a time: `storage.checksum`)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ucpformat.storage.checksum import BLOCK_BYTES, combine

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["block_values", "followed"]


@lru_cache(maxsize=64)
def _tables(bit: int) -> NDArray[np.uint32]:
    """Return what ``2**bit`` bytes behind them make of the 256 values of each byte of a checksum; (4, 256)."""
    tables = np.zeros((4, 256), np.uint32)
    for place in range(32):
        value = np.uint32(combine(1 << place, 0, 1 << bit))
        low = 1 << place % 8
        tables[place // 8, low : 2 * low] = tables[place // 8, :low] ^ value
    return tables


def followed(values: NDArray[np.uint32], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return `combine` of each value with a checksum 0 of so many bytes: what it adds to that of a concatenation.

    The checksum of a concatenation is then the exclusive or of its parts', each followed by the bytes behind it.
    """
    values = values.copy()
    for bit in range(int(lengths.max(initial=0)).bit_length()):
        (some,) = np.nonzero(lengths >> bit & 1)
        if some.size:
            first, second, third, fourth = _tables(bit)
            old = values[some]
            values[some] = (
                first[old & 255] ^ second[old >> 8 & 255] ^ third[old >> 16 & 255] ^ fourth[old >> 24]
            )
    return values


def block_values(
    cuts: NDArray[np.uint32],
    counts: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> NDArray[np.uint32]:
    """Return CRC-32C of each successive 1 MiB of slots that are runs one behind another.

    ``cuts`` are those of all runs (`Run.cuts`), ``counts`` how many each run has; ``starts`` and ``stops`` (bytes)
    where it lies in its slot, and ``ends`` where that ends. The first run of a slot starts at 0.
    """
    values = cuts.copy()
    last = np.cumsum(counts) - 1
    behind = np.minimum(-(-stops // BLOCK_BYTES) * BLOCK_BYTES, ends) - stops
    values[last] = followed(values[last], behind)
    begins = np.ones(values.size, bool)
    begins[last - counts + 1] = starts % BLOCK_BYTES == 0
    (edges,) = np.nonzero(begins)
    return np.bitwise_xor.reduceat(values, edges) if edges.size else values
