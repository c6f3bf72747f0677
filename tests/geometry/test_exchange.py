"""Plans beyond plain copies: pending reductions, factors, entries of their own, balance."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import lowerings, shapes
from ucpformat.errors import LayoutError, MismatchError
from ucpformat.geometry import (
    Blocks,
    Exchange,
    ExplicitHoldings,
    Layout,
    LocalBox,
    LocalOnly,
    Mesh,
    MeshAxis,
    Partial,
    Permute,
    RaggedAxis,
    Scale,
    Shard,
    View,
    coalesced,
    local_map_of,
    lower,
    plan_transfer,
)


def mesh(**sizes: int) -> Mesh:
    return Mesh(tuple(MeshAxis(name, size) for name, size in sizes.items()))


@given(st.data(), shapes(max_elements=120))
def test_every_contribution_arrives_once(data: st.DataObject, shape: tuple[int, ...]) -> None:
    source = data.draw(lowerings(shape, "view pad concat scale partial"))
    target = data.draw(lowerings(shape))
    plan = plan_transfer(source, target)
    assert plan.reduce == source.reduce
    regions = source.regions()
    count = max(1, *(len(region.contributions) for region in regions)) if regions else 1
    for region in regions:
        assert tuple(sorted(rank for ranks in region.contributions for rank in ranks)) in ((), region.holders)
        assert len(region.contributions) == (count if source.reduce else 0)
    of_rank = {
        (rank, number)
        for region in regions
        for number, ranks in enumerate(region.contributions or (region.holders,))
        for rank in ranks
    }
    for region in target.regions():
        for rank in region.holders:
            sizes = Counter[int]()
            for copy in plan.to_rank(rank):
                assert (copy.source_rank, copy.contribution) in of_rank
                sizes[copy.contribution] += copy.size
            assert set(sizes.values()) <= {region.local_map.mapped}
    assert Exchange(source, target).lower_bound() <= plan.elements_sent


def test_copies_that_differ_are_all_fetched() -> None:
    source = lower(Layout(mesh(tp=2, sp=2), (Shard("tp", 0), Partial("sp", "mean"))), (4,))
    assert source.reduce == "mean"
    assert [region.contributions for region in source.regions()] == [((0,), (1,)), ((2,), (3,))]
    plan = plan_transfer(source, lower(Layout(Mesh((), (0,))), (4,)))
    assert [(copy.source_rank, copy.contribution) for copy in plan.copies] == [(0, 0), (2, 0), (1, 1), (3, 1)]


def test_contributions_on_a_ragged_mesh() -> None:
    ragged = Mesh((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (2, 1)), MeshAxis("sp", 2)))
    source = lower(Layout(ragged, (Shard("pp", 0), Partial("sp", "sum"))), (2,))
    assert [region.contributions for region in source.regions()] == [((0, 2), (1, 3)), ((4,), (5,))]


def test_a_target_has_no_contributions() -> None:
    plain = lower(Layout(mesh(sp=2)), (4,))
    with pytest.raises(LayoutError, match="UCP-E-LAYOUT"):
        plan_transfer(plain, lower(Layout(mesh(sp=2), (Partial("sp", "sum"),)), (4,)))


def test_factors_are_exact() -> None:
    third = lower(Layout(mesh(tp=2), (Scale(Fraction(2, 3)),)), (4,))
    half = lower(Layout(mesh(tp=2), (Scale(Fraction(1, 2)), Shard("tp", 0))), (4,))
    assert third.scale == Fraction(2, 3)
    assert {copy.factor for copy in plan_transfer(third, half).copies} == {Fraction(3, 4)}
    (region, _) = half.regions()
    assert region.local_map.pieces[0].scale == Fraction(1, 2)


def test_every_rank_has_its_own_entry() -> None:
    ragged = Mesh((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (2, 1))), (7, 8, 9))
    source = lower(Layout(ragged, (LocalOnly(),)), (3, 2, 1))
    held = [model.local_of(source, coordinate) for coordinate in ragged.coordinates()]
    assert [part.tolist() for part in held if part is not None] == [[[0], [1]], [[2], [3]], [[4], [5]]]
    assert [region.holders for region in source.regions()] == [(7,), (8,), (9,)]
    moved = lower(Layout(Mesh(ragged.axes), (LocalOnly(),)), (3, 2, 1))
    plan = plan_transfer(source, moved)
    assert [(copy.source_rank, copy.target_rank) for copy in plan.copies] == [(7, 0), (8, 1), (9, 2)]
    assert lower(Layout(ragged, (LocalOnly(),)), (3, 0)).regions()[0].local_map.pieces == ()


@pytest.mark.parametrize("target", [Layout(mesh(dp=3)), Layout(mesh(dp=1, tp=3), (LocalOnly(),))])
def test_own_entries_are_not_shared_out(target: Layout) -> None:
    source = lower(Layout(mesh(dp=3), (LocalOnly(),)), (3, 2))
    for pair in ((source, lower(target, (3, 2))), (lower(target, (3, 2)), source)):
        with pytest.raises(MismatchError):
            plan_transfer(*pair)


def test_entries_that_are_kept_go_to_as_many_coordinates() -> None:
    source = lower(Layout(mesh(dp=3), (LocalOnly("keep"),)), (3, 2))
    plan = plan_transfer(source, lower(Layout(mesh(dp=1, tp=3), (LocalOnly(),)), (3, 2)))
    assert [copy.source_rank == copy.target_rank for copy in plan.copies] == [True] * 3
    whole = local_map_of((3, 2), (3, 2), [LocalBox((0, 0), (0, 0), (3, 2))])
    explicit = ExplicitHoldings((3, 2), ((0, whole),))
    assert not explicit.keeps_entries
    for pair in ((source, explicit), (explicit, source)):
        with pytest.raises(MismatchError):
            plan_transfer(*pair)


@pytest.mark.parametrize("factor", [2, 1, Fraction(1, 8), 3, -2, Fraction(2, 3)])
def test_powers_of_two_have_exponents(factor: Fraction | int) -> None:
    exponents = {2: 1, 1: 0, Fraction(1, 8): -3}
    assert Scale(Fraction(factor)).exponent == exponents.get(factor)


@pytest.mark.parametrize("shape", [(), (2, 4)])
def test_own_entries_are_as_many_as_ranks(shape: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError) as caught:
        lower(Layout(mesh(dp=3), (LocalOnly(),)), shape)
    assert caught.value.at == "/steps/0"


def test_holders_share_the_bytes_and_take_turns() -> None:
    # Eight holders of two halves serve sixteen ranks elsewhere, each of which wants a quarter.
    source = lower(Layout(mesh(dp=4, tp=2), (Shard("tp", 0),)), (64,))
    target = lower(
        Layout(Mesh((MeshAxis("r", 4), MeshAxis("q", 4)), tuple(range(8, 24))), (Shard("q", 0),)), (64,)
    )
    sent = Counter[int]()
    for copy in plan_transfer(source, target).copies:
        sent[copy.source_rank] += copy.size
    assert sent == dict.fromkeys(range(8), 32)
    # A single request goes to another holder at every turn.
    one = lower(Layout(Mesh((), (9,))), (64,))
    whole = lower(Layout(mesh(dp=4)), (64,))
    asked = [Exchange(whole, one).plan(turn=turn).copies[0].source_rank for turn in range(5)]
    assert asked == [0, 1, 2, 3, 0]


def test_views_without_a_common_refinement_still_transfer() -> None:
    source = lower(Layout(mesh(a=3), (View((3, 2)), Permute((1, 0)), Shard("a", 1))), (6,))
    target = lower(Layout(mesh(a=3), (View((2, 3)), Permute((1, 0)), Shard("a", 0))), (6,))
    plan = plan_transfer(source, target)
    memory = {rank: model.local_of(source, (rank,)) for rank in range(3)}
    received = {rank: np.full(2, -1) for rank in range(3)}
    for copy in plan.copies:
        held = memory[copy.source_rank]
        assert held is not None
        model.view(received[copy.target_rank], copy.shape, copy.target)[...] = model.view(
            held.reshape(-1), copy.shape, copy.source
        )
    assert [received[rank].tolist() for rank in range(3)] == [[0, 3], [1, 4], [2, 5]]


@given(st.data(), shapes(max_elements=200), st.integers(0, 6))
def test_ranges_are_what_is_needed_and_near(data: st.DataObject, shape: tuple[int, ...], gap: int) -> None:
    lowering = data.draw(lowerings(shape))
    for coordinate in lowering.layout.mesh.coordinates():
        local_map = lowering.at(coordinate)
        if local_map is None:
            continue
        held = model.local_array(local_map, model.counter(lowering.view)).reshape(-1)
        needed = sorted(held[held >= 0].tolist())
        expected: list[tuple[int, int]] = []
        for cell in needed:
            if expected and cell - expected[-1][1] <= gap:
                expected[-1] = (expected[-1][0], cell + 1)
            else:
                expected.append((cell, cell + 1))
        assert coalesced(local_map, lowering.view, gap=gap) == expected


def test_near_runs_of_a_huge_tensor_are_not_spelled_out() -> None:
    rows = 1 << 40
    lowering = lower(Layout(mesh(tp=2), (Shard("tp", 1),)), (rows, 2, 3))
    held = lowering.at((0,))
    assert held is not None
    assert coalesced(held, lowering.view, gap=3) == [(0, rows * 6 - 3)]


def test_ranges_of_blocks_and_heads() -> None:
    fused = lower(Layout(mesh(tp=2), (Blocks(0, (4, 4, 2)), Shard("tp", 0))), (10,))
    held = fused.at((0,))
    assert held is not None
    assert coalesced(held, fused.view) == [(0, 2), (4, 6), (8, 9)]
    assert coalesced(held, fused.view, gap=2) == [(0, 9)]
    heads = lower(Layout(mesh(tp=2), (View((2, 3)), Permute((1, 0)), Shard("tp", 0))), (6,))
    held = heads.at((0,))
    assert held is not None
    assert coalesced(held, heads.view) == [(0, 2), (3, 5)]
