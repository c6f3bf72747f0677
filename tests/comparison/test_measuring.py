"""By how much elements differ, against what numpy and Python's fractions say of each."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import bits
from ucpformat.comparison.measuring import Measure, TensorDifference
from ucpformat.geometry import Box
from ucpformat.model.dtype import DTYPES


def measured(name: str, a: Any, b: Any) -> TensorDifference:
    """Measured in two boxes, where there are two rows."""
    kind = DTYPES[name]
    measure = Measure(kind, a.shape)
    cuts = [0, a.shape[0] // 2, a.shape[0]] if a.ndim else []
    for first, stop in pairwise(cuts):
        box = Box((first, *(0,) * (a.ndim - 1)), (stop - first, *a.shape[1:]))
        measure.add(box, np.ascontiguousarray(a[first:stop]), np.ascontiguousarray(b[first:stop]))
    if not a.ndim:
        measure.add(Box((), ()), a, b)
    return measure.result()


NAMES = sorted(name for name, kind in DTYPES.items() if kind.kind != "complex")


@given(
    st.sampled_from(NAMES),
    st.integers(0, 2**32),
    st.sampled_from([(), (1,), (7,), (1, 6), (5, 3), (2, 1, 4)]),
)
def test_against_exact_arithmetic(name: str, seed: int, shape: tuple[int, ...]) -> None:
    kind = DTYPES[name]
    a, b = bits(seed, shape, kind), bits(seed + 1, shape, kind)
    rng = np.random.default_rng(seed)
    keep = rng.random(shape) < 0.6
    b = np.where(keep, a, b).astype(a.dtype).reshape(shape)
    # What `where` makes of a NaN need not have its bits.
    view = f"u{kind.item_bytes}"
    b = np.where(keep, a.view(view), b.view(view)).astype(view).view(a.dtype).reshape(shape)
    found = measured(name, a, b)
    differs = a.view(view) != b.view(view)
    assert found.changed == np.count_nonzero(differs)
    dim = next((number for number, extent in enumerate(shape) if extent != 1), None)
    rows = np.moveaxis(differs, dim, 0).reshape(shape[dim], -1).any(1) if dim is not None else [differs.any()]
    assert (found.rows, found.changed_rows) == (len(rows), int(np.count_nonzero(rows)))
    assert [row for first, stop in found.ranges for row in range(first, stop)] == np.flatnonzero(
        rows
    ).tolist()
    numbers = [*zip(a[differs], b[differs], strict=True)]
    finite: list[tuple[Any, Any]]
    if kind.kind == "float":
        floats = [(float(x), float(y)) for x, y in numbers]
        finite = [pair for pair in floats if all(map(math.isfinite, pair))]
        both_nan = sum(all(map(math.isnan, pair)) for pair in floats)
        assert found.nonfinite == len(floats) - len(finite) - both_nan
    else:
        finite = [(int(x), int(y)) for x, y in numbers]
        assert (found.nonfinite, found.max_ulp) == (0, None)
    gaps: list[tuple[Fraction, Fraction]] = [
        (abs(Fraction(x) - Fraction(y)), max(abs(Fraction(x)), abs(Fraction(y)))) for x, y in finite
    ]
    assert found.max_abs == pytest.approx(float(max((gap for gap, _ in gaps), default=0)), rel=1e-12)
    relative = max((Fraction(gap, large) for gap, large in gaps if large), default=Fraction(0))
    assert found.max_rel == pytest.approx(float(relative), rel=1e-12)
    deviation = max((Fraction(gap, max(large, Fraction(1))) for gap, large in gaps), default=Fraction(0))
    assert found.deviation == pytest.approx(float(deviation), rel=1e-12)


FLOATS = sorted(name for name, kind in DTYPES.items() if kind.kind == "float" and kind.item_bytes == 1)


@pytest.mark.parametrize("name", FLOATS)
def test_steps_count_the_numbers_between(name: str) -> None:
    """Of all pairs of finite numbers of each type of a byte: the distance in the sorted list of its numbers."""
    kind = DTYPES[name]
    every = np.arange(1 << kind.bits, dtype=np.uint8).view(kind.numpy)
    finite = every[np.isfinite(every.astype(np.float32))]
    values = sorted({float(one) for one in finite})
    place = {value: number for number, value in enumerate(values)}
    for one in finite:
        for other in finite[:: max(1, finite.size // 40)]:
            found = measured(name, np.array([one]), np.array([other]))
            assert found.max_ulp == abs(place[float(one)] - place[float(other)])


@pytest.mark.parametrize("native", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_neighbours_are_one_step_apart(native: Any) -> None:
    name = np.dtype(native).name
    for value in (0.0, 1.0, -1.5, 1e-4):
        a = np.array([value], native)
        b = np.nextafter(a, np.array([np.inf], native))
        assert measured(name, a, b).max_ulp == 1
    assert measured(name, np.array([-0.0], native), np.array([0.0], native)).max_ulp == 0
    tiny = np.nextafter(np.array([0], native), np.array([1], native))
    assert measured(name, -tiny, tiny).max_ulp == 2


def test_the_largest_numbers_do_not_overflow() -> None:
    huge = np.array([np.finfo(np.float64).max])
    found = measured("float64", huge, -huge)
    assert found.max_abs == np.finfo(np.float64).max
    assert found.max_ulp == 2 * int(huge.view(np.uint64)[0])
    found = measured("int64", np.array([-(2**63)]), np.array([2**63 - 1]))
    assert found.max_abs == 2**64 - 1


def test_what_is_not_finite_is_counted_and_never_within_a_tolerance() -> None:
    a = np.array([1.0, np.nan, np.inf, np.inf], np.float32)
    b = np.array([np.nan, np.nan, np.inf, -np.inf], np.float32)
    b.view(np.uint32)[1] |= 1  # another NaN
    found = measured("float32", a, b)
    assert (found.changed, found.nonfinite, found.max_abs) == (3, 2, 0)
    assert not found.is_within(1e30)
    assert "2 not finite" in str(found)


def test_complex_numbers_count_by_their_parts() -> None:
    for name in ("complex64", "complex128"):
        a = np.array([[1 + 2j, 3 + 4j]], name)
        b = np.array([[1 + 2j, 3 + 5j]], name)
        found = measured(name, a, b)
        assert (found.changed, found.max_abs, found.max_rel) == (1, 1, 0.2)
        assert (found.rows, found.changed_rows, found.ranges) == (2, 1, ((1, 2),))
        assert found.max_ulp
