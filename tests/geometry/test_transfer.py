from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import lowerings, shapes
from ucpformat.errors import LayoutError, MismatchError
from ucpformat.geometry import (
    Blocks,
    Copy,
    Exchange,
    Flatten,
    Layout,
    Lowering,
    Mesh,
    MeshAxis,
    Only,
    Region,
    Shard,
    Strided,
    TransferPlan,
    lower,
    plan_transfer,
)

Memories = dict[int, model.Array]


def memories(lowering: Lowering, logical: model.Array) -> Memories:
    """The local memory of every rank that holds something."""
    return {
        rank: model.local_array(region.local_map, logical.reshape(lowering.view)).reshape(-1)
        for region in lowering.regions()
        for rank in region.holders
    }


def carry_out(plan: TransferPlan, source: Memories, expected: Memories) -> Memories:
    """Run the plan into fresh memories; every element that is expected must be written exactly once."""
    received = {rank: np.full(memory.size, -1) for rank, memory in expected.items()}
    writes = {rank: np.zeros(memory.size, dtype=int) for rank, memory in expected.items()}
    for copy in plan.copies:
        given_view = model.view(source[copy.source_rank], copy.shape, copy.source)
        model.view(received[copy.target_rank], copy.shape, copy.target)[...] = given_view
        model.view(writes[copy.target_rank], copy.shape, copy.target)[...] += 1
    for rank, memory in expected.items():
        np.testing.assert_array_equal(writes[rank], memory >= 0)
    return received


@given(st.data(), shapes())
def test_a_plan_composes_like_going_through_the_logical_tensor(
    data: st.DataObject, shape: tuple[int, ...]
) -> None:
    source = data.draw(lowerings(shape))
    target = data.draw(lowerings(shape))
    plan = plan_transfer(source, target)
    logical = model.counter(shape)
    expected = memories(target, logical)
    received = carry_out(plan, memories(source, logical), expected)
    for rank, memory in expected.items():
        np.testing.assert_array_equal(received[rank], memory)
    assert plan.elements_sent == sum(
        copy.size for copy in plan.copies if copy.source_rank != copy.target_rank
    )
    assert sum(len(plan.to_rank(rank)) for rank in expected) == len(plan.copies)
    assert sum(len(plan.from_rank(rank)) for rank in memories(source, logical)) == len(plan.copies)


@given(st.data(), shapes())
def test_a_layout_that_stays_sends_nothing(data: st.DataObject, shape: tuple[int, ...]) -> None:
    lowering = data.draw(lowerings(shape))
    assert plan_transfer(lowering, lowering).elements_sent == 0


@given(st.data(), shapes())
def test_no_rank_sends_for_what_the_target_holds(data: st.DataObject, shape: tuple[int, ...]) -> None:
    source = data.draw(lowerings(shape))
    target = data.draw(lowerings(shape))
    logical = model.counter(shape)
    held = {rank: set(memory.tolist()) for rank, memory in memories(source, logical).items()}
    wanted = {rank: memory[memory >= 0].tolist() for rank, memory in memories(target, logical).items()}
    missing = sum(len(set(cells) - held.get(rank, set())) for rank, cells in wanted.items())
    assert all(len(cells) == len(set(cells)) for cells in wanted.values())
    assert plan_transfer(source, target).elements_sent == missing
    assert Exchange(source, target).lower_bound() == missing


@given(st.data(), shapes(), st.integers(0, 5))
def test_the_parts_of_all_ranks_are_one_plan(data: st.DataObject, shape: tuple[int, ...], turn: int) -> None:
    source, target = data.draw(lowerings(shape)), data.draw(lowerings(shape))
    plan = Exchange(source, target).plan(turn=turn)
    ranks = {rank for lowering in (source, target) for rank in memories(lowering, model.counter(shape))}
    for rank in ranks:
        # Each rank prepares for itself.
        mine = Exchange(source, target).rank(rank, turn=turn)
        incoming = plan.to_rank(rank)
        assert mine.keeps == tuple(copy for copy in incoming if copy.source_rank == rank)
        assert mine.receives == tuple(copy for copy in incoming if copy.source_rank != rank)
        sent = [copy for copy in plan.from_rank(rank) if copy.target_rank != rank]
        assert len(mine.sends) == len(sent)
        assert set(mine.sends) == set(sent)
        assert mine.elements_sent == sum(copy.size for copy in sent)
        assert mine.elements_received == sum(copy.size for copy in mine.receives)


