"""What layouts ask of values: reductions and factors, bit by bit as specified (SPEC 12.2 and 12.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.model.spread import check_partial_dtype, check_scale_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.geometry import Reduce
    from ucpformat.model.dtype import DType

__all__ = ["reduced", "scaled"]

_QUIET_NAN: Final = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8 << 48}
_UNSIGNED: Final[dict[int, np.dtype[Any]]] = {2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
_EXACT_IN_INT64: Final = 4
"""Bytes of the widest integers of which 2^20 sum up without overflow."""


def reduced(
    contributions: Sequence[NDArray[np.generic]], kind: DType, reduce: Reduce, *, at: str = ""
) -> NDArray[np.generic]:
    """Reduce ``contributions``, in ascending order of their coordinates, to one tensor of their shape and type.

    Floats narrower than 32 bits add up in float32, others in float64, from the first contribution on; a mean is
    the sum, divided in that type; then the result is rounded once. Integers are exact; a mean rounds to even.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for a data type without such a reduction (UCP-D-078).
        MismatchError: ``UCP-E-INEXACT`` where a sum of integers does not fit (UCP-D-080).
    """
    check_partial_dtype(kind.name, reduce, at=at)
    if kind.kind == "complex":
        parts = [_parts(data, kind) for data in contributions]
        return _reduced_floats(parts, _part_name(kind), reduce).view(kind.numpy)[..., 0]
    if kind.kind == "float":
        return _reduced_floats(contributions, kind.name, reduce)
    return _reduced_integers(contributions, kind, reduce, at)


def _reduced_floats(
    contributions: Sequence[NDArray[np.generic]], name: str, reduce: Reduce
) -> NDArray[np.generic]:
    first = contributions[0]
    wide = np.dtype(np.float32 if first.dtype.itemsize < 4 else np.float64)
    if reduce == "max":
        largest = first.copy()
        for data in contributions[1:]:
            with np.errstate(invalid="ignore"):
                taken = (data.astype(wide) > largest.astype(wide)) | (_is_nan(data) & ~_is_nan(largest))
            largest = np.where(taken, data, largest)
        return largest
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        total = first.astype(wide)
        for data in contributions[1:]:
            total = total + data.astype(wide)
        if reduce == "mean":
            total = total / wide.type(len(contributions))
        rounded = np.asarray(total.astype(first.dtype))
    bits = rounded.view(_UNSIGNED[first.dtype.itemsize])
    bits[_is_nan(rounded)] = _QUIET_NAN[name]
    return rounded


def _reduced_integers(
    contributions: Sequence[NDArray[np.generic]], kind: DType, reduce: Reduce, at: str
) -> NDArray[np.generic]:
    wide = np.dtype(np.int64 if kind.item_bytes <= _EXACT_IN_INT64 else object)
    total = np.asarray(contributions[0].astype(wide))
    for data in contributions[1:]:
        other = data.astype(wide)
        total = np.asarray(np.maximum(total, other) if reduce == "max" else total + other)
    if reduce == "mean":
        count = len(contributions)
        quotient, twice = total // count, 2 * (total % count)
        up = (twice > count) | ((twice == count) & (quotient % 2 == 1))
        total = np.asarray(quotient + up.astype(wide))
    least = -(1 << kind.bits - 1) if kind.kind == "int" else 0
    if total.size and not (least <= total.min() and total.max() < least + (1 << kind.bits)):
        raise error("UCP-E-INEXACT", f"a sum of integers does not fit {kind.name}: store it wider", at=at)
    return total.astype(kind.numpy)


def scaled(data: NDArray[np.generic], kind: DType, exponent: int, *, at: str = "") -> NDArray[np.generic]:
    """Multiply by ``2**exponent``, exactly; infinities, zeros and NaN stay as they are, payloads included.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for a data type without factors (UCP-D-082).
        MismatchError: ``UCP-E-INEXACT`` where the product is not of the type: it overflows, or loses digits.
    """
    check_scale_dtype(kind.name, at=at)
    parts = _parts(data, kind) if kind.kind == "complex" else np.ascontiguousarray(data).reshape(data.shape)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        values = parts.astype(np.float64)
        products = np.ldexp(values, exponent)
        exact = np.ldexp(products, -exponent) == values
        found = np.asarray(products.astype(parts.dtype))
        exact &= found.astype(np.float64) == products
    is_nan = np.isnan(values)
    if not (exact | is_nan).all():
        raise error(
            "UCP-E-INEXACT",
            f"an element times 2**{exponent} is not of the type {kind.name}: take a wider type, or no factor",
            at=at,
        )
    bits = _UNSIGNED[parts.dtype.itemsize]
    found.view(bits)[is_nan] = parts.view(bits)[is_nan]
    return found.view(kind.numpy)[..., 0] if kind.kind == "complex" else found


def _parts(data: NDArray[np.generic], kind: DType) -> NDArray[np.generic]:
    """Return complex elements as pairs, in one dimension more."""
    part = np.dtype(f"<f{kind.item_bytes // 2}")
    return np.ascontiguousarray(data).reshape(data.shape)[..., np.newaxis].view(part)


def _part_name(kind: DType) -> str:
    return f"float{kind.item_bytes * 4}"


def _is_nan(data: NDArray[np.generic]) -> NDArray[np.bool_]:
    return np.isnan(data.astype(np.float64))
