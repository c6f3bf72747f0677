"""Bytes of entries: dense gradients, some of their elements, or some of their rows (SPEC-UPDATE-LOGS section 3)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.storage.host_memory import flat_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.update_log.batch import Entry

__all__ = ["BLOCK_ELEMENTS", "entry_bytes", "packed_places", "places_of", "rows_of", "values_of"]

BLOCK_ELEMENTS: Final = 1 << 16


def blocks_of(size: int) -> int:
    """Return into how many blocks the elements of a piece are told apart."""
    return -(-size // BLOCK_ELEMENTS)


def entry_bytes(entry: Entry, shape: tuple[int, ...], item_bytes: int) -> int:
    """Return how many bytes an entry of a piece of this shape has."""
    size = math.prod(shape)
    match entry.form:
        case "dense":
            return size * item_bytes
        case "sparse":
            return 4 * blocks_of(size) + (entry.count or 0) * (2 + item_bytes)
        case "rows":
            return (entry.count or 0) * (4 + size // max(1, shape[0]) * item_bytes)


def packed_places(places: NDArray[np.int64], size: int) -> tuple[memoryview, memoryview]:
    """Return ascending places of a piece of so many elements as the counts of blocks, and places within blocks."""
    cuts = places.searchsorted(_starts(blocks_of(size)))
    counts = (cuts[1:] - cuts[:-1]).astype("<u4")
    return flat_bytes(counts), flat_bytes(places.astype("<u2"))  # which keeps the lower 16 bits


@lru_cache
def _starts(blocks: int) -> NDArray[np.int64]:
    """Return where each block begins, and where the last one ends."""
    return np.arange(blocks + 1, dtype=np.int64) * BLOCK_ELEMENTS


def places_of(entry: Entry, data: memoryview, size: int, *, at: str) -> NDArray[np.int64]:
    """Return places of a sparse entry in its piece of so many elements, ascending.

    Raises:
        InvalidCheckpointError: ``UCP-E-LOG`` (SPEC UCP-D-163).
    """
    count, blocks = entry.count or 0, blocks_of(size)
    counts = np.frombuffer(data, "<u4", blocks).astype(np.int64)
    if int(counts.sum()) != count:
        message = f"its blocks have {int(counts.sum())} elements, and it says {count}"
        raise error("UCP-E-LOG", message, at=at)
    within = np.frombuffer(data, "<u2", count, 4 * blocks).astype(np.int64)
    places = np.repeat(np.arange(blocks, dtype=np.int64) << 16, counts) + within
    _require_ascending(places, size, "elements", at)
    return places


def rows_of(entry: Entry, data: memoryview, rows: int, *, at: str) -> NDArray[np.int64]:
    """Return the row numbers of an entry of a piece of so many rows, ascending.

    Raises:
        InvalidCheckpointError: ``UCP-E-LOG`` (SPEC UCP-D-163).
    """
    numbers = np.frombuffer(data, "<u4", entry.count or 0).astype(np.int64)
    _require_ascending(numbers, rows, "rows", at)
    return numbers


def values_of(
    entry: Entry, data: memoryview, shape: tuple[int, ...], native: np.dtype[np.generic]
) -> NDArray[np.generic]:
    """Return the elements of an entry, as a view of its bytes: a row for each row number of ``rows``."""
    size = math.prod(shape)
    match entry.form:
        case "dense":
            return np.frombuffer(data, native, size).reshape(shape)
        case "sparse":
            start = 4 * blocks_of(size) + 2 * (entry.count or 0)
            return np.frombuffer(data[start:], native, entry.count or 0)
        case "rows":
            count = entry.count or 0
            found = np.frombuffer(data[4 * count :], native, count * (size // max(1, shape[0])))
            return found.reshape(count, *shape[1:])


def _require_ascending(places: NDArray[np.int64], stop: int, what: str, at: str) -> None:
    if places.size and int(places[-1]) >= stop:
        raise error("UCP-E-LOG", f"{what} up to {int(places[-1])}, and the piece has {stop}", at=at)
    if not (np.diff(places) > 0).all():
        raise error("UCP-E-LOG", f"its {what} do not ascend", at=at)
