"""Arrays that are read into: those that callers give, and how bytes of objects fill them (SPEC section 17.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import numpy as np

from ucpformat.errors import error
from ucpformat.storage.host_memory import array_view

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.model.dtype import DType
    from ucpformat.storage.reading.stored_slot import StoredSlot

__all__ = ["Destination", "RowDestination", "destination_of", "is_destination"]


def is_destination(out: object, kind: DType, shape: tuple[int, ...]) -> TypeGuard[NDArray[np.generic]]:
    """Return whether ``out`` is an array that takes elements of the data type ``kind`` in this shape as it is."""
    return type(out) is np.ndarray and out.dtype == kind.numpy and out.shape == shape and out.flags.writeable


def destination_of(stored: StoredSlot, shape: tuple[int, ...], out: object) -> NDArray[np.generic]:
    """Return where a read of ``stored`` goes: new memory, or ``out`` seen as numpy, which has to fit.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for another shape or data type, or memory that cannot be written.
    """
    if out is None:
        return np.empty(shape, stored.dtype.numpy)
    target = array_view(out, stored.dtype, at=stored.label)
    if target.shape != shape or target.dtype != stored.dtype.numpy:
        raise error(
            "UCP-E-MISMATCH",
            f"the destination is {target.dtype}{list(target.shape)}, needed is {stored.dtype.name}{list(shape)}",
            at=stored.label,
        )
    return target


class Destination(NamedTuple):
    """An array to fill from bytes of an object that lie as those of an array do, in C order and with gaps.

    Bytes ``[start, stop)`` of the object have its first element and its last; ``strides`` are in bytes.
    """

    array: NDArray[np.generic]
    start: int
    stop: int
    strides: tuple[int, ...]

    def fill(self, data: memoryview, first: int) -> None:
        """Copy what there is of the array in the bytes of the object from ``first`` on."""
        _fill(self.array, self.start, self.strides, data, first)


@dataclass(frozen=True, eq=False)
class RowDestination:
    """Rows of an array to fill from bytes of an object that are some of its rows, in order, one behind the other.

    Bytes ``[start, stop)`` of the object have the first element and the last; ``strides``, in bytes, are those of the
    rows in the object. ``rows`` are those that the object has, ``is_wanted`` says of each whether it is to be filled
    from there; all are where it is None.
    """

    array: NDArray[np.generic]
    start: int
    stop: int
    strides: tuple[int, ...]
    rows: NDArray[np.int64]
    is_wanted: NDArray[np.bool_] | None

    def fill(self, data: memoryview, first: int) -> None:
        """Copy what there is of the rows in the bytes of the object from ``first`` on."""
        array, start, strides = self.array, self.start, self.strides
        whole, parts = _rows_in(self.rows.size, array, start, strides, data, first)
        if whole.stop > whole.start:
            shape = (whole.stop - whole.start, *array.shape[1:])
            found = np.ndarray(shape, array.dtype, data, start + whole.start * strides[0] - first, strides)
            rows = self.rows[whole.start : whole.stop]
            if array.flags.c_contiguous and found.flags.c_contiguous:
                array, found = _as_items(array), _as_items(found)
            if self.is_wanted is not None:
                is_wanted = self.is_wanted[whole.start : whole.stop]
                found, rows = found[is_wanted], rows[is_wanted]
            array[rows] = found
        for number in parts:
            if self.is_wanted is None or self.is_wanted[number]:
                row = self.rows[number]
                _fill(self.array[row], start + number * strides[0], strides[1:], data, first)


def _as_items(rows: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return an array of rows, which lie densely, as an array of so many elements, which are copied faster."""
    return rows.reshape(len(rows), -1).view(f"V{rows[0].nbytes}")[:, 0]


def _fill(
    array: NDArray[np.generic], start: int, strides: tuple[int, ...], data: memoryview, first: int
) -> None:
    whole, parts = _rows_in(len(array), array, start, strides, data, first)
    if whole.stop > whole.start:
        shape = (whole.stop - whole.start, *array.shape[1:])
        offset = start + whole.start * strides[0] - first
        array[whole.start : whole.stop] = np.ndarray(shape, array.dtype, data, offset, strides)
    for row in parts:
        _fill(array[row], start + row * strides[0], strides[1:], data, first)


def _rows_in(
    count: int, array: NDArray[np.generic], start: int, strides: tuple[int, ...], data: memoryview, first: int
) -> tuple[range, tuple[int, ...]]:
    """Return which of ``count`` rows lie in the bytes as a whole, and those that the bytes begin or end within."""
    last, step = first + data.nbytes, strides[0]
    inner = zip(array.shape[1:], strides[1:], strict=True)
    row_bytes = array.itemsize + sum((extent - 1) * stride for extent, stride in inner)
    low = max(0, -((start - first) // step))
    high = min(count, (last - start - row_bytes) // step + 1)
    if array.ndim == 1:
        return range(low, high), ()
    cut_low = max(0, (first - start - row_bytes) // step + 1)
    cut_high = min(count, -((start - last) // step))
    return range(low, high), (*range(cut_low, min(low, cut_high)), *range(max(low, high), cut_high))
