from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import lowerings, shapes, tilings, views_of
from ucpformat.errors import UcpError
from ucpformat.geometry import (
    AtomMap,
    Box,
    Layout,
    Member,
    Mesh,
    MeshAxis,
    NameMap,
    Shard,
    compose_atoms,
    concatenated,
    lower,
    member_reads,
    stacked,
)

Arrays = dict[str, model.Array]


@st.composite
def atom_maps(draw: st.DrawFn, shape: tuple[int, ...]) -> AtomMap:
    """Maps whose members tile a view of ``shape``, some of them transposed and flattened."""
    view = draw(views_of(math.prod(shape)))
    members: list[Member] = []
    for box in draw(tilings(Box.whole(view))):
        order = draw(st.none() | st.permutations(range(len(view))).map(tuple))
        kept = tuple(box.shape[dim] for dim in (order or range(len(view))))
        members.append(Member(f"m{len(members)}", draw(st.sampled_from([kept, (box.size,)])), box, order))
    return AtomMap("hub", shape, view, tuple(members))


def members_of(atom_map: AtomMap) -> Arrays:
    """The member tensors when the hub is `counter`, by plain numpy indexing."""
    hub = model.counter(atom_map.view)
    parts = {member.name: hub[model.slices(member.box)] for member in atom_map.members}
    return {
        member.name: parts[member.name]
        .transpose(member.order or range(hub.ndim))
        .copy("C")
        .reshape(member.shape)
        for member in atom_map.members
    }


SOLID = shapes(max_elements=120).filter(lambda shape: 0 not in shape)


@given(st.data(), SOLID)
def test_n_atoms_become_m(data: st.DataObject, shape: tuple[int, ...]) -> None:
    source, target = data.draw(atom_maps(shape)), data.draw(atom_maps(shape))
    held, wanted = members_of(source), members_of(target)
    made = {name: np.full(array.size, -1) for name, array in wanted.items()}
    copies = compose_atoms(source, target)
    for copy in copies:
        model.apply([copy.move], held[copy.source].reshape(-1), made[copy.target])
    for name, array in wanted.items():
        np.testing.assert_array_equal(made[name], array.reshape(-1))
    sizes = sum(math.prod(copy.move.shape) for copy in copies)
    assert sizes == math.prod(shape)


@given(st.data(), SOLID)
def test_a_rank_reads_its_part_from_the_members(data: st.DataObject, shape: tuple[int, ...]) -> None:
    atom_map, lowering = data.draw(atom_maps(shape)), data.draw(lowerings(shape))
    held = members_of(atom_map)
    for region in lowering.regions()[:4]:
        memory = np.full(region.local_map.size, -1)
        for name, move in member_reads(atom_map, region.local_map, lowering.view):
            assert move.factor == lowering.scale
            model.apply([move], held[name].reshape(-1), memory)
        expected = model.local_array(region.local_map, model.counter(lowering.view))
        np.testing.assert_array_equal(memory, expected.reshape(-1))


def test_experts_one_by_one_against_a_stack() -> None:
    """Per-expert files are read into a rank that holds two of four experts, column by column."""
    names = [f"experts.{number}.w" for number in range(4)]
    hub = stacked("experts.w", names, (6, 4))
    assert hub.shape == (4, 6, 4)
    mesh = Mesh((MeshAxis("ep", 2), MeshAxis("tp", 2)))
    lowering = lower(Layout(mesh, (Shard("ep", 0), Shard("tp", 2))), hub.shape)
    held = lowering.at((1, 0))
    assert held is not None
    reads = member_reads(hub, held, lowering.view)
    assert [(name, move.shape) for name, move in reads] == [(names[2], (1, 6, 2)), (names[3], (1, 6, 2))]
    along = stacked("experts.w", names, (6, 4), dim=2)
    assert along.shape == (6, 4, 4)
    assert along.members[1].box == Box((0, 0, 1), (6, 4, 1))


def test_query_key_value_apart_against_groups() -> None:
    """Megatron fuses, per group, the queries that share a key and the key and the value."""
    groups, queries, width, hidden = 4, 3, 2, 5
    view = (groups, queries + 2, width, hidden)
    fused = AtomMap(
        "qkv",
        (groups * (queries + 2) * width, hidden),
        view,
        (
            Member(
                "q", (groups * queries * width, hidden), Box((0, 0, 0, 0), (groups, queries, width, hidden))
            ),
            Member("k", (groups * width, hidden), Box((0, queries, 0, 0), (groups, 1, width, hidden))),
            Member("v", (groups * width, hidden), Box((0, queries + 1, 0, 0), (groups, 1, width, hidden))),
        ),
    )
    whole = AtomMap("qkv", fused.shape, fused.shape, (Member("qkv", fused.shape, Box.whole(fused.shape)),))
    copies = compose_atoms(whole, fused)
    # One strided copy for each member, however many groups there are.
    assert [copy.target for copy in copies] == ["q", "k", "v"]
    assert len(compose_atoms(fused, whole)) == 3


