"""Figures of elements against those of numpy in float64, and of one number after another."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inspection.test_statistics import expected
from ucpformat.inspection import element_sums as module
from ucpformat.inspection.element_sums import SlotStatistics, add_elements
from ucpformat.model.dtype import DTYPES

FLOATS = sorted(name for name, entry in DTYPES.items() if entry.kind == "float")


def figures(data: np.ndarray[Any, Any]) -> SlotStatistics:
    found = SlotStatistics()
    add_elements(found, data.reshape(-1))
    return found


@given(
    dtype=st.sampled_from(FLOATS),
    values=st.lists(
        st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, -3.0, 2.0**-20, math.nan, math.inf, -math.inf])
    ),
)
def test_signs_zeros_and_what_is_not_finite_are_counted_exactly(dtype: str, values: list[float]) -> None:
    with np.errstate(all="ignore"):
        data = np.array(values, np.float64).astype(DTYPES[dtype].numpy)
    found = figures(data)
    for name, value in expected(data).items():
        assert found.to_json()[name] == value, name
    finite = [float(one) for one in data if math.isfinite(float(one))]
    assert found.total == pytest.approx(math.fsum(finite), rel=1e-6)
    assert found.squares == pytest.approx(math.fsum(one * one for one in finite), rel=1e-6)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("size", [1000, 700_001])
def test_sums_of_many_elements_are_those_of_numpy(dtype: str, size: int) -> None:
    numbers = np.random.default_rng(0).standard_normal(size) * 3 + 1
    data = (
        numbers.astype(np.float32)
        .clip(0 if dtype != "float8_e8m0fnu" else 0.1, 7)
        .astype(DTYPES[dtype].numpy)
    )
    wide = data.astype(np.float64 if DTYPES[dtype].kind != "complex" else np.complex128).view(np.float64)
    found = figures(data)
    assert found.count == wide.size
    assert found.zeros == int(np.count_nonzero(wide == 0))
    assert (found.minimum, found.maximum) == (wide.min(), wide.max())
    assert found.total == pytest.approx(wide.sum(), rel=1e-6)
    assert found.norm == pytest.approx(np.linalg.norm(wide), rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_one_odd_element_of_many_is_found(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 1 << 12)
    ones = np.ones(10_000, DTYPES[dtype].numpy)
    for value, name in (
        (np.nan, "nan"),
        (-np.nan, "nan"),
        (np.inf, "inf"),
        (-np.inf, "inf"),
        (-0.0, "zeros"),
    ):
        for place in (0, 4321, 9999):
            data = ones.copy()
            data[place] = value
            found = figures(data)
            assert getattr(found, name) == 1
            assert (found.count, found.total) == (10_000, 9_999)


def test_every_float16_is_converted_as_numpy_does() -> None:
    data = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    data = data[np.isfinite(data)]
    assert np.array_equal(module._from_float16(data), data.astype(np.float32))
