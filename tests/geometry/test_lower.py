from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import ALL_KINDS, lowerings, meshes, placed_layouts, shapes
from ucpformat.errors import LayoutError, UcpError
from ucpformat.geometry import (
    BlockRule,
    Blocks,
    Box,
    Flatten,
    Join,
    Layout,
    Mesh,
    MeshAxis,
    Only,
    Pad,
    Piece,
    Shard,
    Step,
    Strided,
    canonical,
    covers,
    distinct_boxes,
    lower,
)

TP = Mesh((MeshAxis("tp", 2),))
DP_TP = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 2)))


@given(st.data(), shapes())
def test_every_coordinate_holds_what_the_steps_say(data: st.DataObject, shape: tuple[int, ...]) -> None:
    layout, place = data.draw(placed_layouts(shape, kinds=ALL_KINDS))
    lowering = lower(layout, shape, place=place)
    for kind in {type(step).__name__ for step in layout.steps}:
        event(kind)
    for coordinate in layout.mesh.coordinates():
        expected = model.held(layout, shape, coordinate, place)
        found = model.local_of(lowering, coordinate)
        if expected is None:
            assert found is None
        else:
            assert found is not None
            assert found.shape == expected.shape
            np.testing.assert_array_equal(found, expected)
        assert lowering.size_at(coordinate) == (None if expected is None else expected.size)


@given(st.data(), shapes())
def test_piece_lists_are_canonical(data: st.DataObject, shape: tuple[int, ...]) -> None:
    lowering = data.draw(lowerings(shape, ALL_KINDS))
    for region in lowering.regions():
        assert canonical(region.local_map.pieces, lowering.view) == region.local_map.pieces


def test_rows_that_lose_their_ends_to_padding_are_one_piece() -> None:
    mesh = Mesh((MeshAxis("dp", 4),))
    layout = Layout(mesh, (Pad(1, multiple=2), Flatten(), Shard("dp", 0, "ceil")))
    held = lower(layout, (6, 1)).at((0,))
    assert held is not None
    assert held.pieces == (Piece(Box((0, 0), (2, 1)), Strided(0, (2, 0))),)


@given(st.data(), shapes())
def test_regions_are_the_distinct_maps_with_all_their_holders(
    data: st.DataObject, shape: tuple[int, ...]
) -> None:
    lowering = data.draw(lowerings(shape, ALL_KINDS))
    layout = lowering.layout
    regions = lowering.regions()
    assert len({region.local_map for region in regions}) == len(regions)
    by_rank = {rank: region.local_map for region in regions for rank in region.holders}
    assert sum(len(region.holders) for region in regions) == len(by_rank)
    for coordinate in layout.mesh.coordinates():
        assert by_rank.get(layout.mesh.rank_of(coordinate)) == lowering.at(coordinate)
    assert all(list(region.holders) == sorted(region.holders) for region in regions)


@given(st.data(), shapes())
def test_extracting_and_giving_back_rebuilds_the_tensor(data: st.DataObject, shape: tuple[int, ...]) -> None:
    lowering = data.draw(lowerings(shape, ALL_KINDS))
    logical = model.counter(lowering.view)
    rebuilt = np.full(lowering.view, -1)
    for region in lowering.regions():
        local = model.local_array(region.local_map, logical)
        assert int((local >= 0).sum()) == region.local_map.mapped
        model.give_back(region.local_map, local, rebuilt)
    np.testing.assert_array_equal(rebuilt, logical)
    assert covers(distinct_boxes(lowering), lowering.view) is None


def test_pieces_follow_blocks_and_not_extents() -> None:
    mesh = Mesh((MeshAxis("dp", 64), MeshAxis("tp", 8)))
    steps = (Blocks(0, (2**40, 2**30, 2**30)), Shard("tp", 0, "even"), Flatten(), Shard("dp", 0, "ceil"))
    lowering = lower(Layout(mesh, steps), (2**40 + 2**31, 4097))
    for coordinate in ((0, 0), (33, 3), (63, 7)):
        local_map = lowering.at(coordinate)
        assert local_map is not None
        assert 1 <= len(local_map.pieces) <= 9


def test_replication_is_computed_once() -> None:
    mesh = Mesh((MeshAxis("dp", 4096), MeshAxis("tp", 2)))
    first, second = lower(Layout(mesh, (Shard("tp", 0),)), (3,)).regions()
    assert first.holders == tuple(range(0, 8192, 2))
    assert second.local_map.shape == (1,)


