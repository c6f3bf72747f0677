"""The simulator against one that goes second by second, and formulas against searches with it."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ucpformat as ucp
from ucpformat.cadence import JobCosts, JobOutcome, LogIntervals, best_interval, failure_gaps, simulate
from ucpformat.errors import UcpError

SMALL = st.integers(0, 4).map(float)
INTERVALS = st.integers(1, 9).map(float) | st.just(inf)


def by_seconds(training: int, costs: JobCosts, intervals: LogIntervals, gaps: list[int]) -> JobOutcome:
    """The same job, one second after another; everything is whole seconds."""

    def last(reached: int, interval: float, write: float) -> int:
        marks = [0] if interval == inf else range(0, reached + 1, int(interval))
        return max((mark for mark in marks if mark + write < reached), default=0)

    def is_mark(position: int, interval: float) -> bool:
        return interval != inf and position % interval == 0

    seconds = lost = replayed = position = full = recovery = 0
    for failures, gap in enumerate([*gaps, None]):
        left = inf if gap is None else gap
        spent, start = 0, position
        work = [*["recover"] * recovery]
        while True:
            if not work:
                if position == training:
                    return JobOutcome(
                        seconds + spent, failures, lost, replayed, (seconds + spent) / training - 1
                    )
                if position > start:
                    work += ["save"] * int(is_mark(position, intervals.full) * costs.full)
                    work += ["save"] * int(is_mark(position, intervals.batch) * costs.batch)
                work.append("train")
            if spent == left:
                break
            position += work.pop(0) == "train"
            spent += 1
        seconds += spent
        if spent > recovery:
            written = last(position, intervals.full, costs.write)
            full = written if written > start else full
            durable = max(full, start, last(position, intervals.batch, 0))
            lost += position - durable
            position = durable
        replayed += position - full
        recovery = int(costs.restart + costs.replay * (position - full))
    raise AssertionError("behind the last gap the job ends")


@given(
    st.integers(1, 40),
    st.builds(JobCosts, SMALL, SMALL, SMALL, SMALL, st.sampled_from([0.0, 1.0, 2.0])),
    st.builds(LogIntervals, INTERVALS, INTERVALS),
    st.lists(st.integers(1, 60), max_size=6),
)
def test_a_job_goes_as_it_does_second_by_second(
    training: int, costs: JobCosts, intervals: LogIntervals, gaps: list[int]
) -> None:
    found = simulate(float(training), costs, intervals, [float(one) for one in gaps])
    wanted = by_seconds(training, costs, intervals, gaps)
    assert found.failures == wanted.failures
    assert [found.seconds, found.lost, found.replayed, found.overhead] == pytest.approx(
        [wanted.seconds, wanted.lost, wanted.replayed, wanted.overhead]
    )


def test_a_job_without_failures_takes_its_training_and_its_saves() -> None:
    found = simulate(100.0, JobCosts(full=2.0, batch=0.5), LogIntervals(25.0, 10.0), [])
    assert (found.seconds, found.failures, found.lost, found.replayed) == (110.5, 0, 0.0, 0.0)
    assert found.overhead == pytest.approx(0.105)


@pytest.mark.parametrize("intervals", [LogIntervals(0.0, 1.0), LogIntervals(1.0, -1.0)])
def test_an_interval_is_above_nothing(intervals: LogIntervals) -> None:
    with pytest.raises(UcpError, match="above 0") as refused:
        simulate(10.0, JobCosts(1.0), intervals, [])
    assert refused.value.code == "UCP-E-LIMIT"


def jobs(mtbf: float, training: float) -> list[list[float]]:
    return [failure_gaps(mtbf, seed=seed, count=int(4 * training / mtbf)) for seed in range(6)]


def overhead(costs: JobCosts, intervals: LogIntervals, training: float, gaps: list[list[float]]) -> float:
    return sum(simulate(training, costs, intervals, one).overhead for one in gaps) / len(gaps)


@pytest.mark.parametrize(("cost", "mtbf"), [(1.0, 200.0), (2.0, 1_000.0), (20.0, 2_000.0)])
def test_search_finds_the_interval_of_young_and_daly(cost: float, mtbf: float) -> None:
    training = 80 * mtbf
    gaps = jobs(mtbf, training)
    costs = JobCosts(full=cost, restart=cost)
    _, least = best_interval(training, costs, gaps, most=mtbf)
    for formula in (ucp.cadence.young, ucp.cadence.daly):
        interval = formula(cost, mtbf)
        at = overhead(costs, LogIntervals(interval, inf), training, gaps)
        assert at < 1.05 * least
        # The valley is flat, but not that flat: the test would see a formula that is off by a factor.
        for wrong in (interval / 4, interval * 4):
            assert overhead(costs, LogIntervals(wrong, inf), training, gaps) > 1.2 * least


@pytest.mark.parametrize("replay", [0.1, 0.5])
def test_search_finds_the_intervals_of_exact_replay(replay: float) -> None:
    mtbf, costs = 2_000.0, JobCosts(full=5.0, batch=0.2, restart=5.0, replay=replay)
    training = 80 * mtbf
    gaps = jobs(mtbf, training)
    found = ucp.cadence.exact_replay(costs.full, costs.batch, mtbf, replay)
    _, least = best_interval(training, costs, gaps, batch=found.batch, most=mtbf)
    assert overhead(costs, found, training, gaps) < 1.05 * least
    for batch in (found.batch / 4, found.batch * 4):
        assert overhead(costs, found._replace(batch=batch), training, gaps) > overhead(
            costs, found, training, gaps
        )
    # Where a replay takes as long as training, a log saves nothing of it: Young's interval.
    assert ucp.cadence.exact_replay(5.0, 0.2, mtbf, 1.0).full == ucp.cadence.young(5.0, mtbf)


@given(st.floats(0.01, 10), st.floats(1e3, 1e6), st.floats(0.001, 1))
def test_the_intervals_of_lowdiff_are_where_its_cost_is_least(cost: float, mtbf: float, merge: float) -> None:
    def waste(full: float, batch: float) -> float:
        return cost / full + (batch / 2 + merge / 2 * (full / batch - 1)) / mtbf

    found = ucp.cadence.lowdiff(cost, mtbf, merge)
    least = waste(*found)
    for factor in (0.9, 1.1):
        assert waste(found.full * factor, found.batch) > least
        assert waste(found.full, found.batch * factor) > least


@given(st.floats(0.01, 10), st.floats(1e3, 1e6), st.floats(0.001, 1), st.floats(0.01, 1))
def test_the_intervals_of_exact_replay_are_where_its_cost_is_least(
    cost: float, mtbf: float, batch_cost: float, replay: float
) -> None:
    def waste(full: float, batch: float) -> float:
        return cost / full + batch_cost / batch + (replay * full / 2 + batch / 2) / mtbf

    found = ucp.cadence.exact_replay(cost, batch_cost, mtbf, replay)
    least = waste(*found)
    for factor in (0.9, 1.1):
        assert waste(found.full * factor, found.batch) > least
        assert waste(found.full, found.batch * factor) > least
