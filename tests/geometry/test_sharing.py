"""Who gives what among ranks that hold the same: balanced within a tensor, and in turns over many."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import lowerings, shapes
from tests.geometry.test_transfer import Torn, carry_out, memories, mesh
from ucpformat.errors import LayoutError
from ucpformat.geometry import (
    Blocks,
    Box,
    Exchange,
    Flatten,
    Layout,
    Mesh,
    MeshAxis,
    Shard,
    Traffic,
    exact_cover,
    lower,
    strided_runs,
    traffic,
)
from ucpformat.geometry.sides import held_in


@given(st.data(), shapes(max_elements=300), st.integers(0, 40))
def test_replicas_give_alike_within_the_largest_request(
    data: st.DataObject, shape: tuple[int, ...], turn: int
) -> None:
    source, target = data.draw(lowerings(shape, "view pad")), data.draw(lowerings(shape, "view pad"))
    exchange = Exchange(source, target)
    for sharing in exchange.sharings:
        for team, ranks in enumerate(sharing.held.teams):
            shares = sharing.of(team)
            given = Counter[int]()
            for rank in ranks:
                for item in shares.given_by(rank, turn):
                    assert shares.giver(item.number, item.piece, item.rank, turn) == rank
                    given[rank] += item.size
            assert sum(given.values()) == sum(item.size for item in shares.requests)
            loads = [given[rank] for rank in ranks]
            assert max(loads) - min(loads) <= max((item.size for item in shares.requests), default=0)


@given(st.integers(1, 6), st.lists(st.integers(1, 3), min_size=1, max_size=7), st.integers(0, 12))
def test_turns_are_round_robin_for_equal_requests_and_even_after_a_round(
    replicas: int, sizes: list[int], turns: int
) -> None:
    """Requests of ``sizes`` to ``replicas`` holders of everything, over many tensors."""
    total = sum(sizes)
    source = lower(Layout(mesh(dp=replicas)), (total,))
    others = Mesh((MeshAxis("r", len(sizes)),), tuple(range(100, 100 + len(sizes))))
    exchange = Exchange(source, lower(Layout(others, (Shard("r", 0, tuple(sizes)),)), (total,)))
    given = Counter[int]()
    for turn in range(turns):
        for copy in exchange.plan(turn=turn).copies:
            given[copy.source_rank] += copy.size
    loads = [given[rank] for rank in range(replicas)]
    if len(set(sizes)) == 1 or turns == 1:
        assert max(loads) - min(loads) <= max(sizes)
    if turns % replicas == 0:
        assert len(set(loads)) == 1


@given(st.data(), shapes(max_elements=200), st.integers(0, 6), st.integers(0, 9))
def test_traffic_is_what_the_plans_of_all_turns_say(
    data: st.DataObject, shape: tuple[int, ...], first: int, count: int
) -> None:
    source = data.draw(lowerings(shape, "view partial concat"))
    target = data.draw(lowerings(shape, "view pad concat"))
    exchange = Exchange(source, target)
    expected: dict[int, Traffic] = {}
    for turn in range(first, first + count):
        for copy in exchange.plan(turn=turn).copies:
            received = expected.setdefault(copy.target_rank, Traffic())
            sent = expected.setdefault(copy.source_rank, Traffic()).sent
            written = strided_runs(0, copy.shape, copy.target.strides).count
            if copy.source_rank == copy.target_rank:
                received.kept.add(copy.size, written)
            else:
                received.received.add(copy.size, written)
                sent.add(copy.size, strided_runs(0, copy.shape, copy.source.strides).count)
    found = traffic(exchange, range(first, first + count))
    names = ("kept", "received", "sent")
    for rank in found.keys() | expected.keys():
        mine, theirs = found.get(rank, Traffic()), expected.get(rank, Traffic())
        assert [getattr(mine, name) for name in names] == [getattr(theirs, name) for name in names]


@given(st.data(), shapes(max_elements=200), st.integers(0, 30))
def test_a_rank_repeats_itself_after_its_period(
    data: st.DataObject, shape: tuple[int, ...], turn: int
) -> None:
    exchange = Exchange(data.draw(lowerings(shape)), data.draw(lowerings(shape)))
    for rank in {rank for sharing in exchange.sharings for rank in sharing.held.teams_with}:
        period = exchange.period(rank)
        assert exchange.rank(rank, turn=turn) == exchange.rank(rank, turn=turn % period)


@given(st.data(), shapes(), st.integers(0, 20))
def test_every_turn_fills_every_target(data: st.DataObject, shape: tuple[int, ...], turn: int) -> None:
    source, target = data.draw(lowerings(shape)), data.draw(lowerings(shape))
    logical = model.counter(shape)
    expected = memories(target, logical)
    received = carry_out(Exchange(source, target).plan(turn=turn), memories(source, logical), expected)
    for rank, memory in expected.items():
        np.testing.assert_array_equal(received[rank], memory)


@given(st.data(), shapes(max_elements=200))
def test_filled_regions_are_those_with_elements(data: st.DataObject, shape: tuple[int, ...]) -> None:
    """However few of the ranks of a buffer are looked at."""
    lowering = data.draw(lowerings(shape, "view pad concat partial"))
    expected = {region for region in lowering.regions() if region.local_map.pieces}
    assert set(lowering.filled()) == expected


def test_traffic_misses_what_no_source_holds() -> None:
    whole = lower(Layout(mesh(a=2)), (4,))
    with pytest.raises(LayoutError, match="UCP-E-COVER"):
        traffic(Exchange(Torn(whole), whole))


def test_overlaps_are_cut_without_a_look_at_every_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flat shards of blocks kept whole and blocks split unevenly overlap their neighbours alone."""
    sizes = (1000, 1050, 1024, 1030, 1010, 1040, 1020, 1018)

    def work(ranks: int) -> tuple[int, int]:
        steps = (Blocks(0, (8192, 1027), (None, ())), Shard("tp", 0, sizes), Flatten(), Shard("dp", 0))
        source = lower(Layout(mesh(dp=ranks, tp=8), steps), (9219, 64))
        calls = 0
        subtract = Box.subtract

        def counted(box: Box, hole: Box) -> tuple[Box, ...]:
            nonlocal calls
            calls += 1
            return subtract(box, hole)

        with monkeypatch.context() as patch:
            patch.setattr(Box, "subtract", counted)
            (held,) = held_in(source, source.view)
        assert exact_cover(held.boxes, source.view) is None
        return calls, len(held.boxes)

    few, small = work(8)
    many, large = work(64)
    assert large > 6 * small
    assert many / large < 2 * few / small