def test_fused_query_key_value() -> None:
    layout = Layout(TP, (Blocks(0, (4, 2, 2)), Shard("tp", 0, "even")))
    local_map = lower(layout, (8, 3)).at((1,))
    assert local_map is not None
    assert local_map.shape == (4, 3)
    assert local_map.pieces == (
        Piece(Box((2, 0), (2, 3)), Strided(0, (3, 1))),
        Piece(Box((5, 0), (1, 3)), Strided(6, (0, 1))),
        Piece(Box((7, 0), (1, 3)), Strided(9, (0, 1))),
    )


def test_a_replicated_block_beside_a_split_one() -> None:
    layout = Layout(TP, (Blocks(0, (4, 1), (None, ())), Shard("tp", 0)))
    logical = np.arange(5)
    first, second = (region.local_map for region in lower(layout, (5,)).regions())
    assert model.local_array(first, logical).tolist() == [0, 1, 4]
    assert model.local_array(second, logical).tolist() == [2, 3, 4]
    # The last query rows and the replicated block lie side by side here and there, so they are one piece.
    assert second.pieces == (Piece(Box((2,), (3,)), Strided(0, (1,))),)


def test_one_axis_may_split_free_blocks_and_those_with_steps_of_their_own() -> None:
    mesh = Mesh((MeshAxis("kv", 2), MeshAxis("rep", 2)))
    own = (Shard("kv", 0),)
    steps = (Blocks(0, (8, 2, 2), (None, own, own)), Shard("kv", 0), Shard("rep", 0))
    lowering = lower(Layout(mesh, steps), (12,))
    held: dict[int, list[int]] = {}
    for region in lowering.regions():
        for rank in region.holders:
            held[rank] = model.local_array(region.local_map, np.arange(12)).tolist()
    assert held == {0: [0, 1, 8, 10], 1: [2, 3, 8, 10], 2: [4, 5, 9, 11], 3: [6, 7, 9, 11]}


def test_steps_after_a_join_see_one_dim() -> None:
    steps = (Blocks(0, (5, 4)), Shard("dp", 0), Join(0), Shard("tp", 0))
    lowering = lower(Layout(DP_TP, steps), (9,))
    held = [model.local_array(region.local_map, np.arange(9)).tolist() for region in lowering.regions()]
    assert held == [[0, 1, 2], [5, 6], [3, 4], [7, 8]]


def test_sizes_that_sum_at_every_coordinate_are_legal() -> None:
    own = ((Shard("tp", 0, (3, 1)),), (Shard("tp", 0, (1, 3)),))
    steps = (Blocks(0, (4, 4), own), Join(0), Blocks(0, (2, 2)), Shard("dp", 0, "even"))
    held = [
        model.local_array(region.local_map, np.arange(8)).tolist()
        for region in lower(Layout(DP_TP, steps), (8,)).regions()
    ]
    assert held == [[0, 2], [3, 6], [1, 4], [5, 7]]


def test_absent_is_not_empty() -> None:
    layout = Layout(DP_TP, (Only("dp", (1,)), Shard("tp", 0)))
    lowering = lower(layout, (1, 4))
    assert lowering.at((0, 0)) is None
    empty = lowering.at((1, 1))
    assert empty is not None
    assert (empty.shape, empty.pieces, empty.size) == ((0, 4), (), 0)


