"""Reductions and factors against exact fractions and a rounding of their own (SPEC 12.2 and 12.3)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.errors import UcpError
from ucpformat.geometry import Reduce
from ucpformat.model.dtype import DTYPES
from ucpformat.storage.arithmetic import reduced, scaled

# Digits of the significand, exponent of the smallest number, exponent of the largest.
FORMATS = {
    "float16": (11, -24, 15),
    "bfloat16": (8, -133, 127),
    "float32": (24, -149, 127),
    "float64": (53, -1074, 1023),
}
NAN_BITS = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8 << 48}
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
Number = Fraction | float  # infinities and NaN are floats


def rounded(value: Fraction, name: str) -> Number:
    """The nearest number of a format, ties to even, by its definition."""
    digits, smallest, largest = FORMATS[name]
    if value == 0:
        return value
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - digits + 1, smallest)
    found = round(value / unit) * unit
    return found if abs(found) < Fraction(2) ** (largest + 1) else math.inf * (1 if value > 0 else -1)


def number(element: Any) -> Number:
    value = float(element)
    return Fraction(value) if math.isfinite(value) else value


def added(first: Number, second: Number, name: str) -> Number:
    if isinstance(first, Fraction) and isinstance(second, Fraction):
        return rounded(first + second, name)
    return float(first) + float(second)  # infinities and NaN


def expected_float(values: list[Number], name: str, reduce: Reduce) -> Number:
    wide = "float64" if name in ("float32", "float64") else "float32"
    total = values[0]
    for value in values[1:]:
        total = added(total, value, wide)
    if reduce == "mean":
        total = rounded(total / len(values), wide) if isinstance(total, Fraction) else total
    return rounded(total, name) if isinstance(total, Fraction) else total


def array(bits: list[int], name: str) -> np.ndarray[Any, Any]:
    item = DTYPES[name].item_bytes
    return np.array(bits, f"<u{item}").view(DTYPES[name].numpy)


@st.composite
def contributions(draw: st.DrawFn, name: str) -> list[np.ndarray[Any, Any]]:
    item = DTYPES[name].item_bytes
    digits = FORMATS[name][0]
    patterns = st.integers(0, 256**item - 1)
    # Numbers that are near to one another, so that sums round.
    near = st.integers(0, 3 << digits).map(lambda low: (1 << (8 * item - 3)) + low)
    count, width = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    return [
        array(draw(st.lists(near | patterns, min_size=width, max_size=width)), name) for _ in range(count)
    ]


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("name", sorted(FORMATS))
@given(data=st.data())
def test_floats_are_added_in_order_and_rounded_as_fractions_say(
    name: str, reduce: Reduce, data: st.DataObject
) -> None:
    """UCP-D-079."""
    given_ = data.draw(contributions(name))
    found = reduced(given_, DTYPES[name], reduce)
    assert (found.dtype, found.shape) == (given_[0].dtype, given_[0].shape)
    for place, element in enumerate(found):
        wanted = expected_float([number(part[place]) for part in given_], name, reduce)
        if isinstance(wanted, float) and math.isnan(wanted):
            bits = found.view(f"<u{found.dtype.itemsize}")[place]
            assert int(bits) == NAN_BITS[name]
        else:
            assert number(element) == wanted


@pytest.mark.parametrize("name", sorted(FORMATS))
@given(data=st.data())
def test_the_largest_is_one_of_the_contributions_bit_by_bit(name: str, data: st.DataObject) -> None:
    given_ = data.draw(contributions(name))
    bits = reduced(given_, DTYPES[name], "max").view(f"<u{DTYPES[name].item_bytes}")
    for place in range(bits.size):
        best = 0
        for index, part in enumerate(given_):
            new, old = float(part[place]), float(given_[best][place])
            if new > old or (math.isnan(new) and not math.isnan(old)):
                best = index
        assert bits[place] == given_[best].view(bits.dtype)[place]


@pytest.mark.parametrize("name", INTEGERS)
@given(data=st.data(), reduce=st.sampled_from(["sum", "mean", "max"]))
def test_integers_are_exact(name: str, data: st.DataObject, reduce: Reduce) -> None:
    """UCP-D-080."""
    limits = np.iinfo(name)
    values = data.draw(
        st.lists(st.integers(int(limits.min), int(limits.max)) | st.integers(0, 4), min_size=1, max_size=5)
    )
    given_ = [np.array([value], DTYPES[name].numpy) for value in values]
    wanted = {"sum": sum(values), "mean": round(Fraction(sum(values), len(values))), "max": max(values)}
    if limits.min <= wanted[reduce] <= limits.max:
        assert int(reduced(given_, DTYPES[name], reduce)[0]) == wanted[reduce]
    else:
        with pytest.raises(UcpError, match="UCP-E-INEXACT"):
            reduced(given_, DTYPES[name], reduce)


def test_parts_of_complex_numbers_are_reduced_alike() -> None:
    given_ = [np.array([[1 + 1e8j]], "<c8"), np.array([[2**-24 + 1j]], "<c8"), np.array([[-1 - 1e8j]], "<c8")]
    found = reduced(given_, DTYPES["complex64"], "sum")
    parts = [reduced([part.view("<f4") for part in given_], DTYPES["float32"], "sum")]
    assert found.shape == (1, 1)
    assert np.array_equal(found.view("<f4"), parts[0])
    assert reduced(given_, DTYPES["complex64"], "mean").dtype == np.dtype("<c8")


def test_shapes_without_dimensions_and_without_elements() -> None:
    for shape in ((), (0,), (2, 0, 3)):
        for name in ("float32", "bfloat16", "int64", "complex128"):
            kind = DTYPES[name]
            data = np.ones(shape, kind.numpy)
            for reduce in ("sum", "mean"):
                found = reduced([data, data], kind, reduce)
                assert (found.shape, found.dtype) == (shape, kind.numpy)
            if kind.kind in ("float", "complex"):
                assert scaled(data, kind, 1).shape == shape


@pytest.mark.parametrize(
    ("name", "reduce"), [("bool", "max"), ("int4", "sum"), ("float8_e5m2", "mean"), ("complex64", "max")]
)
def test_other_types_are_not_reduced(name: str, reduce: Reduce) -> None:
    """UCP-D-078."""
    with pytest.raises(UcpError, match="UCP-E-LAYOUT"):
        reduced([np.zeros(2, DTYPES[name].numpy)], DTYPES[name], reduce)


@pytest.mark.parametrize("name", sorted(FORMATS))
@given(data=st.data())
def test_factors_are_exact_or_refused(name: str, data: st.DataObject) -> None:
    """UCP-R-019."""
    item = DTYPES[name].item_bytes
    element = array([data.draw(st.integers(0, 256**item - 1))], name)
    exponent = data.draw(st.integers(-40, 40) | st.integers(-4096, 4096))
    value = number(element[0])
    bits = element.view(f"<u{item}")
    if not isinstance(value, Fraction) or value == 0:
        assert scaled(element, DTYPES[name], exponent).view(bits.dtype) == bits
        return
    wanted = value * Fraction(2) ** exponent
    if rounded(wanted, name) == wanted:
        assert number(scaled(element, DTYPES[name], exponent)[0]) == wanted
    else:
        with pytest.raises(UcpError, match="UCP-E-INEXACT"):
            scaled(element, DTYPES[name], exponent)


def test_strided_and_complex_memory_is_scaled() -> None:
    data = np.arange(12, dtype="<f4").reshape(3, 4).T
    assert np.array_equal(scaled(data, DTYPES["float32"], -2), data / 4)
    numbers = (np.arange(6) + 1j).astype("<c16").reshape(2, 3)
    assert np.array_equal(scaled(numbers, DTYPES["complex128"], 3), numbers * 8)


@pytest.mark.parametrize("name", ["bool", "int32", "float8_e4m3fn", "float8_e8m0fnu"])
def test_other_types_have_no_factors(name: str) -> None:
    """UCP-D-082."""
    with pytest.raises(UcpError, match="UCP-E-LAYOUT"):
        scaled(np.zeros(2, DTYPES[name].numpy), DTYPES[name], 1)