def test_gate_and_up_follow_one_another() -> None:
    hub = concatenated("gate_up", [("gate", (3, 2)), ("up", (5, 2))])
    assert (hub.shape, hub.members[1].box) == ((8, 2), Box((3, 0), (5, 2)))
    beside = concatenated("gate_up", [("gate", (3, 2)), ("up", (3, 1))], dim=1)
    assert (beside.shape, beside.members[1].box) == ((3, 3), Box((0, 2), (3, 1)))


def test_hubs_of_other_shapes_do_not_compose() -> None:
    one, other = stacked("a", ["x"], (2,)), stacked("a", ["x", "y"], (2,))
    with pytest.raises(UcpError, match="UCP-E-MISMATCH"):
        compose_atoms(one, other)
    lowering = lower(Layout(Mesh(())), (3,))
    with pytest.raises(UcpError, match="UCP-E-MISMATCH"):
        member_reads(one, lowering.regions()[0].local_map, lowering.view)


def test_empty_members_hold_nothing() -> None:
    hub = AtomMap("a", (0, 3), (0, 3), (Member("x", (0,), Box((0, 0), (0, 3))),))
    assert compose_atoms(hub, hub) == ()


LINE = Member("x", (4,), Box((0,), (4,)))


@pytest.mark.parametrize(
    ("shape", "view", "members", "code", "at"),
    [
        ((4,), (3,), (), "UCP-E-SHAPE", "/view"),
        ((4,), (-2, -2), (), "UCP-E-SHAPE", "/view"),
        ((4,), (4,), (LINE, LINE), "UCP-E-NAME", "/members/1/name"),
        ((4,), (4,), (Member("x", (4,), Box((0, 0), (4, 1))),), "UCP-E-SHAPE", "/members/0/box"),
        ((4,), (4,), (Member("x", (3,), Box((0,), (4,))),), "UCP-E-SHAPE", "/members/0/shape"),
        ((4,), (4,), (Member("x", (4,), Box((0,), (4,)), (1,)),), "UCP-E-SHAPE", "/members/0/order"),
        ((4,), (4,), (), "UCP-E-COVER", "/members"),
        ((4,), (4,), (LINE, Member("y", (1,), Box((1,), (1,)))), "UCP-E-COVER", "/members"),
    ],
)
def test_malformed_maps_are_refused(
    shape: tuple[int, ...], view: tuple[int, ...], members: tuple[Member, ...], code: str, at: str
) -> None:
    with pytest.raises(UcpError) as caught:
        AtomMap("a", shape, view, members)
    assert (caught.value.code, caught.value.at) == (code, at)


def test_members_that_cannot_be_joined_are_refused() -> None:
    for members, dim in (([], 0), ([("x", (2, 3)), ("y", (2, 4))], 0), ([("x", (2,))], 1)):
        with pytest.raises(UcpError, match="UCP-E-SHAPE"):
            concatenated("a", members, dim=dim)
    with pytest.raises(UcpError, match="UCP-E-SHAPE"):
        stacked("a", ["x"], (2,), dim=2)


def test_names_are_exchanged() -> None:
    swap = NameMap((("a", "b"), ("b", "a")))
    assert swap.apply(("a", "b", "c")) == ("b", "a", "c")


@pytest.mark.parametrize(
    ("pairs", "at"), [((("a", "b"), ("a", "c")), "/1/0"), ((("a", "c"), ("b", "c")), "/1/1")]
)
def test_names_that_are_not_one_to_one_are_refused(pairs: tuple[tuple[str, str], ...], at: str) -> None:
    with pytest.raises(UcpError) as caught:
        NameMap(pairs)
    assert (caught.value.code, caught.value.at) == ("UCP-E-NAME", at)


def test_names_that_collide_or_are_missing_are_refused() -> None:
    renaming = NameMap((("a", "b"),))
    for names in (("a", "b"), ("c",)):
        with pytest.raises(UcpError, match="UCP-E-NAME"):
            renaming.apply(names)
