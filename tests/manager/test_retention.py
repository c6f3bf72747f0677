"""What is kept, against a definition that counts."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.errors import UcpError
from ucpformat.manager import Retention

NUMBERS = st.none() | st.integers(1, 4)
METRICS = st.dictionaries(
    st.integers(0, 20), st.sampled_from([-1.0, 0.0, 1.0, 2.0, math.nan, math.inf, -math.inf]), max_size=12
)


def beats(a: int, b: int, values: dict[int, float], mode: str) -> bool:
    """Whether step ``a`` goes before step ``b`` among the best."""
    if values[a] == values[b]:
        return a > b
    return values[a] < values[b] if mode == "min" else values[a] > values[b]


@given(
    st.sets(st.integers(0, 20), min_size=1),
    METRICS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.sampled_from(["min", "max"]),
)
def test_a_step_is_kept_when_a_rule_keeps_it(
    steps: set[int],
    metrics: dict[int, float],
    last: int | None,
    every: int | None,
    best: int | None,
    mode: Any,
) -> None:
    mode = "min" if best is None else mode
    retention = Retention(last, every, best, None if best is None else "loss", mode)
    kept = retention.kept(steps, {step: {"loss": value, "other": 0.0} for step, value in metrics.items()})
    finite = {step: metrics[step] for step in steps if math.isfinite(metrics.get(step, math.nan))}
    for step in steps:
        later = sum(other > step for other in steps)
        better = sum(beats(other, step, finite, mode) for other in finite) if step in finite else math.inf
        wanted = (
            (last, every, best) == (None, None, None)
            or later < (last or 1)
            or (every is not None and step % every == 0)
            or (best is not None and (better < best or not finite))
        )
        assert (step in kept) == wanted, step
    assert kept <= steps


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ({"last": 0}, "UCP-E-LIMIT"),
        ({"every": -1}, "UCP-E-LIMIT"),
        ({"best": 0, "metric": "loss"}, "UCP-E-LIMIT"),
        ({"best": 1}, "UCP-E-MISMATCH"),
        ({"metric": "loss"}, "UCP-E-MISMATCH"),
        ({"mode": "least"}, "UCP-E-MISMATCH"),
        ({"mode": "max"}, "UCP-E-MISMATCH"),
    ],
)
def test_rules_that_say_nothing_are_refused(rules: dict[str, Any], code: str) -> None:
    with pytest.raises(UcpError) as caught:
        Retention(**rules)
    assert caught.value.code == code
