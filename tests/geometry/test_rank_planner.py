"""A rank's part in moving a whole model: it agrees with the others', and follows kinds and not sizes."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry.giant import Arrangement, Size, spread
from tests.geometry.strategies import placed_layouts, shapes
from ucpformat.errors import MismatchError
from ucpformat.geometry import (
    BufferMember,
    Concat,
    Exchange,
    ExchangeTable,
    Flatten,
    Layout,
    Mesh,
    MeshAxis,
    RankPlan,
    RankPlanner,
    Shard,
    Spread,
    buffer_places,
    lower,
)


def parts(rank: int, source: Arrangement, target: Arrangement) -> list[RankPlan | None]:
    planner = RankPlanner(rank, ExchangeTable(source.layouts, target.layouts))
    return [
        planner.plan(Spread(before, shape), Spread(after, shape))
        for (before, shape), (after, _) in zip(source.tensors, target.tensors, strict=True)
    ]


def test_the_parts_of_all_ranks_fit_together() -> None:
    size = Size(layers=4, experts=4, hidden=8, inner=12)
    source = spread(size, pp=2, edp=2, ep=2, tp=2)
    target = spread(size, pp=4, edp=1, ep=1, tp=4)
    plans = [parts(rank, source, target) for rank in range(16)]
    for number, ((before, shape), (after, _)) in enumerate(zip(source.tensors, target.tensors, strict=True)):
        mine = [found for found in (plan[number] for plan in plans) if found is not None]
        sent = Counter(copy for part in mine for copy in part.sends)
        received = Counter(copy for part in mine for copy in part.receives)
        assert sent == received
        kept = [copy for part in mine for copy in part.keeps]
        whole = Exchange(lower(source.layouts[before], shape), lower(target.layouts[after], shape))
        assert Counter(whole.plan().copies) == received + Counter(kept)
        assert sum(copy.size * count for copy, count in sent.items()) == whole.lower_bound()


def test_a_rank_of_another_job_takes_no_part() -> None:
    size = Size(layers=1, experts=1, hidden=2, inner=2)
    one = spread(size, pp=1, edp=1, ep=1, tp=2)
    assert parts(2, one, one) == [None] * len(one.tensors)


def copies(size: Size) -> int:
    """How many copies rank 9 handles, each kind once, from one arrangement of 64 ranks to another."""
    source, target = spread(size, pp=4, edp=2, ep=2, tp=4), spread(size, pp=2, edp=4, ep=4, tp=2)
    distinct = {id(part): part for part in parts(9, source, target) if part is not None}
    return sum(len(part.keeps) + len(part.receives) + len(part.sends) for part in distinct.values())


def test_work_follows_kinds_and_not_sizes() -> None:
    small = copies(Size(layers=8, experts=8, hidden=64, inner=128))
    assert copies(Size(layers=8, experts=8, hidden=4096, inner=16384)) == small
    assert copies(Size(layers=64, experts=64, hidden=64, inner=128)) == small


def test_a_trillion_parameters_on_8192_ranks() -> None:
    """One rank of 8192 plans its part of 142 thousand tensors out of a few kinds."""
    size = Size(layers=92, experts=256, hidden=4096, inner=3584)
    source, target = spread(size, pp=16, edp=8, ep=8, tp=8), spread(size, pp=8, edp=16, ep=16, tp=4)
    assert sum(math.prod(shape) for _, shape in source.tensors) > 3e12
    assert len(source.layouts) + len(target.layouts) < 1200
    found = [part for part in parts(1234, source, target) if part is not None]
    distinct = {id(part): part for part in found}
    assert len(found) > 1000
    assert len(distinct) < 50
    most = max(len(piece.keeps) + len(piece.receives) + len(piece.sends) for piece in distinct.values())
    assert most < 300


@given(st.data(), shapes(max_elements=120), st.integers(0, 5))
def test_a_planner_finds_what_the_exchange_says(
    data: st.DataObject, shape: tuple[int, ...], turn: int
) -> None:
    """Buffers included, most of whose tensors a rank need not look at."""
    (before, here), (after, there) = (data.draw(placed_layouts(shape)) for _ in range(2))
    table = ExchangeTable([before], [after])
    source, target = Spread(0, shape, here), Spread(0, shape, there)
    whole = Exchange(lower(before, shape, place=here), lower(after, shape, place=there))
    for rank in range(91):
        planner = RankPlanner(rank, table)
        for _ in range(2):
            found = planner.plan(source, target, turn=turn)
            expected = whole.rank(rank, turn=turn)
            if found is None:
                assert not expected.keeps + expected.receives + expected.sends
            else:
                assert found == expected
                assert found.elements_kept == sum(copy.size for copy in expected.keeps)


def test_planners_refuse_other_shapes() -> None:
    layout = Layout(Mesh((MeshAxis("tp", 2),)), ())
    with pytest.raises(MismatchError, match="shape"):
        RankPlanner(0, ExchangeTable([layout], [layout])).plan(Spread(0, (2,)), Spread(0, (3,)))


def test_tensors_elsewhere_in_a_buffer_are_not_looked_at() -> None:
    mesh = Mesh((MeshAxis("tp", 2), MeshAxis("dp", 4)))
    plain = Layout(mesh, (Shard("tp", 0),))
    buffered = Layout(mesh, (Shard("tp", 0), Flatten(), Concat("group"), Shard("dp", 0, "even")))
    places = buffer_places([BufferMember(buffered, (8, 2))] * 3, multiple=4)
    table = ExchangeTable([plain], [buffered])
    planner = RankPlanner(9, table)
    assert [planner.plan(Spread(0, (8, 2)), Spread(0, (8, 2), place)) for place in places] == [None] * 3
    planner = RankPlanner(1, ExchangeTable([buffered], [buffered]))
    taken = [planner.takes_part(Spread(0, (8, 2), place), Spread(0, (8, 2), place)) for place in places]
    assert taken == [True, True, False]
    # Seven rows on two ranks: what comes after lies elsewhere on either.
    places = buffer_places([BufferMember(buffered, (7, 2))] * 3, multiple=4)
    assert places[0].axes == ("tp",)
    table = ExchangeTable([buffered], [buffered])
    for place in places:
        spread = Spread(0, (7, 2), place)
        for rank, coordinate in enumerate(mesh.coordinates()):
            held = lower(buffered, (7, 2), place=place).at(coordinate)
            assert held is not None
            assert RankPlanner(rank, table).takes_part(spread, spread) == bool(held.pieces)
