"""What some elements look like, block by block, each of which stays in the processor's cache.

Of floating-point numbers, the order of their bits as integers gives the least and the largest one, and whether any is
NaN, infinite or zero: integers compare faster, and NaN needs no care. Of data types of one byte, elements are counted
by value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ucpformat.storage.host_memory import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike, NDArray

__all__ = ["BLOCK_BYTES", "SlotStatistics", "add_elements", "real_parts", "values_of_bytes"]

BLOCK_BYTES: Final = 1 << 22
"""Bytes that are summed together, as they are or converted: so many that threads seldom wait for a call."""

_SHORT: Final = 1 << 10
"""Elements that are added in the data type that they are looked at in, as a row, before float64 takes over."""
_PAIRS: Final = 1 << 18
"""Of bytes that are counted together; `numpy.bincount` makes integers of 64 bits of them."""
_LEAST_LARGEST: Final = 1e-15
_MOST_LARGEST: Final = 1e15
"""Between these, squares of the largest element fit float32, and those that do not count for nothing beside them."""


@dataclass(slots=True)
class SlotStatistics:
    """Of a slot's elements; those of complex numbers are their real and imaginary parts, of bools 0 and 1.

    Attributes:
        count: how many elements there are.
        nan: how many of them are NaN.
        inf: how many are infinite.
        zeros: how many are zero.
        minimum: the least finite one; None where none is finite.
        maximum: the largest finite one.
        total: the sum of the finite ones, in float64; of floats of 32 and 16 bits, a thousand at a time in float32.
        squares: the sum of their squares.
        magnitudes: of some elements that are neither zero nor infinite, how many have an absolute value from 2**n up to
            2**(n+1), by n: all of a small tensor, evenly distant ones of a large one.
    """

    count: int = 0
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    minimum: float | None = None
    maximum: float | None = None
    total: float = 0.0
    squares: float = 0.0
    magnitudes: dict[int, int] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """The mean of the finite elements; None where there is none."""
        finite = self.count - self.nan - self.inf
        return self.total / finite if finite else None

    @property
    def norm(self) -> float:
        """The Euclidean norm of the finite elements."""
        return math.sqrt(self.squares)

    def add(self, other: SlotStatistics) -> None:
        """Take other elements in."""
        self.count += other.count
        self.nan += other.nan
        self.inf += other.inf
        self.zeros += other.zeros
        if other.minimum is not None and other.maximum is not None:
            self.add_range(other.minimum, other.maximum)
        self.total += other.total
        self.squares += other.squares
        for exponent, count in other.magnitudes.items():
            self.magnitudes[exponent] = self.magnitudes.get(exponent, 0) + count

    def add_range(self, low: float, high: float) -> None:
        """Take in the least and the largest of other elements."""
        self.minimum = low if self.minimum is None else min(self.minimum, low)
        self.maximum = high if self.maximum is None else max(self.maximum, high)

    def to_json(self) -> dict[str, object]:
        """Return it for JSON, which has no infinities: a sum that overflows is None."""

        def number(value: float | None) -> float | None:
            return value if value is not None and math.isfinite(value) else None

        return {
            "count": self.count,
            "nan": self.nan,
            "inf": self.inf,
            "zeros": self.zeros,
            "min": number(self.minimum),
            "max": number(self.maximum),
            "mean": number(self.mean),
            "norm": number(self.norm),
            "magnitudes": {str(exponent): self.magnitudes[exponent] for exponent in sorted(self.magnitudes)},
        }


def add_elements(found: SlotStatistics, flat: NDArray[np.generic]) -> None:
    """Add all figures of elements but their magnitudes; memory is that of a few blocks."""
    if flat.dtype.itemsize == 1:
        _add_counted(found, flat)
        return
    flat = real_parts(flat)
    look, step = _way(flat.dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # sums, and a NaN that signals as it is converted
        for low in range(0, flat.size, step):
            look(found, flat[low : low + step])


_SCRATCH: Final = Scratch()
"""For a block: fresh memory would cost more than the sums."""


def _room(size: int, kind: DTypeLike) -> NDArray[Any]:
    """Return memory for so many elements, until this thread asks again."""
    nbytes = size * np.dtype(kind).itemsize
    return _SCRATCH.take(nbytes)[:nbytes].view(kind)


def real_parts(flat: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return elements, complex ones as their real and imaginary parts."""
    if flat.dtype.kind != "c":
        return flat
    return flat.view(np.float32 if flat.dtype.itemsize == 8 else np.float64)


