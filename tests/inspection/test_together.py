"""Figures of many tensors at once against those of each alone, and magnitudes against those that numpy tells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import bits
from ucpformat.inspection.element_sums import SlotStatistics, add_elements
from ucpformat.inspection.together import as_doubles, magnitudes_together, statistics_together
from ucpformat.model.dtype import DTYPES

ODD = [0.0, -0.0, 5e-324, -1e-310, 1.0, -1.5, 2.0**1023, math.nan, -math.nan, math.inf, -math.inf]


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DTYPES)), st.integers(1, 40), st.integers(0, 1 << 20)), max_size=6
    )
)
def test_figures_are_those_of_each_alone(drawn: list[tuple[str, int, int]]) -> None:
    arrays = [np.asarray(bits(seed, (size,), DTYPES[dtype])) for dtype, size, seed in drawn]
    together = statistics_together([as_doubles(array) for array in arrays])
    for array, found in zip(arrays, together, strict=True):
        alone = SlotStatistics()
        add_elements(alone, array)
        ours, theirs = found.to_json(), alone.to_json()
        for name in ("count", "nan", "inf", "zeros", "min", "max"):
            assert ours[name] == theirs[name], (array.dtype, name)
        for ours_sum, sums in ((found.total, alone.total), (found.squares, alone.squares)):
            assert ours_sum == pytest.approx(sums, rel=1e-6, abs=1e-6 * math.sqrt(alone.squares))


@given(st.lists(st.lists(st.sampled_from(ODD) | st.floats(), min_size=1, max_size=9), max_size=4))
def test_magnitudes_are_powers_of_two_at_and_below_each_element(drawn: list[list[float]]) -> None:
    expected: list[dict[int, int]] = []
    for values in drawn:
        counts: dict[int, int] = {}
        for value in values:
            if value and math.isfinite(value):
                exponent = math.frexp(value)[1] - 1
                counts[exponent] = counts.get(exponent, 0) + 1
        expected.append(counts)
    assert magnitudes_together([np.array(values) for values in drawn]) == expected


def test_zeros_have_no_sign() -> None:
    zeros: np.ndarray[Any, np.dtype[np.float64]] = np.array([-0.0, -0.0])
    (found,) = statistics_together([zeros])
    assert (str(found.minimum), str(found.maximum), found.zeros) == ("0.0", "0.0", 2)


def test_of_complex_numbers_both_parts_count() -> None:
    values = as_doubles(np.array([1 + 4j], np.complex64))
    assert magnitudes_together([values]) == [{0: 1, 2: 1}]
