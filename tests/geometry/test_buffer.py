"""Tensors in flat buffers: ZeRO groups, distributed optimizers, flat parameters."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import placed_layouts, shapes
from ucpformat.errors import LayoutError
from ucpformat.geometry import (
    Blocks,
    BufferMember,
    BufferPlace,
    Concat,
    Exchange,
    Flatten,
    Layout,
    Mesh,
    MeshAxis,
    Only,
    Pad,
    Partial,
    PlacedTensor,
    RaggedAxis,
    Shard,
    Step,
    buffer_check,
    buffer_faults,
    buffer_head,
    buffer_places,
    buffer_tail,
    lower,
)

DP = Mesh((MeshAxis("dp", 2),))
GROUP = (Flatten(), Concat("group"), Shard("dp", 0, "even"))


@given(st.data(), st.integers(1, 4), st.integers(1, 5))
def test_members_lie_one_after_the_other_at_every_coordinate(
    data: st.DataObject, align: int, multiple: int
) -> None:
    mesh = Mesh((MeshAxis("pp", 2), MeshAxis("tp", 3)))
    found: list[BufferMember] = []
    for shape in data.draw(st.lists(shapes(max_elements=60), min_size=1, max_size=4)):
        layout, _ = data.draw(placed_layouts(shape, mesh, "view pad"))
        before = itertools.takewhile(lambda step: step != Flatten(), layout.steps)
        found.append(BufferMember(Layout(mesh, (*before, Flatten(), Concat("group"))), shape))
    places = buffer_places(found, align=align, multiple=multiple)
    for coordinate in mesh.coordinates():
        end = 0
        totals = set[int]()
        for member, place in zip(found, places, strict=True):
            buffer = model.held(member.layout, member.shape, coordinate, place)
            flat = model.held(Layout(mesh, member.layout.steps[:-1]), member.shape, coordinate)
            if buffer is None or flat is None:
                assert buffer is flat
                continue
            begin = -(-end // align) * align
            end = begin + flat.size
            np.testing.assert_array_equal(buffer[begin:end], flat)
            assert (np.delete(buffer, slice(begin, end)) == -1).all()
            totals.add(buffer.size)
        assert totals <= {-(-end // multiple) * multiple}


def test_a_group_of_one_layout_cut_across_its_tensors() -> None:
    # DeepSpeed pads the tail of a group to a multiple of 2 * dp and splits it evenly.
    layout = Layout(DP, GROUP)
    members = [BufferMember(layout, shape) for shape in ((3, 2), (5,), ())]
    places = buffer_places(members, multiple=4)
    assert places == tuple(BufferPlace((offset,), (12,)) for offset in (0, 6, 11))
    memory = np.full((2, 6), -1)
    for number, (member, place) in enumerate(zip(members, places, strict=True)):
        lowering = lower(layout, member.shape, place=place)
        for rank in range(2):
            held = model.local_of(lowering, (rank,))
            assert held is not None
            memory[rank][held >= 0] = 100 * number + held[held >= 0]
    assert memory.tolist() == [[0, 1, 2, 3, 4, 5], [100, 101, 102, 103, 104, 200]]


def test_a_group_whose_parts_differ_by_rank() -> None:
    # 7 rows on 2 tensor-parallel ranks: what comes after lies elsewhere on either.
    mesh = Mesh((MeshAxis("pp", 2), MeshAxis("tp", 2)))
    first = Layout(mesh, (Shard("tp", 0), Flatten(), Concat("group")))
    stage = Layout(mesh, (Only("pp", (1,)), Flatten(), Concat("group")))
    places = buffer_places([BufferMember(first, (7, 2)), BufferMember(stage, (3,))], align=4)
    assert places[1] == BufferPlace((8, 6, 8, 8), (8, 6, 11, 11), ("pp", "tp"))
    second = lower(stage, (3,), place=places[1])
    held = second.at((1, 1))
    assert held is not None
    assert (held.shape, held.mapped, held.pieces[0].local.offset) == ((11,), 3, 8)
    assert second.at((0, 1)) is None


def test_a_group_of_one_stage_lies_alike_wherever_it_is() -> None:
    mesh = Mesh((MeshAxis("pp", 8), MeshAxis("tp", 2)))
    layout = Layout(mesh, (Only("pp", (3,)), Shard("tp", 0), Flatten(), Concat("stage 3")))
    places = buffer_places([BufferMember(layout, (4, 2))] * 1000)
    assert places[:2] == (BufferPlace((0,), (4000,)), BufferPlace((4,), (4000,)))


def test_groups_on_a_ragged_mesh() -> None:
    mesh = Mesh((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (3, 1))))
    layout = Layout(mesh, (Shard("dp", 0, "balanced"), Flatten(), Concat("group")))
    one, two = buffer_places([BufferMember(layout, (4,)), BufferMember(layout, (2,))])
    assert one == BufferPlace((0,) * 6, (3, 2, 1, 6, 0, 0), ("pp", "dp"))
    assert two.offsets == (2, 1, 1, 4, 0, 0)
    lowering = lower(layout, (2,), place=two)
    assert [model.local_of(lowering, coordinate).tolist() for coordinate in mesh.coordinates()] == [  # type: ignore[union-attr]
        [-1, -1, 0],
        [-1, 1],
        [-1],
        [-1, -1, -1, -1, 0, 1],
    ]


@given(st.lists(shapes(max_elements=50), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 4))
def test_buffers_move_to_another_degree(members: list[tuple[int, ...]], before: int, after: int) -> None:
    def placed(degree: int) -> list[tuple[Layout, BufferPlace]]:
        mesh = Mesh((MeshAxis("dp", degree),))
        layout = Layout(mesh, GROUP)
        found = buffer_places([BufferMember(layout, shape) for shape in members], multiple=2 * degree)
        return [(layout, place) for place in found]

    for shape, (old, old_place), (new, new_place) in zip(members, placed(before), placed(after), strict=True):
        plan = Exchange(lower(old, shape, place=old_place), lower(new, shape, place=new_place)).plan()
        assert sum(copy.size for copy in plan.copies) == math.prod(shape)
        assert len(plan.copies) <= (before + after) * max(1, 2 * len(shape) - 1)


def test_tensors_padded_one_by_one() -> None:
    # ZeRO-3: every tensor to ceil(n / dp) * dp, the local part of each rank to the same length.
    mesh = Mesh((MeshAxis("dp", 4),))
    lowering = lower(Layout(mesh, (Flatten(), Pad(0, multiple=4), Shard("dp", 0, "even"))), (3, 3))
    held = [model.local_of(lowering, (rank,)) for rank in range(4)]
    assert [part.tolist() for part in held if part is not None] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [-1, -1, -1],
    ]


def counted_faults(tensors: list[PlacedTensor]) -> set[int]:
    """The tensors that do not fit beside those before them, cell by cell."""
    faults: set[int] = set()
    for coordinate in tensors[0].layout.mesh.coordinates() if tensors else ():
        spans: dict[int, range] = {}
        total: int | None = None
        for number, tensor in enumerate(tensors):
            head = buffer_head(tensor.layout)
            assert head is not None
            flat = model.held(head, tensor.shape, coordinate)
            if flat is None:
                continue
            entry = 0
            for name in tensor.place.axes:
                axis = [axis.name for axis in tensor.layout.mesh.axes].index(name)
                entry = entry * tensor.layout.mesh.axes[axis].size + coordinate[axis]
            offset, mine = tensor.place.offsets[entry], tensor.place.totals[entry]
            span = range(offset, offset + flat.size)
            if span.stop > mine or total not in (None, mine):
                faults.add(number)
            elif any(set(span) & set(other) for other in spans.values()):
                faults.add(-1)
            else:
                spans[number] = span
            total = mine if total is None else total
    return faults


@given(st.data())
def test_tensors_of_a_buffer_are_checked_like_cells(data: st.DataObject) -> None:
    mesh = Mesh((MeshAxis("pp", 2), MeshAxis("tp", 3)))
    found: list[BufferMember] = []
    for shape in data.draw(st.lists(shapes(max_elements=30), max_size=4)):
        layout, _ = data.draw(placed_layouts(shape, mesh, "view pad"))
        before = itertools.takewhile(lambda step: step != Flatten(), layout.steps)
        found.append(BufferMember(Layout(mesh, (*before, Flatten(), Concat("group"))), shape))
    places = buffer_places(found)
    tensors = [
        PlacedTensor(member.layout, member.shape, place) for member, place in zip(found, places, strict=True)
    ]
    assert list(buffer_faults(tensors)) == []
    if not tensors:
        return
    # One number is moved: what follows is what counting cells says.
    number = data.draw(st.integers(0, len(tensors) - 1))
    old = tensors[number]
    entries = list(data.draw(st.sampled_from([old.place.offsets, old.place.totals])))
    entry = data.draw(st.integers(0, len(entries) - 1))
    moved = max(0, entries[entry] + data.draw(st.integers(-4, 4)))
    changed = (*entries[:entry], moved, *entries[entry + 1 :])
    if entries == list(old.place.offsets):
        place = replace(old.place, offsets=changed)
    else:
        place = replace(old.place, totals=changed)
    tensors[number] = replace(old, place=place)
    reported = list(buffer_faults(tensors))
    assert len({number for number, _ in reported}) == len(reported)
    counted = counted_faults(tensors)
    assert bool(reported) == bool(counted)
    assert counted - {-1} <= {number for number, _ in reported}


def test_faults_of_a_buffer_have_reasons() -> None:
    layout = Layout(DP, GROUP)

    def reasons(*places: BufferPlace) -> list[tuple[int, str]]:
        return list(buffer_faults([PlacedTensor(layout, (4,), place) for place in places]))

    assert buffer_tail(layout) == ("group", GROUP[2:])
    assert buffer_head(Layout(DP)) is None
    assert buffer_tail(Layout(DP)) is None
    assert reasons(BufferPlace((0,), (8,)), BufferPlace((4,), (8,))) == []
    assert reasons(BufferPlace((0,), (8,)), BufferPlace((3,), (8,)), BufferPlace((4,), (8,))) == [
        (1, "at {'dp': 0}, it overlaps another tensor from element 3 on"),
        (2, "at {'dp': 0}, it overlaps another tensor from element 4 on"),
    ]
    # The third begins where both before it end.
    assert reasons(BufferPlace((0,), (8,)), BufferPlace((0,), (8,)), BufferPlace((4,), (8,))) == [
        (1, "at {'dp': 0}, it overlaps another tensor from element 0 on")
    ]
    assert reasons(BufferPlace((0,), (8,)), BufferPlace((5,), (8,))) == [
        (1, "at {'dp': 0}, [5, 9) leaves a buffer of 8 elements")
    ]
    assert reasons(BufferPlace((0,), (8,)), BufferPlace((4,), (9,))) == [
        (1, "at {'dp': 0}, the buffer has 9 elements here and 8 elsewhere")
    ]
    assert reasons(BufferPlace((0,), (8,), ("dp",)), BufferPlace((4, 4), (8, 8), ("tp",))) == [
        (0, "it is one buffer along ['dp']: one place for all of it"),
        (1, "('tp',) are not distinct axes of the mesh"),
    ]


def test_a_buffer_of_thousands_is_checked_by_what_each_rank_holds() -> None:
    mesh = Mesh((MeshAxis("pp", 4), MeshAxis("tp", 4), MeshAxis("dp", 1 << 10)))
    layouts = [
        Layout(mesh, (Only("pp", (stage,)), Shard("tp", 0), Flatten(), Concat("group"), Shard("dp", 0)))
        for stage in range(4)
    ]
    tensors = [
        PlacedTensor(layout, (64, 1 << 20), BufferPlace((number << 24,), (1000 << 24,)))
        for layout in layouts
        for number in range(1000)
    ]
    assert list(buffer_faults(tensors)) == []
    last = replace(tensors[-1], place=BufferPlace(((999 << 24) - 1,), (1000 << 24,)))
    assert [number for number, _ in buffer_faults([*tensors[:-1], last])] == [3999]


def test_no_members_need_no_places() -> None:
    assert buffer_places([]) == ()


def test_groups_that_are_none_are_refused() -> None:
    inside = BufferMember(Layout(DP, GROUP), (4,))
    outside = BufferMember(Layout(DP, GROUP[:1]), (4,))
    elsewhere = BufferMember(Layout(Mesh((MeshAxis("dp", 3),)), GROUP), (4,))
    for members, align, at in (
        ([inside, outside], 1, "/1"),
        ([inside, elsewhere], 1, "/1"),
        ([inside], 0, ""),
    ):
        with pytest.raises(LayoutError) as caught:
            buffer_places(members, align=align)
        assert (caught.value.code, caught.value.at) == ("UCP-E-LAYOUT", at)


RAGGED = Mesh((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (3, 1))))


@pytest.mark.parametrize(
    ("mesh", "steps", "place", "at"),
    [
        (DP, GROUP, None, "/steps/1"),
        (DP, (), BufferPlace((0,), (4,)), "/steps"),
        (DP, GROUP, BufferPlace((0,), (4,), ("tp",)), "/steps/1/axes"),
        (DP, GROUP, BufferPlace((0,) * 4, (4,) * 4, ("dp", "dp")), "/steps/1/axes"),
        (RAGGED, GROUP, BufferPlace((0,) * 3, (4,) * 3, ("dp",)), "/steps/1/axes"),
        (RAGGED, GROUP[:2], BufferPlace((0,) * 3, (4,) * 3, ("dp",)), "/steps/1/axes"),
        (DP, GROUP, BufferPlace((0, 0), (4,)), "/steps/1"),
        (DP, GROUP, BufferPlace((-1,), (4,)), "/steps/1"),
        (DP, GROUP, BufferPlace((3,), (6,)), "/steps/1"),
        (DP, GROUP[:2], BufferPlace((0, 0), (4, 3), ("dp",)), "/steps/1"),
        (DP, GROUP, BufferPlace((0, 0), (4, 4), ("dp",)), "/steps/1/axes"),
        (DP, (Partial("dp", "sum"), *GROUP[:2]), BufferPlace((0, 0), (4, 4), ("dp",)), "/steps/2/axes"),
        (
            DP,
            (*GROUP[:2], Blocks(0, (1, 3), (None, (Shard("dp", 0),)))),
            BufferPlace((0, 0), (4, 4), ("dp",)),
            "/steps/1/axes",
        ),
        (DP, GROUP, BufferPlace((0,), (5,)), "/steps/2/rule"),
        (DP, (Pad(0, to=3), *GROUP), BufferPlace((0,), (4,)), "/steps/0/to"),
    ],
)
def test_places_that_do_not_fit_are_refused(
    mesh: Mesh, steps: tuple[Step, ...], place: BufferPlace | None, at: str
) -> None:
    with pytest.raises(LayoutError) as caught:
        lower(Layout(mesh, steps), (4,), place=place)
    assert (caught.value.code, caught.value.at) == ("UCP-E-LAYOUT", at)


@pytest.mark.parametrize("stages", [2, 64])
def test_a_buffer_of_one_stage_is_checked_where_it_is(monkeypatch: pytest.MonkeyPatch, stages: int) -> None:
    """However many stages there are: a job has a buffer for each, and they are not all looked at for all."""
    mesh = Mesh((MeshAxis("pp", stages), MeshAxis("tp", 2), MeshAxis("dp", 4)))
    looked: list[tuple[int, ...]] = []
    faults_at = buffer_check._faults_at

    def counted(coordinate: tuple[int, ...], *rest: Any) -> Any:
        looked.append(coordinate)
        return faults_at(coordinate, *rest)

    monkeypatch.setattr(buffer_check, "_faults_at", counted)
    layout = Layout(
        mesh, (Only("pp", (1,)), Shard("tp", 0, "even"), Flatten(), Concat("one"), Shard("dp", 0, "even"))
    )
    tensors = [PlacedTensor(layout, (8,), BufferPlace((start,), (12,))) for start in (0, 3, 8)]
    assert [number for number, _ in buffer_faults(tensors)] == [1]
    assert {coordinate[0] for coordinate in looked} == {1}
    assert len(looked) == 2
    both = PlacedTensor(Layout(mesh, (Only("pp", (0, 1)), *layout.steps[1:])), (8,), BufferPlace((1,), (12,)))
    looked.clear()
    assert [number for number, _ in buffer_faults([tensors[0], both])] == [1]
    assert {coordinate[0] for coordinate in looked} == {0, 1}