class _Bits(NamedTuple):
    """A floating-point type as integers: those of its width, and the bits of infinity, of its magnitude and sign."""

    signed: DTypeLike
    unsigned: DTypeLike
    infinity: int
    sign: int


_BITS: Final = {
    "float16": _Bits(np.int16, np.uint16, 0x7C00, 1 << 15),
    "bfloat16": _Bits(np.int16, np.uint16, 0x7F80, 1 << 15),
    "float32": _Bits(np.int32, np.uint32, 0x7F80_0000, 1 << 31),
    "float64": _Bits(np.int64, np.uint64, 0x7FF0 << 48, 1 << 63),
}


def _range(bits: _Bits, block: NDArray[Any]) -> tuple[float, float, bool] | None:
    """Return the least and the largest element, and whether any is zero; None where one is not finite."""
    unsigned = block.view(bits.unsigned)
    highest = int(np.maximum.reduce(block.view(bits.signed)))
    furthest = int(np.maximum.reduce(unsigned))
    if highest >= bits.infinity or furthest >= bits.sign | bits.infinity:
        return None
    nearest = int(np.minimum.reduce(unsigned))
    low = furthest if furthest >= bits.sign else nearest
    high = highest if highest >= 0 else nearest
    ends = np.array([low, high], bits.unsigned).view(block.dtype).astype(np.float64)
    has_zero = nearest == 0
    if not has_zero and furthest >= bits.sign:  # or one with a sign
        has_zero = int(np.minimum.reduce(block.view(bits.signed))) & (2 * bits.sign - 1) == bits.sign
    return float(ends[0]) + 0.0, float(ends[1]) + 0.0, has_zero


def _add_short(bits: _Bits, found: SlotStatistics, block: NDArray[Any]) -> None:
    """Add floats of 32 bits or less: their sums in float32, where that has the range for them."""
    ends = _range(bits, block)
    largest = 0.0 if ends is None else max(-ends[0], ends[1])
    if ends is None or not (_LEAST_LARGEST < largest < _MOST_LARGEST or largest == 0):
        _add_wide(found, block)
        return
    found.count += block.size
    found.add_range(ends[0], ends[1])
    if largest == 0:
        found.zeros += block.size
        return
    values = _as_float32(block)
    _add_sums(found, values)
    if ends[2]:
        found.zeros += int(np.count_nonzero(values == 0))


def _converted(block: NDArray[Any]) -> NDArray[np.float32]:
    values = _room(block.size, np.float32)
    np.copyto(values, block, casting="unsafe")
    return values


def _from_float16(block: NDArray[Any]) -> NDArray[np.float32]:
    """Move sign, exponent and mantissa to where float32 has them: numpy converts one element after another."""
    words = _room(block.size, np.int32)
    np.copyto(words, block.view(np.int16))  # with the sign in all upper bits
    np.left_shift(words, 13, out=words)
    np.bitwise_and(words, np.int32(-0x7000_0001), out=words)
    values = words.view(np.float32)
    np.multiply(values, np.float32(2.0**112), out=values)  # the difference of the biases
    return values


def _as_float32(block: NDArray[Any]) -> NDArray[np.float32]:
    if block.dtype == np.float32:
        return block
    return _from_float16(block) if block.dtype == np.float16 else _converted(block)


def _add_double(bits: _Bits, found: SlotStatistics, block: NDArray[Any]) -> None:
    ends = _range(bits, block)
    if ends is None:
        _add_wide(found, block)
        return
    found.count += block.size
    found.add_range(ends[0], ends[1])
    _add_sums(found, block)
    if ends[2]:
        found.zeros += int(np.count_nonzero(block == 0))


