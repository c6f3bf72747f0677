"""How often to save: within every bound, and as often as that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat import cadence
from ucpformat.cadence import (
    Cadence,
    SaveTimes,
    checkfreq,
    daly,
    decide,
    exact_replay,
    lowdiff,
    pccheck,
    young,
)
from ucpformat.errors import UcpError

SECONDS = st.floats(0, 100)
STEPS = st.floats(0.01, 100)
TIMES = st.builds(SaveTimes, STEPS, SECONDS, SECONDS, SECONDS)
SHARES = st.floats(0.01, 1)
MTBF = st.floats(1, 1e7)


@given(TIMES, SHARES, st.none() | MTBF)
def test_a_cadence_keeps_all_bounds_and_one_of_them_just(
    times: SaveTimes, share: float, mtbf: float | None
) -> None:
    def holds(every: int) -> bool:
        between = every * times.step
        is_cheap = times.cost <= share * between * (1 + 1e-9)
        is_written = times.write <= between * (1 + 1e-9)
        optimum = 0.0 if mtbf is None or times.cost == 0 else daly(times.cost, mtbf)
        return is_cheap and is_written and every >= round(optimum / times.step)

    found = decide(times, max_overhead=share, mtbf=mtbf)
    assert holds(found.every)
    assert found.every <= 2 or not holds(found.every - 2)  # one more for the rounding of floats
    assert (found.reason == "step") == (found.every == 1)
    assert found.reason != "failures" or mtbf is not None


@given(TIMES, SHARES, st.none() | MTBF)
def test_an_annotation_keeps_a_cadence(times: SaveTimes, share: float, mtbf: float | None) -> None:
    found = decide(times, max_overhead=share, mtbf=mtbf)
    assert Cadence.from_json(found.to_json()) == found
    assert str(found).startswith("every step:" if found.every == 1 else f"every {found.every} steps:")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
KEYS = tuple(decide(SaveTimes(1, 1, 1), max_overhead=1, mtbf=1).to_json())


@given(JSON | st.dictionaries(st.sampled_from(KEYS), JSON | st.just("write")))
def test_what_is_no_cadence_is_none_or_one(found: Any) -> None:
    read = Cadence.from_json(found)
    assert read is None or str(read)


@given(STEPS, SECONDS, SECONDS, SHARES)
def test_checkfreq_is_what_two_bounds_allow(step: float, stall: float, write: float, share: float) -> None:
    every = checkfreq(step, stall, write, share)
    assert stall <= every * step * share * (1 + 1e-9)
    assert write - stall <= every * step * (1 + 1e-9)


@given(STEPS, SECONDS, st.integers(1, 8), st.floats(1, 2))
def test_more_writers_save_no_more_seldom(step: float, write: float, writers: int, slowdown: float) -> None:
    assert pccheck(step, write, writers + 1, slowdown) <= pccheck(step, write, writers, slowdown)


@pytest.mark.parametrize(
    "call",
    [
        lambda: young(0, 1),
        lambda: daly(1, float("inf")),
        lambda: checkfreq(1, -1, 1, 0.1),
        lambda: checkfreq(1, 1, 1, 0),
        lambda: pccheck(1, 1, 0, 1),
        lambda: lowdiff(1, 1, float("nan")),
        lambda: exact_replay(1, 0, 1, 1),
        lambda: decide(SaveTimes(0, 1, 1), max_overhead=0.1),
        lambda: decide(SaveTimes(1, 1, 1), max_overhead=0),
        lambda: decide(SaveTimes(1, 1, 1), max_overhead=1.5),
        lambda: decide(SaveTimes(1, 1, 1), max_overhead=0.1, mtbf=0),
    ],
)
def test_numbers_out_of_range_are_refused(call: Any) -> None:
    with pytest.raises(UcpError) as refused:
        call()
    assert refused.value.code == "UCP-E-LIMIT"


WRONG: list[Any] = [0, -1, float("nan"), float("inf"), "1", None, True, []]


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (cadence.young, {"cost": 2.0, "mtbf": 100.0}),
        (cadence.daly, {"cost": 2.0, "mtbf": 100.0}),
        (cadence.exact_replay, {"cost": 2.0, "batch_cost": 0.1, "mtbf": 100.0, "replay": 0.1}),
        (cadence.lowdiff, {"cost": 2.0, "mtbf": 100.0, "merge": 0.1}),
        (cadence.checkfreq, {"step": 0.5, "max_overhead": 0.03}),
        (cadence.pccheck, {"step": 0.5, "writers": 2, "slowdown": 1.05}),
        (cadence.failure_gaps, {"mtbf": 10.0}),
        (cadence.simulate, {"training": 100.0}),
        (cadence.best_interval, {"training": 100.0, "most": 50.0}),
        (cadence.decide, {"times": cadence.SaveTimes(0.5, 0.3, 4.0), "max_overhead": 0.03}),
    ],
)
def test_what_is_no_amount_is_refused(function: Any, numbers: dict[str, Any], value: Any) -> None:
    """Also what is no number at all, and True, which is one to Python."""
    known: dict[Any, dict[str, Any]] = {
        cadence.checkfreq: {"stall": 0.1, "write": 1.0},
        cadence.pccheck: {"write": 1.0},
        cadence.failure_gaps: {"seed": 0, "count": 1},
        cadence.simulate: {
            "costs": cadence.JobCosts(1.0),
            "intervals": cadence.LogIntervals(10.0, 1.0),
            "gaps": [5.0],
        },
        cadence.best_interval: {"costs": cadence.JobCosts(1.0), "gaps": [[5.0]], "batch": 1.0},
    }
    rest = known.get(function, {})
    function(**rest, **numbers)
    for name in numbers:
        with pytest.raises(UcpError, match=r"UCP-E-(LIMIT|MISMATCH)"):
            function(**{**rest, **numbers, name: value})


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "1", None, True])
def test_costs_that_are_no_seconds_are_refused(value: Any) -> None:
    for name in ("full", "write", "batch", "restart", "replay"):
        costs = cadence.JobCosts(**{"full": 1.0, name: value})
        with pytest.raises(UcpError, match=f"{name}= is a number of seconds"):
            cadence.simulate(10.0, costs, cadence.LogIntervals(5.0, 1.0), [])
    for name in ("stall", "write", "slowdown"):
        times = cadence.SaveTimes(**{"step": 0.5, "stall": 0.1, "write": 1.0, name: value})
        with pytest.raises(UcpError, match=f"{name}= is a number of seconds"):
            cadence.decide(times, max_overhead=0.1)