def mesh(**sizes: int) -> Mesh:
    return Mesh(tuple(MeshAxis(name, size) for name, size in sizes.items()))


def test_columns_to_rows() -> None:
    source = lower(Layout(mesh(tp=2), (Shard("tp", 1),)), (4, 6))
    target = lower(Layout(mesh(dp=2), (Shard("dp", 0),)), (4, 6))
    assert plan_transfer(source, target).copies == (
        Copy(0, 0, (2, 3), Strided(0, (3, 1)), Strided(0, (6, 1))),
        Copy(1, 0, (2, 3), Strided(0, (3, 1)), Strided(3, (6, 1))),
        Copy(0, 1, (2, 3), Strided(6, (3, 1)), Strided(0, (6, 1))),
        Copy(1, 1, (2, 3), Strided(6, (3, 1)), Strided(3, (6, 1))),
    )


def test_replicas_share_the_work() -> None:
    source = lower(Layout(Mesh((MeshAxis("dp", 4),), (0, 1, 2, 3))), (8,))
    target = lower(Layout(Mesh((MeshAxis("dp", 4),), (4, 5, 6, 7)), (Shard("dp", 0),)), (8,))
    plan = plan_transfer(source, target)
    assert [(copy.source_rank, copy.target_rank) for copy in plan.copies] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_unequal_overlaps_give_every_element_once() -> None:
    # Each rank's flat shard of a replicated block overlaps its neighbour's by another amount.
    steps = (Blocks(0, (8, 3), (None, ())), Shard("tp", 0), Flatten(), Shard("dp", 0))
    source = lower(Layout(mesh(dp=2, tp=2), steps), (11, 2))
    target = lower(Layout(Mesh((), (3,))), (11, 2))
    plan = plan_transfer(source, target)
    logical = model.counter((11, 2))
    received = carry_out(plan, memories(source, logical), {3: np.arange(22)})
    assert received[3].tolist() == list(range(22))
    # Rank 3 holds 8 .. 21 itself or in part; it takes all that it has.
    own = set(memories(source, logical)[3].tolist())
    assert plan.elements_sent == 22 - len(own)


def test_many_small_pieces_are_found_without_a_scan() -> None:
    source = lower(Layout(mesh(r=48, c=48), (Shard("r", 0), Shard("c", 1))), (480, 480))
    target = lower(Layout(mesh(r=48, c=48), (Shard("c", 0), Shard("r", 1))), (480, 480))
    plan = plan_transfer(source, target)
    assert len(plan.copies) == 48 * 48


def test_other_shapes_and_missing_cells_are_refused() -> None:
    layout = Layout(mesh(a=2), (Only("a", (0,)),))
    with pytest.raises(MismatchError):
        plan_transfer(lower(layout, (2,)), lower(layout, (3,)))
    whole = lower(Layout(mesh(a=2), ()), (4,))
    for source in (Torn(whole), TornTwice(whole)):
        with pytest.raises(LayoutError, match="UCP-E-COVER"):
            plan_transfer(source, whole)


class Torn(Lowering):
    """A source that has lost half of its cells, as no layout can."""

    def __init__(self, like: Lowering) -> None:
        for field in fields(Lowering):
            object.__setattr__(self, field.name, getattr(like, field.name))

    def regions(self) -> tuple[Region, ...]:
        return lower(Layout(mesh(a=2), (Shard("a", 0),)), self.shape).regions()[:1]


class TornTwice(Torn):
    """A source with overlapping boxes that miss a cell."""

    def regions(self) -> tuple[Region, ...]:
        three = lower(Layout(mesh(a=2), (Shard("a", 0, (3, 1)),)), self.shape).regions()
        two = lower(Layout(mesh(a=2), (Shard("a", 0, (2, 2)),)), self.shape).regions()
        return (three[0], two[0])