def _add_wide(found: SlotStatistics, block: NDArray[Any]) -> None:
    """Add any elements, as float64."""
    values = _room(block.size, np.float64)
    np.copyto(values, block, casting="unsafe")
    found.count += values.size
    is_finite = None if block.dtype.kind in "iu" else np.isfinite(values)
    if is_finite is not None and not is_finite.all():
        nan = int(np.isnan(values).sum())
        found.nan += nan
        found.inf += values.size - int(np.count_nonzero(is_finite)) - nan
        values = values[is_finite]
    if values.size:
        found.add_range(float(values.min()), float(values.max()))
        _add_sums(found, values)
        found.zeros += int(np.count_nonzero(values == 0))


@lru_cache(maxsize=64)
def _way(kind: np.dtype[Any]) -> tuple[Callable[[SlotStatistics, NDArray[Any]], None], int]:
    """Return how elements of a type are added, and how many at a time."""
    bits = _BITS.get(kind.name)
    if bits is None:
        return _add_wide, BLOCK_BYTES // 8
    if kind == np.float64:
        return partial(_add_double, bits), BLOCK_BYTES // 8
    return partial(_add_short, bits), BLOCK_BYTES // 4


def _add_sums(found: SlotStatistics, values: NDArray[Any]) -> None:
    """Add the sum and that of squares: of rows that are too short for BLAS to start threads of its own."""
    whole = values.size // _SHORT * _SHORT
    for part in (values[:whole].reshape(-1, 1, _SHORT), values[whole:].reshape(1, 1, -1)):
        if part.size:
            # One call for all rows, as threads wait for one another between calls.
            ones = _ones(part.shape[2], values.dtype)
            found.total += float(np.add.reduce(np.matmul(part, ones), axis=None, dtype=np.float64))
            squares = np.matmul(part, part.transpose(0, 2, 1))
            found.squares += float(np.add.reduce(squares, axis=None, dtype=np.float64))


@lru_cache(maxsize=64)
def _ones(size: int, kind: np.dtype[Any]) -> NDArray[Any]:
    return np.ones((size, 1), kind)


def _add_counted(found: SlotStatistics, flat: NDArray[np.generic]) -> None:
    """Add elements of one byte."""
    counts = _counts(flat)
    values = values_of_bytes(flat.dtype)
    is_nan, is_finite = np.isnan(values), np.isfinite(values)
    found.count += flat.size
    found.nan += int(counts[is_nan].sum())
    found.inf += int(counts[~is_finite & ~is_nan].sum())
    found.zeros += int(counts[values == 0].sum())
    (there,) = np.nonzero((counts > 0) & is_finite)
    if there.size:
        some, times = values[there], counts[there]
        found.add_range(float(some.min()), float(some.max()))
        with np.errstate(over="ignore"):
            found.total += math.fsum((some * times).tolist())
            found.squares += math.fsum((some * some * times).tolist())


def _counts(flat: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return how many elements have each of the 256 values: counted in pairs, where there are many."""
    octets = flat.view(np.uint8)
    counts = np.zeros(256, np.int64)
    pairs = octets.size // 2 if octets.size >= _PAIRS else 0
    if pairs:
        of_pairs = np.zeros(1 << 16, np.int64)
        words = octets[: 2 * pairs].view(np.uint16)
        for low in range(0, pairs, _PAIRS):
            of_pairs += np.bincount(words[low : low + _PAIRS], minlength=1 << 16)
        by_half = of_pairs.reshape(256, 256)
        counts += by_half.sum(axis=0) + by_half.sum(axis=1)
    return counts + np.bincount(octets[2 * pairs :], minlength=256)


@lru_cache(maxsize=64)
def values_of_bytes(kind: np.dtype[Any]) -> NDArray[np.float64]:
    """Return what each byte stands for; those of types of four bits have their upper bits zero."""
    octets = np.arange(256, dtype=np.uint8)
    if kind.name in ("int4", "float4_e2m1fn"):
        octets &= 15
    if kind == np.bool_:
        return np.minimum(octets, 1).astype(np.float64)
    return octets.view(kind).astype(np.float64)