@given(st.data(), meshes())
def test_layouts_that_say_the_same_lower_the_same(data: st.DataObject, mesh: Mesh) -> None:
    extent = data.draw(st.integers(0, 40))
    fixed = [axis for axis in mesh.axes if isinstance(axis, MeshAxis)]
    axis = data.draw(st.sampled_from(fixed)) if fixed else MeshAxis("a0", 1)
    mesh = mesh if fixed else Mesh((axis,))
    chunk = -(-extent // axis.size)
    sizes = tuple(min(chunk, extent - min(place * chunk, extent)) for place in range(axis.size))
    same: list[tuple[Step, ...]] = [
        (Shard(axis.name, 0, "ceil"),),
        (Shard(axis.name, 0, sizes),),
        (Blocks(0, (extent,)), Shard(axis.name, 0)),
        (Blocks(0, (0, extent), ((), None)), Shard(axis.name, 0, "ceil"), Join(0)),
        (Blocks(0, (extent,), ((Shard(axis.name, 0, sizes),),)),),
        (Flatten(), Shard(axis.name, 0)),
    ]
    lowered = [lower(Layout(mesh, steps), (extent,)).regions() for steps in same]
    assert all(regions == lowered[0] for regions in lowered)


def test_rows_of_a_flat_tensor_are_merged_across_its_blocks() -> None:
    layout = Layout(TP, (Flatten(), Blocks(0, (4, 4, 4)), Shard("tp", 0)))
    local_map = lower(layout, (3, 4)).at((1,))
    assert local_map is not None
    assert local_map.pieces == (Piece(Box((0, 2), (3, 2)), Strided(0, (2, 1))),)


@pytest.mark.parametrize(
    ("steps", "shape", "at"),
    [
        ((Shard("tp", 0, "even"),), (3,), "/steps/0/rule"),
        ((Shard("tp", 0, (1, 1)),), (3,), "/steps/0/sizes"),
        ((Shard("dp", 0, "even"), Blocks(0, (4,))), (4,), "/steps/1/sizes"),
        ((Blocks(0, (3, 1), (None, (Shard("tp", 0, (1, 1)),))),), (4,), "/steps/0/steps/1/0/sizes"),
        # These fail at one coordinate and must fail at all.
        ((Shard("dp", 0), Shard("tp", 0, "even")), (5,), "/steps/1/rule"),
        ((Shard("dp", 0), Flatten(), Shard("tp", 0, "even")), (3, 1), "/steps/2/rule"),
        ((Shard("dp", 0), Blocks(0, (3,))), (5,), "/steps/1/sizes"),
        ((Blocks(0, (5,), ((Shard("dp", 0), Shard("tp", 0, "even")),)),), (5,), "/steps/0/steps/0/1/rule"),
        ((Shard("tp", 2),), (4, 4), "/steps/0/dim"),
        ((Join(0),), (4,), "/steps/0"),
        ((Flatten(), Blocks(0, (3,))), (2, 2), "/steps/1/sizes"),
        ((Pad(0, to=3),), (4,), "/steps/0/to"),
        ((Shard("dp", 0), Pad(0, to=2)), (5,), "/steps/1/to"),
        ((Shard("dp", 0), Blocks(0, BlockRule("even", 2))), (6,), "/steps/1/rule"),
    ],
)
def test_what_does_not_lower_is_refused_with_its_place(
    steps: tuple[Step, ...], shape: tuple[int, ...], at: str
) -> None:
    """UCP-D-045, UCP-D-051, UCP-D-060, UCP-D-052, UCP-D-055."""
    with pytest.raises(LayoutError) as caught:
        lower(Layout(DP_TP, steps), shape)
    assert (caught.value.code, caught.value.at) == ("UCP-E-LAYOUT", at)


def test_what_is_no_shape_or_coordinate_is_refused() -> None:
    with pytest.raises(UcpError, match="UCP-E-SHAPE"):
        lower(Layout(TP), (-1,))
    with pytest.raises(LayoutError):
        lower(Layout(TP), (1,)).at((2,))


def test_layouts_of_too_many_pieces_are_refused_and_not_spelled_out() -> None:
    """UCP-D-059, UCP-D-066."""
    with pytest.raises(UcpError) as caught:
        Layout(TP, (Blocks(0, BlockRule("ceil", 2**53 - 1)),))
    assert (caught.value.code, caught.value.at) == ("UCP-E-LIMIT", "/steps/0/count")
    mesh = Mesh(tuple(MeshAxis(f"a{dim}", 2) for dim in range(3)))
    steps: list[Step] = []
    for dim in range(3):
        steps += [Blocks(dim, BlockRule("ceil", 1 << 10)), Shard(f"a{dim}", dim), Join(dim)]
    wide = lower(Layout(mesh, tuple(steps)), (1 << 12,) * 3)
    flat = lower(Layout(mesh, (*steps, Flatten())), (1 << 12,) * 3)
    for lowering in (wide, flat):
        with pytest.raises(UcpError, match="UCP-E-LIMIT"):
            lowering.at((0, 0, 0))
    # Blocks of what blocks have left: one sweep each.
    twice = (
        Blocks(0, BlockRule("ceil", 1 << 13)),
        Shard("tp", 0),
        Join(0),
        Blocks(0, BlockRule("balanced", 1 << 13)),
    )
    held = lower(Layout(TP, twice), (1 << 15,)).at((0,))
    assert held is not None
    assert len(held.pieces) == 1 << 13


@pytest.mark.parametrize(
    ("shape", "steps"),
    [((1, 2), (Pad(0, to=2**53 - 1),)), ((2, 3), (Flatten(), Pad(0, multiple=2**53 - 1), Pad(0, to=2**53)))],
)
def test_a_local_tensor_has_no_more_elements_than_a_double_counts(
    shape: tuple[int, ...], steps: tuple[Step, ...]
) -> None:
    """UCP-D-065 at a coordinate, UCP-D-064 before any."""
    with pytest.raises(UcpError, match="UCP-E-LIMIT"):
        lower(Layout(TP, steps), shape).at((0,))
