"""Indexing a stored tensor as numpy indexes an array, while only what is selected is read.

An index is taken apart by dimension: the positions that it selects in each form runs, and the boxes of these runs are
read into one small array. The index with its positions counted in that array is then left to numpy, which gives the
result its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import numpy as np

from ucpformat.geometry import Box

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["Selection", "select"]

_GAP_BYTES: Final = 1 << 16
"""Runs with less than this between them are read as one, which takes fewer boxes."""

_Runs = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Selection:
    """What is to be read for an index, and the index into that.

    Attributes:
        shape: extents of the array that is read, in elements.
        runs: for each dimension, the ranges ``[start, stop)`` of the tensor that follow one another in that array.
        index: what numpy is to select from the array.
    """

    shape: tuple[int, ...]
    runs: tuple[_Runs, ...]
    index: tuple[Any, ...]

    def boxes(self) -> Iterator[tuple[Box, tuple[slice, ...]]]:
        """Yield the boxes of the tensor to read, each with where it goes in the array."""
        for runs in product(*(zip(one, _places(one), strict=True) for one in self.runs)):
            offset = tuple(start for (start, _), _ in runs)
            shape = tuple(stop - start for (start, stop), _ in runs)
            yield Box(offset, shape), tuple(place for _, place in runs)


def _places(runs: _Runs) -> Iterator[slice]:
    begin = 0
    for start, stop in runs:
        yield slice(begin, begin + stop - start)
        begin += stop - start


def select(index: object, shape: tuple[int, ...], itemsize: int) -> Selection:
    """Take an index of a tensor apart.

    Args:
        index: as numpy has it: integers, slices of any step, an ellipsis, ``None`` for a new dimension, arrays of
            integers and of booleans, or a tuple of these.
        shape: the tensor's extents, in elements.
        itemsize: bytes of an element.

    Raises:
        IndexError: as numpy, for what is none of these, too many of them, or out of bounds.
    """
    items = _expanded(index if isinstance(index, tuple) else (index,), shape)
    runs: list[_Runs] = []
    inner: list[Any] = []
    for item in items:
        if item is None:
            inner.append(None)
            continue
        dim = len(runs)
        here: Any
        if isinstance(item, slice):
            found, here = _slice(item, shape[dim])
        elif isinstance(item, np.ndarray):
            row_bytes = itemsize * int(np.prod(shape[dim + 1 :], dtype=np.int64))
            found, here = _array(item, shape[dim], gap=_GAP_BYTES // max(1, row_bytes), dim=dim)
        else:
            position = _in_bounds(item, shape[dim], dim)
            found, here = [(position, position + 1)], 0
        runs.append(found)
        inner.append(here)
    extents = tuple(sum(stop - start for start, stop in one) for one in runs)
    return Selection(extents, tuple(runs), tuple(inner))


def _expanded(items: Sequence[Any], shape: tuple[int, ...]) -> list[Any]:
    """Give each dimension its item: an ellipsis is slices, and a mask is an array of integers for each of its own."""
    plain = [_plain(item) for item in items]
    ellipses = [position for position, item in enumerate(plain) if item is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError("an index can have only a single ellipsis")
    left = len(shape) - sum(map(_dimensions, plain))
    if left < 0:
        raise IndexError(f"too many indices for a tensor of {len(shape)} dimensions")
    position = ellipses[0] if ellipses else len(plain)
    found: list[Any] = []
    dim = 0
    for item in (*plain[:position], *[slice(None)] * left, *plain[position + 1 :]):
        if isinstance(item, np.ndarray) and item.dtype == np.bool_:
            if item.shape != shape[dim : dim + item.ndim]:
                raise IndexError(f"a mask of shape {item.shape} does not fit a tensor of shape {shape}")
            found.extend(item.nonzero())
        else:
            found.append(item)
        dim += _dimensions(item)
    return found


def _plain(item: object) -> Any:
    """Return an integer, a slice, an ellipsis, None, or an array of integers or booleans."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, SupportsIndex) and not isinstance(item, bool | np.ndarray) and not np.ndim(item):  # type: ignore[arg-type]
        return item.__index__()
    array = np.asarray(item)
    if array.dtype.kind in "iu" or (array.size == 0 and not isinstance(item, np.ndarray)):
        return array.astype(np.intp)  # numpy takes an empty list for integers, too
    if array.dtype == np.bool_ and array.ndim:
        return array
    message = (
        f"only integers, slices, an ellipsis, None, and arrays of integers or booleans select, not {item!r}"
    )
    raise IndexError(message)


def _dimensions(item: object) -> int:
    """Return how many dimensions of the tensor an item is about."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == np.bool_ else 1


def _in_bounds(position: int, extent: int, dim: int) -> int:
    if not -extent <= position < extent:
        raise IndexError(f"index {position} is out of bounds for dimension {dim} with extent {extent}")
    return position % extent


def _slice(item: slice, extent: int) -> tuple[_Runs, slice]:
    positions = range(extent)[item]
    if not positions:
        return [(0, 0)], slice(None)
    low, high = sorted((positions[0], positions[-1]))
    return [(low, high + 1)], slice(None, None, positions.step)


def _array(item: NDArray[np.intp], extent: int, *, gap: int, dim: int) -> tuple[_Runs, NDArray[np.intp]]:
    if item.size:
        for position in (int(item.min()), int(item.max())):
            _in_bounds(position, extent, dim)
    wanted = np.unique(np.where(item < 0, item + extent, item))
    if not wanted.size:
        return [(0, 0)], item
    ends = np.flatnonzero(np.diff(wanted) > gap + 1)
    starts = wanted[np.concatenate([[0], ends + 1])]
    stops = wanted[np.concatenate([ends, [-1]])] + 1
    begins = np.concatenate([[0], np.cumsum(stops - starts)[:-1]])
    positions = np.where(item < 0, item + extent, item)
    run = np.searchsorted(starts, positions, side="right") - 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True)), positions - starts[run] + begins[run]
