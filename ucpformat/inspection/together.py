"""What many small tensors look like, and which magnitudes elements have: all in a few calls.

A call costs more than the elements of a bias do, and keeps other threads waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.inspection.element_sums import SlotStatistics, real_parts, values_of_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["as_doubles", "magnitudes_together", "statistics_together"]

_EXPONENTS: Final = 2048
"""Of float64: how many there are, and how many bits lie below them."""
_BELOW: Final = 52
_BIAS: Final = 1023


def as_doubles(flat: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return a copy of elements in float64; of complex ones their real and imaginary parts."""
    if flat.dtype.itemsize == 1:
        return values_of_bytes(flat.dtype)[flat.view(np.uint8)]
    with np.errstate(invalid="ignore"):  # of a NaN that signals
        return real_parts(flat).astype(np.float64)


def statistics_together(arrays: Sequence[NDArray[np.float64]]) -> list[SlotStatistics]:
    """Return the figures of each of some arrays, none of which is empty, without magnitudes.

    >>> statistics_together([np.array([1.0, -3.0]), np.array([0.0, np.inf])])[1].inf
    1
    """
    if not arrays:
        return []
    values = np.concatenate(arrays)
    sizes = [array.size for array in arrays]
    starts = _starts(sizes)
    is_zero = values == 0
    is_finite = np.isfinite(values)
    nan = inf = np.zeros(len(arrays), np.int64)
    low = high = values
    if not is_finite.all():
        is_nan = np.isnan(values)
        nan = np.add.reduceat(is_nan, starts, dtype=np.int64)
        inf = np.add.reduceat(~(is_finite | is_nan), starts, dtype=np.int64)
        low, high = np.where(is_finite, values, np.inf), np.where(is_finite, values, -np.inf)
        values = np.where(is_finite, values, 0.0)
    with np.errstate(over="ignore"):
        columns = (
            nan,
            inf,
            np.add.reduceat(is_zero, starts, dtype=np.int64),
            np.minimum.reduceat(low, starts) + 0.0,  # which has no sign where it is zero
            np.maximum.reduceat(high, starts) + 0.0,
            np.add.reduceat(values, starts),
            np.add.reduceat(values * values, starts),
        )
    return [
        _found(size, *row) for size, *row in zip(sizes, *(column.tolist() for column in columns), strict=True)
    ]


def _found(
    size: int, nan: int, inf: int, zeros: int, low: float, high: float, total: float, squares: float
) -> SlotStatistics:
    if nan + inf == size:
        return SlotStatistics(size, nan, inf)
    return SlotStatistics(size, nan, inf, zeros, low, high, total, squares)


def _starts(sizes: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)]).astype(np.int64)


def magnitudes_together(samples: Sequence[NDArray[np.float64]]) -> list[dict[int, int]]:
    """Return of each sample how many elements have an absolute value from 2**n up to 2**(n+1), by n.

    Zeros, NaN and infinities have none.

    >>> magnitudes_together([np.array([0.0, 0.5, -1.5, np.inf])])
    [{-1: 1, 0: 1}]
    """
    found: list[dict[int, int]] = [{} for _ in samples]
    for number, exponent, count in _counted(samples):
        found[number][exponent] = found[number].get(exponent, 0) + count
    return found


def _counted(samples: Sequence[NDArray[np.float64]]) -> Iterator[tuple[int, int, int]]:
    """Yield numbers of samples, exponents and how many there are."""
    if not samples:
        return
    values = np.concatenate(samples)
    fields = values.view(np.int64) >> _BELOW
    fields &= _EXPONENTS - 1
    least = (fields == 0) & (values != 0)
    fields += np.repeat(np.arange(len(samples)) * _EXPONENTS, [sample.size for sample in samples])
    counts = np.bincount(fields)
    for place in np.flatnonzero(counts).tolist():
        number, field = divmod(place, _EXPONENTS)
        if 0 < field < _EXPONENTS - 1:
            yield number, field - _BIAS, int(counts[place])
    for place in np.flatnonzero(least).tolist():  # subnormal numbers, which are rare
        yield int(fields[place]) // _EXPONENTS, int(np.frexp(values[place])[1]) - 1, 1
