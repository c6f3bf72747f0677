"""By how much the elements of two tensors of one shape and data type differ."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.storage.reading.layers import row_dim

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.dtype import DType

__all__ = ["Measure", "TensorDifference"]

_RANGES: Final = 1000
_UNSIGNED: Final = "float8_e8m0fnu"


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """By how much the elements of one tensor differ.

    A row is an index along the first dimension whose extent is not 1; where there is none, the tensor is one row.

    Attributes:
        rows: how many rows the tensor has.
        changed_rows: how many of them have an element that differs in any bit.
        ranges: the changed rows as half-open ranges, the first thousand of them.
        changed: how many elements differ in any bit.
        max_abs: the largest absolute difference of two elements that are both finite.
        max_rel: the largest of these differences divided by the larger of both magnitudes.
        max_ulp: the most steps from one element to the other, through all numbers of the data type that lie between;
            None for integers and booleans.
        deviation: the largest of these differences divided by 1, or by the larger of both magnitudes if that is more:
            what a tolerance is compared with.
        nonfinite: how many elements differ of which one or both are infinite, or just one is NaN.

    Complex numbers count by their real and imaginary parts, but are one element in ``changed``.

    >>> report = ucp.save("a.ucp", {"w": np.array([1.0, 2.0, 3.0])})
    >>> report = ucp.save("b.ucp", {"w": np.array([1.0, 2.5, 3.0])})
    >>> tensor = ucp.diff("a.ucp", "b.ucp").differences[0].tensor
    >>> tensor.changed_rows, tensor.ranges, tensor.max_abs, tensor.max_rel
    (1, ((1, 2),), 0.5, 0.2)
    """

    rows: int
    changed_rows: int
    ranges: tuple[tuple[int, int], ...]
    changed: int
    max_abs: float | int
    max_rel: float
    max_ulp: int | None
    deviation: float
    nonfinite: int

    def __str__(self) -> str:
        if not self.changed:
            return "no element differs"
        rows = f"{self.changed_rows:,} of {self.rows:,} rows" if self.rows > 1 else "all of 1 row"
        ulp = "" if self.max_ulp is None else f", {self.max_ulp:,} ULP"
        by = f"{self.max_abs:.3g} absolute, {self.max_rel:.3g} relative{ulp}"
        words = f"{rows}, {self.changed:,} element{'s' if self.changed > 1 else ''}; at most {by}"
        return f"{words}; {self.nonfinite:,} not finite" if self.nonfinite else words

    def is_within(self, tolerance: float) -> bool:
        """Return whether no element differs by more than ``tolerance``, and none that is not finite differs.

        >>> difference.tensor.is_within(0.01), difference.tensor.is_within(0.5)
        (False, True)
        """
        return not self.nonfinite and self.deviation <= tolerance

    def to_json(self) -> dict[str, JsonValue]:
        """Return the object that ``ucp diff --format json`` prints.

        >>> sorted(difference.tensor.to_json())[:4]
        ['changed', 'changed_rows', 'deviation', 'max_abs']
        """
        return {
            "rows": self.rows,
            "changed_rows": self.changed_rows,
            "ranges": [list(one) for one in self.ranges],
            "changed": self.changed,
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "max_ulp": self.max_ulp,
            "deviation": self.deviation,
            "nonfinite": self.nonfinite,
        }


class Measure:
    """Takes boxes of two tensors of one shape and data type, each element at most once, and measures them."""

    def __init__(self, kind: DType, shape: tuple[int, ...]) -> None:
        self._kind = kind
        self._dim = row_dim(shape) if any(extent != 1 for extent in shape) else None
        # A byte for each row, of a vector for each element.
        self._rows = np.zeros(1 if self._dim is None else shape[self._dim], bool)
        self._changed = self._nonfinite = 0
        self._max_abs: float | int = 0 if kind.kind in ("bool", "int", "uint") else 0.0
        self._max_rel = self._deviation = 0.0
        self._max_ulp = 0

    def add(self, box: Box, a: NDArray[Any], b: NDArray[Any]) -> None:
        """Compare what both have of ``box``, in arrays of its shape that are contiguous."""
        bits_of_a, bits_of_b = _bits(a, self._kind), _bits(b, self._kind)
        differs = bits_of_a != bits_of_b
        if not differs.any():
            return
        if self._dim is None:
            self._rows[0] = True
        else:
            others = tuple(dim for dim in range(differs.ndim) if dim != self._dim)
            self._rows[box.offset[self._dim] : box.stop[self._dim]] |= differs.any(axis=others)
        self._changed += int(np.count_nonzero(differs))
        if self._kind.kind in ("float", "complex"):
            self._add_floats(a[differs], b[differs])
        else:
            self._add_integers(a[differs], b[differs])

    def _add_floats(self, a: NDArray[Any], b: NDArray[Any]) -> None:
        if self._kind.kind == "complex":
            part = np.dtype(f"<f{self._kind.item_bytes // 2}")
            a, b = a.view(part), b.view(part)
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(wide_a) & np.isfinite(wide_b)
        has_other_bits = a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")
        self._nonfinite += int(
            np.count_nonzero(~finite & ~(np.isnan(wide_a) & np.isnan(wide_b)) & has_other_bits)
        )
        if not finite.any():
            return
        wide_a, wide_b = wide_a[finite], wide_b[finite]
        with np.errstate(over="ignore"):
            difference = np.minimum(np.abs(wide_a - wide_b), sys.float_info.max)
        self._add(difference, np.maximum(np.abs(wide_a), np.abs(wide_b)))
        self._max_abs = max(self._max_abs, float(difference.max()))
        self._max_ulp = max(self._max_ulp, _steps(a[finite], b[finite], self._kind))

    def _add_integers(self, a: NDArray[Any], b: NDArray[Any]) -> None:
        kind = np.uint64 if self._kind.kind != "int" else np.int64
        wide_a, wide_b = a.astype(kind), b.astype(kind)
        # Modulo 2^64, which the difference of the larger and the smaller never exceeds.
        larger, smaller = (
            np.maximum(wide_a, wide_b).view(np.uint64),
            np.minimum(wide_a, wide_b).view(np.uint64),
        )
        difference = larger - smaller
        magnitudes = np.maximum(np.abs(wide_a.astype(np.float64)), np.abs(wide_b.astype(np.float64)))
        self._add(difference.astype(np.float64), magnitudes)
        self._max_abs = max(self._max_abs, int(difference.max()))

    def _add(self, difference: NDArray[np.float64], magnitudes: NDArray[np.float64]) -> None:
        relative = np.divide(difference, magnitudes, out=np.zeros_like(difference), where=magnitudes > 0)
        self._max_rel = max(self._max_rel, float(relative.max()))
        self._deviation = max(self._deviation, float((difference / np.maximum(magnitudes, 1)).max()))

    def result(self) -> TensorDifference:
        """Return what came of all boxes."""
        edges = np.flatnonzero(np.diff(self._rows, prepend=False, append=False))
        ranges = edges[: 2 * _RANGES].reshape(-1, 2).tolist()
        return TensorDifference(
            rows=self._rows.size,
            changed_rows=int(np.count_nonzero(self._rows)),
            ranges=tuple((first, stop) for first, stop in ranges),
            changed=self._changed,
            max_abs=self._max_abs,
            max_rel=self._max_rel,
            max_ulp=self._max_ulp if self._kind.kind in ("float", "complex") else None,
            deviation=self._deviation,
            nonfinite=self._nonfinite,
        )


def _bits(data: NDArray[Any], kind: DType) -> NDArray[Any]:
    """Return the bits of each element that hold its value, so that equal ones are equal."""
    if kind.item_bytes == 16:
        return data.view([("real", "<u8"), ("imaginary", "<u8")])
    bits = data.view(f"<u{kind.item_bytes}")
    mask = None if kind.kind == "bool" else kind.used_mask
    return bits if mask is None else bits & np.uint8(mask)


def _steps(a: NDArray[Any], b: NDArray[Any], kind: DType) -> int:
    """Return the most steps between two finite numbers of one floating-point type, by the order of their bits."""
    width = min(kind.bits, 8 * a.itemsize)
    has_sign = kind.name != _UNSIGNED
    sides = [data.view(f"<u{data.itemsize}").astype(np.uint64) for data in (a, b)]
    sign, magnitude = np.uint64(width - 1), np.uint64((1 << width - 1) - 1 if has_sign else (1 << width) - 1)
    far = [side & magnitude for side in sides]
    is_opposite = (sides[0] >> sign ^ sides[1] >> sign) & np.uint64(has_sign)
    between = np.maximum(*far) - np.minimum(*far)
    return int(np.where(is_opposite > 0, far[0] + far[1], between).max())
