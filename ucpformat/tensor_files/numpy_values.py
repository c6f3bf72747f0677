"""numpy's arrays, scalars and data types inside pickles, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ucpformat.model.atom import MAX_NDIM
from ucpformat.tensor_files.stand_ins import NumpyArray, NumpyDtype

__all__ = [
    "NumpyArrayDraft",
    "NumpyDtypeDraft",
    "extents_of",
    "integers",
    "numpy_array",
    "numpy_dtype_draft",
    "numpy_item_size",
]


@dataclass(slots=True, eq=False)
class NumpyDtypeDraft:
    """``numpy.dtype(code, ...)`` before its state says the byte order."""

    code: str

    def finish(self, state: object) -> NumpyDtype:
        """Return the data type that the state of BUILD completes. Raises ValueError."""
        # (version, byte order, subarray, names, fields, item size, alignment, flags[, datetime metadata])
        if not isinstance(state, tuple) or len(state) != 8 or state[1] not in ("<", ">", "|"):
            raise ValueError("a numpy data type of an unknown kind")
        if any(part is not None for part in state[2:5]):
            raise ValueError("structured numpy data types are not supported")
        return NumpyDtype(f"{state[1]}{self.code}")


@dataclass(slots=True, eq=False)
class NumpyArrayDraft:
    """``numpy.core.multiarray._reconstruct(ndarray, (0,), b'b')`` before its state arrives."""

    def finish(self, state: object) -> NumpyArray:
        """Return the array that the state of BUILD completes. Raises ValueError."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("a numpy array of an unknown kind")
        _, shape, dtype, fortran, data = state
        return numpy_array(data, dtype, shape, "F" if fortran else "C")


def numpy_dtype_draft(code: object) -> object:
    """Return the stand-in for ``numpy.dtype(code, False, True)``; only numbers and fixed-width text.

    Raises ValueError and TypeError.
    """
    if not isinstance(code, str):  # not shown: showing what nests and shares without bound never ends
        raise ValueError("a numpy data type that is not named")
    if code[:1] not in tuple("biufcSU") or not code[1:].isdecimal() or len(code) > 8:
        raise ValueError(f"numpy data type {code!r:.40} is not supported")
    np.dtype(code)  # of a width that there is; TypeError
    return NumpyDtypeDraft(code)


def numpy_array(data: object, dtype: object, shape: object, order: object) -> NumpyArray:
    """Return a `NumpyArray` in C order from raw bytes in ``order`` (``C`` or ``F``). Raises ValueError."""
    if not isinstance(dtype, NumpyDtype) or not isinstance(data, bytes | bytearray):
        raise ValueError("a numpy array whose elements are not plain data")
    extents = extents_of(shape)
    size = numpy_item_size(dtype)
    count = 1
    for extent in extents:
        count *= extent
    if count * size != len(data) or size == 0:
        raise ValueError("a numpy array whose shape does not fit its data")
    if order == "F":
        data = np.frombuffer(data, dtype=f"V{size}").reshape(extents, order="F").tobytes()
    return NumpyArray(dtype.name, extents, bytes(data))


def numpy_item_size(dtype: NumpyDtype) -> int:
    """Return bytes of one element."""
    return int(dtype.name[2:]) * (4 if dtype.name[1] == "U" else 1)


def integers(value: object) -> tuple[int, ...]:
    """Return ``value`` as a tuple of integers that are not negative. Raises ValueError."""
    if not isinstance(value, tuple | list) or not all(
        type(item) is int and 0 <= item < 2**63 for item in value
    ):
        raise ValueError("expected a tuple of integers that are not negative")
    return tuple(value)


def extents_of(value: object) -> tuple[int, ...]:
    """Return ``value`` as a shape or strides, of few enough dimensions to multiply cheaply. Raises ValueError."""
    if isinstance(value, tuple | list) and len(value) > MAX_NDIM:
        raise ValueError(f"a tensor has at most {MAX_NDIM} dimensions, not {len(value)}")
    return integers(value)
