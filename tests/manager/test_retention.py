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
    ("rules", "losses", "kept"),
    [
        ({"every": 10}, {5: 0.0, 10: 0.0, 15: 0.0, 25: 0.0}, {10, 25}),  # the newest one as well
        ({"every": 10, "last": 2}, {10: 0.0, 11: 0.0, 12: 0.0, 13: 0.0}, {10, 12, 13}),
        ({"best": 1, "metric": "loss"}, {1: 2.0, 2: 1.0, 3: 1.0, 4: 3.0}, {3, 4}),  # the later one of equals
        ({"best": 1, "metric": "loss", "mode": "max"}, {1: 2.0, 2: 1.0, 3: 1.5}, {1, 3}),
        ({"best": 1, "metric": "loss"}, {1: 2.0, 2: -math.inf, 3: 3.0}, {1, 3}),
        ({"best": 1, "metric": "loss"}, {1: math.nan, 2: math.inf, 3: math.nan}, {1, 2, 3}),  # none is known
    ],
)
def test_the_last_the_round_and_the_best_are_kept(
    rules: dict[str, Any], losses: dict[int, float], kept: set[int]
) -> None:
    metrics = {step: {"loss": value} for step, value in losses.items()}
    assert Retention(**rules).kept(losses, metrics) == kept


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
