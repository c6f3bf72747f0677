"""Totals of all ranks are what the parts of each say, and the parts move the right elements."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given

from tests.geometry import model
from tests.geometry.test_transfer import mesh
from tests.planning.arrangements import Held, side, two_sides
from ucpformat.errors import UcpError
from ucpformat.geometry import (
    Concat,
    Copy,
    Flatten,
    Layout,
    Lowering,
    Mesh,
    MeshAxis,
    Partial,
    Shard,
    lower,
    strided_runs,
)
from ucpformat.model.dtype import dtype
from ucpformat.planning import Flow, Pairing, SlotPart, movements, pair, rank_detail, survey

Slots = dict[tuple[str, str], Held]


def pairing_of(before: Slots, after: Slots) -> Pairing:
    return pair(side("a", before), side("b", after), "ranks")


def flow(copies: list[tuple[Copy, int]], *, sent: bool) -> Flow:
    total = Flow()
    for copy, item in copies:
        place = copy.source if sent else copy.target
        total.add(copy.size * item, 1, strided_runs(0, copy.shape, place.strides).count)
    return total


@given(two_sides())
def test_totals_are_those_of_the_parts(sides: tuple[Slots, Slots]) -> None:
    pairing = pairing_of(*sides)
    found = survey(pairing)
    sent = 0
    for rank, totals in found.ranks.items():
        parts = list(rank_detail(pairing, rank))
        assert [part.name for part in parts] == sorted(part.name for part in parts)
        for name, expected in (("keeps", totals.kept), ("receives", totals.received), ("sends", totals.sent)):
            copies = [(copy, part.item_bytes) for part in parts for copy in getattr(part, name)]
            assert flow(copies, sent=name == "sends") == expected
        sent += totals.sent.nbytes
        assert totals.written == sum(
            copy.size * dtype(sides[1][part.name].dtype).item_bytes
            for part in parts
            for copy in (*part.keeps, *part.receives)
        )
    assert sent == found.lower_bound == sum(totals.received.nbytes for totals in found.ranks.values())


@given(two_sides())
def test_a_matrix_says_the_same_rank_by_rank(sides: tuple[Slots, Slots]) -> None:
    pairing = pairing_of(*sides)
    found = movements(pairing)
    totals = survey(pairing).ranks
    assert list(found.ranks) == list(totals)
    for rank, expected in totals.items():
        assert found.nbytes.get((rank, rank), 0) == expected.kept.nbytes
        others = [other for other in found.ranks if other != rank]
        assert sum(found.nbytes.get((other, rank), 0) for other in others) == expected.received.nbytes
        assert sum(found.nbytes.get((rank, other), 0) for other in others) == expected.sent.nbytes


def test_a_matrix_has_a_limit_and_two_sides_of_ranks() -> None:
    wide = Layout(Mesh((MeshAxis("tp", 129),)), (Shard("tp", 0, "ceil"),))
    slots = {("w", "value"): Held("int8", (129,), wide)}
    with pytest.raises(UcpError, match="UCP-E-LIMIT"):
        movements(pairing_of(slots, slots))


def memories(held: Held, logical: model.Array) -> dict[int, model.Array]:
    assert held.layout is not None
    lowering: Lowering = lower(held.layout, held.shape, place=held.place)
    return {
        rank: model.local_array(region.local_map, logical.reshape(lowering.view)).reshape(-1)
        for region in lowering.regions()
        for rank in region.holders
    }


def carried_out(parts: dict[int, SlotPart], before: Held, after: Held) -> None:
    """Every rank works from its own part alone: what it sends is posted, what it receives is fetched."""
    logical = model.counter(before.shape)
    source, target = memories(before, logical), memories(after, logical)
    post: Counter[tuple[int, int, bytes, tuple[int, ...]]] = Counter()
    for rank, part in parts.items():
        for copy in part.sends:
            data = np.ascontiguousarray(model.view(source[rank], copy.shape, copy.source))
            post[rank, copy.target_rank, data.tobytes(), copy.shape] += 1
    for rank, expected in target.items():
        memory = np.full(expected.size, -1)
        mine = parts.get(rank)
        for copy in () if mine is None else mine.keeps:
            kept = model.view(source[rank], copy.shape, copy.source)
            model.view(memory, copy.shape, copy.target)[...] = kept
        for copy in () if mine is None else mine.receives:
            data = np.ascontiguousarray(model.view(source[copy.source_rank], copy.shape, copy.source))
            letter = (copy.source_rank, rank, data.tobytes(), copy.shape)
            assert post[letter] > 0, "the other rank knows nothing of it"
            post[letter] -= 1
            model.view(memory, copy.shape, copy.target)[...] = data
        np.testing.assert_array_equal(memory, expected)
    assert not +post, "something was sent that nobody receives"


@given(two_sides())
def test_parts_carried_out_rank_by_rank_equal_the_way_through_the_logical_tensor(
    sides: tuple[Slots, Slots],
) -> None:
    before, after = sides
    pairing = pairing_of(before, after)
    by_slot: dict[tuple[str, str], dict[int, SlotPart]] = {}
    for rank in pairing.source.ranks() | pairing.target.ranks():
        for part in rank_detail(pairing, rank):
            by_slot.setdefault(part.name, {})[rank] = part
    for name in before:
        carried_out(by_slot.get(name, {}), before[name], after[name])


def test_replicas_take_turns_over_the_tensors_of_a_model() -> None:
    replicated = Layout(mesh(dp=4))
    elsewhere = Layout(Mesh((MeshAxis("r", 1),), (9,)))
    before = {(f"w{number:02}", "value"): Held("int8", (8, 4), replicated) for number in range(12)}
    after = {name: Held("int8", (8, 4), elsewhere) for name in before}
    # Tensors of another shape go on where those of the first left off.
    before |= {(f"x{number}", "value"): Held("int8", (5,), replicated) for number in range(4)}
    after |= {(f"x{number}", "value"): Held("int8", (5,), elsewhere) for number in range(4)}
    found = survey(pairing_of(before, after))
    assert [found.ranks[rank].sent.nbytes for rank in range(4)] == [3 * 32 + 5] * 4


def test_contributions_are_written_once() -> None:
    before = {("w", "value"): Held("float32", (4,), Layout(mesh(sp=2), (Partial("sp", "sum"),)))}
    after = {("w", "value"): Held("bfloat16", (4,), Layout(mesh(a=2)))}
    found = survey(pairing_of(before, after))
    assert [(totals.received.nbytes, totals.written) for totals in found.ranks.values()] == [(16, 8)] * 2


def test_what_is_not_planned_is_named() -> None:
    layout = Layout(mesh(tp=2), (Shard("tp", 0),))
    both = Held("int8", (2,), layout)
    bare = Held("int8", (2,), None)
    before = {("a", "value"): both, ("b", "value"): both, ("c", "value"): bare, ("d", "value"): both}
    after = {("a", "value"): both, ("c", "value"): both, ("d", "value"): bare, ("e", "value"): both}
    pairing = pairing_of(before, after)
    assert [kind.names for kind in pairing.kinds] == [[("a", "value")]]
    assert [(entry.name[0], entry.why) for entry in pairing.unplanned] == [
        ("b", "not in the target"),
        ("c", "no layout in the source"),
        ("d", "no layout in the target"),
        ("e", "not in the source"),
    ]
    assert pair(side("a", before), side("b", after), "ranks", atoms="b*").slots == 0


@pytest.mark.parametrize(
    ("other", "code", "at"),
    [
        (Held("int8", (3,), Layout(mesh(tp=2))), "UCP-E-MISMATCH", "w/value"),
        (
            Held("int8", (2,), Layout(mesh(tp=4), (Shard("tp", 0, "even"),))),
            "UCP-E-LAYOUT",
            "w/value#/steps/0/rule",
        ),
        (
            Held("int8", (2,), Layout(mesh(tp=2), (Flatten(), Concat("g")))),
            "UCP-E-LAYOUT",
            "w/value#/steps/1",
        ),
    ],
)
def test_refusals_name_the_slot(other: Held, code: str, at: str) -> None:
    before = {("w", "value"): Held("int8", (2,), Layout(mesh(tp=2)))}
    for action in (survey, lambda pairing: list(rank_detail(pairing, 0))):
        with pytest.raises(UcpError) as caught:
            action(pairing_of(before, {("w", "value"): other}))
        assert (caught.value.code, caught.value.at) == (code, at)


def test_only_a_checkpoint_is_read() -> None:
    held = {("w", "value"): Held("int8", (2,), Layout(mesh(tp=2)))}
    with pytest.raises(UcpError, match="UCP-E-MISMATCH"):
        pair(side("a", held), side("b", held), "storage")
