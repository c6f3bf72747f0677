"""Layouts that other systems name, or refuse to name, each moved to another degree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from ucpformat.errors import LayoutError
from ucpformat.geometry import (
    ALIGNED_BYTES,
    Blocks,
    DTensorPartial,
    DTensorShard,
    Flatten,
    Layout,
    Lowering,
    Mesh,
    MeshAxis,
    Only,
    Partial,
    Permute,
    RaggedAxis,
    Shard,
    Step,
    View,
    dtensor_steps,
    flat_parameter_places,
    flat_parameter_steps,
    lower,
    named_sharding_steps,
    ordered_dtensor_steps,
    plan_transfer,
    ratio_sizes,
    shard_order,
    sub_parameter_steps,
    tied_steps,
    unequal_stages,
)


def mesh(**sizes: int) -> Mesh:
    return Mesh(tuple(MeshAxis(name, size) for name, size in sizes.items()))


def locals_of(lowering: Lowering) -> list[list[int]]:
    """What every coordinate holds of the flattened counter, in the order of coordinates."""
    held = (model.local_of(lowering, coordinate) for coordinate in lowering.layout.mesh.coordinates())
    return [[] if part is None else part.reshape(-1).tolist() for part in held]


def assert_moves(source: Lowering, target: Lowering) -> None:
    """The plan fills every local tensor of the target."""
    memory = {}
    for lowering, made in ((source, {}), (target, {})):
        for coordinate in lowering.layout.mesh.coordinates():
            part = model.local_of(lowering, coordinate)
            if part is not None:
                made[lowering.layout.mesh.rank_of(coordinate)] = part.reshape(-1)
        memory[lowering is target] = made
    received = {rank: np.full(part.size, -1) for rank, part in memory[True].items()}
    for copy in plan_transfer(source, target).copies:
        part = model.view(memory[False][copy.source_rank], copy.shape, copy.source)
        model.view(received[copy.target_rank], copy.shape, copy.target)[...] = part
    for rank, part in memory[True].items():
        np.testing.assert_array_equal(received[rank], part)


def both(steps: tuple[Step, ...], shape: tuple[int, ...], before: Mesh, after: Mesh) -> Lowering:
    source, target = lower(Layout(before, steps), shape), lower(Layout(after, steps), shape)
    assert_moves(source, target)
    assert_moves(target, source)
    return source


def test_dtensor_placements_are_read_from_left_to_right() -> None:
    placements: list[DTensorShard | DTensorPartial]
    placements = [DTensorShard("dp", -2, 2), DTensorPartial("cp", "sum"), DTensorShard("tp", 0)]
    steps = dtensor_steps(placements, 2)
    assert [type(step).__name__ for step in steps] == ["Blocks", "Shard", "Join", "Partial", "Shard"]
    assert steps[3] == Partial("cp", "sum")
    for placement, at in ((DTensorShard("dp", 2), "/0/dim"), (DTensorShard("dp", 0, 0), "/0/split_factor")):
        with pytest.raises(LayoutError) as caught:
            dtensor_steps([placement], 2)
        assert caught.value.at == at


def test_fsdp_over_tp_changes_its_degree() -> None:
    steps = dtensor_steps([DTensorShard("dp", 0, 2), DTensorShard("tp", 0)], 2)
    more = dtensor_steps([DTensorShard("dp", 0, 3), DTensorShard("tp", 0)], 2)
    shape = (13, 3)
    source = lower(Layout(mesh(dp=2, tp=2), steps), shape)
    assert_moves(source, lower(Layout(mesh(dp=4, tp=3), more), shape))


@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_jax_named_shardings(data: st.DataObject, x: int, y: int, z: int) -> None:
    """The formula of the devices' index maps, major axis first, on every dim of a partition spec."""
    grid = mesh(x=x, y=y, z=z)
    names = data.draw(st.permutations(["x", "y", "z"]))
    cut = data.draw(st.integers(0, 3))
    spec = [tuple(names[:cut]), None, names[cut] if cut < 3 else None]
    shape = tuple(
        2 * math.prod(size for name, size in zip("xyz", grid.shape, strict=True) if name in (axes or ()))
        for axes in spec
    )
    lowering = lower(Layout(grid, named_sharding_steps(spec)), shape)
    for coordinate in grid.coordinates():
        index = []
        for axes, extent in zip(spec, shape, strict=True):
            part, parts = 0, 1
            for name in axes or ():
                axis = "xyz".index(name)
                part, parts = part * grid.shape[axis] + coordinate[axis], parts * grid.shape[axis]
            index.append(slice(part * extent // parts, (part + 1) * extent // parts))
        found = model.local_of(lowering, coordinate)
        np.testing.assert_array_equal(found, model.counter(shape)[tuple(index)])
    assert_moves(lowering, lower(Layout(mesh(x=2), (Shard("x", 0),)), shape))


@given(st.integers(0, 40), st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any))
def test_uneven_ratios_sum_and_keep_their_zeros(extent: int, ratios: list[int]) -> None:
    sizes = ratio_sizes(extent, ratios)
    assert sum(sizes) == extent
    for size, ratio in zip(sizes, ratios, strict=True):
        assert abs(size - extent * ratio / sum(ratios)) < 1
        assert ratio or not size
    source = lower(Layout(mesh(dev=len(ratios)), (Shard("dev", 0, sizes),)), (extent, 2))
    assert_moves(
        source, lower(Layout(mesh(dev=3), (Shard("dev", 0, ratio_sizes(extent, (0, 2, 1))),)), (extent, 2))
    )


@pytest.mark.parametrize("ratios", [(), (0, 0), (1, -1)])
def test_ratios_that_are_none_are_refused(ratios: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError):
        ratio_sizes(4, ratios)


def test_sub_parameters() -> None:
    """Grouped queries: the widths of query, key and value are split each for itself."""
    source = both(sub_parameter_steps("tp", 0, (8, 4, 4)), (16, 2), mesh(tp=2), mesh(tp=4))
    held = source.at((1,))
    assert held is not None
    assert [piece.box.offset[0] for piece in held.pieces] == [4, 10, 14]
    # Uneven: five query heads of width 2 on two ranks, three and two; key and value on the first alone.
    widths = ((6, 4), (2, 0), (2, 0))
    uneven = lower(Layout(mesh(tp=2), sub_parameter_steps("tp", 0, (10, 2, 2), widths)), (14,))
    assert locals_of(uneven) == [[0, 1, 2, 3, 4, 5, 10, 11, 12, 13], [6, 7, 8, 9]]
    assert_moves(uneven, lower(Layout(mesh(tp=1), sub_parameter_steps("tp", 0, (10, 2, 2))), (14,)))


def test_fused_experts_split_inside_each_expert() -> None:
    """A stack of experts [E * h, w] whose rows are split inside each expert is one piece for any E."""
    for experts in (2, 16, 256):
        steps = (View((experts, 4, 3)), Shard("tp", 1, "even"))
        source = both(steps, (experts * 4, 3), mesh(tp=2), mesh(tp=4))
        assert all(len(region.local_map.pieces) == 1 for region in source.regions())


# The four layouts that categories by regular expression could not say.


def test_starcoder_keeps_one_key_value_block_everywhere() -> None:
    """bigcode: all query heads are split, the one key and value head is held by every rank."""
    steps = (Blocks(0, (8, 4), (None, ())), Shard("tp", 0, "even"))
    source = both(steps, (12, 2), mesh(tp=2), mesh(tp=4))
    assert locals_of(source)[1] == [*range(8, 16), *range(16, 24)]


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_codegen_fuses_four_groups_of_query_value_key(tp: int) -> None:
    """CodeGen: four groups, each query, value, key; a rank has query, value, key of its heads in each."""

    def steps(ranks: int) -> tuple[Step, ...]:
        return (
            View((4, 3, ranks, 16 // ranks, 2)),
            Permute((0, 2, 1, 3, 4)),
            View((192, 2)),
            Shard("tp", 0, "even"),
        )

    source = lower(Layout(mesh(tp=tp), steps(tp)), (192, 2))
    logical = model.counter((192, 2))
    # Spelled out: split each group in q, v, k, each of these in ranks, and put those of a rank together.
    blocks = [
        logical[48 * group + 16 * part + 16 // tp * rank :][: 16 // tp]
        for group in range(4)
        for rank in range(tp)
        for part in range(3)
    ]
    expected = np.split(np.concatenate(blocks), tp)
    for rank in range(tp):
        np.testing.assert_array_equal(model.local_of(source, (rank,)), expected[rank])
        held = source.at((rank,))
        assert held is not None
        assert len(held.pieces) <= 3
    assert_moves(source, lower(Layout(mesh(tp=8), steps(8)), (192, 2)))


def test_yuan_shares_heads_between_neighbours() -> None:
    """Yuan: the value heads of a rank are some of the first half and their counterparts in the second."""
    heads, width = 8, 2
    source = both(
        (Blocks(0, (heads // 2 * width,) * 2), Shard("tp", 0, "even")),
        (heads * width, 3),
        mesh(tp=2),
        mesh(tp=4),
    )
    logical = model.counter((heads * width, 3))
    for rank in range(2):
        ids = [rank * 2 + place for place in range(2)]
        ids += [place + heads // 2 for place in ids]
        expected = np.concatenate([logical[place * width : (place + 1) * width] for place in ids])
        np.testing.assert_array_equal(model.local_of(source, (rank,)), expected)


def test_heads_that_ranks_do_not_divide() -> None:
    """Uneven: five heads on two and on three ranks, with the interleaving of query, key and value undone."""

    def layout(*heads: int) -> Layout:
        steps = (
            View((3, 5, 2)),
            Permute((1, 0, 2)),
            View((30,)),
            Shard("tp", 0, tuple(6 * n for n in heads)),
        )
        return Layout(mesh(tp=len(heads)), steps)

    source, target = lower(layout(3, 2), (30,)), lower(layout(2, 2, 1), (30,))
    assert locals_of(source)[1] == [6, 7, 16, 17, 26, 27, 8, 9, 18, 19, 28, 29]
    assert all(len(region.local_map.pieces) == 1 for region in source.regions())
    assert_moves(source, target)


def test_stages_of_unequal_width() -> None:
    """PipeDream: the first stage has three replicas, the second one; each splits its states among its own."""
    ragged = Mesh((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (3, 1))))
    source = both(
        (Shard("pp", 0, "even"), Flatten(), Shard("dp", 0)),
        (4, 5),
        ragged,
        Mesh((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (1, 2)))),
    )
    assert locals_of(source) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], list(range(10, 20))]


def test_tied_parameters_are_on_the_stages_that_share_them() -> None:
    """First and last stage, each split over tensor parallelism, of four stages and then of two."""
    source = lower(Layout(mesh(pp=4, tp=2), (*tied_steps("pp", (3, 0)), Shard("tp", 0, "even"))), (8, 3))
    assert [region.holders for region in source.regions()] == [(0, 6), (1, 7)]
    assert source.at((1, 0)) is None
    target = lower(Layout(mesh(pp=2, tp=4), (*tied_steps("pp", (0, 1)), Shard("tp", 0, "even"))), (8, 3))
    assert_moves(source, target)
    assert_moves(target, source)


def test_stages_of_unequal_width_by_their_ranks() -> None:
    stages = unequal_stages([[0, 1, 2], [5]])
    assert stages == Mesh((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (3, 1))), (0, 1, 2, 5))
    source = lower(Layout(stages, (Only("pp", (1,)),)), (4, 3))
    assert [region.holders for region in source.regions()] == [(5,)]
    target = lower(Layout(unequal_stages([[4], [0, 1], [2, 3, 5, 6]]), (Only("pp", (2,)),)), (4, 3))
    assert [region.holders for region in target.regions()] == [(2, 3, 5, 6)]
    assert_moves(source, target)
    assert_moves(target, source)
    for wrong in ([[0], []], [[0, 1], [1]]):
        with pytest.raises(LayoutError):
            unequal_stages(wrong)


# PipeDream is no package, so its own code cannot run here. Recorded: its runtime reads "stage_to_rank_map" out of a
# JSON file (runtime/image_classification/main_with_runtime.py); this is the one for VGG-16 on eight GPUs that
# scripts/json_config_generation.py of a fork writes. All ranks of a stage hold its whole module.
VGG16_ON_EIGHT = {"0": [0, 1, 2, 3, 4, 5], "1": [6], "2": [7]}


def test_the_stages_of_a_recorded_pipedream_job() -> None:
    before = unequal_stages(list(VGG16_ON_EIGHT.values()))
    after = unequal_stages([[7], [0, 2, 4, 6], [1, 3, 5]])
    for stage, ranks in VGG16_ON_EIGHT.items():
        # Another partition: what the first stage had joins the second, and replicas share the states.
        target_stage = max(1, int(stage))
        source = lower(Layout(before, (Only("pp", (int(stage),)),)), (5, 3))
        target = lower(Layout(after, (Only("pp", (target_stage,)), Flatten(), Shard("dp", 0))), (5, 3))
        assert [list(region.holders) for region in source.regions()] == [ranks]
        assert_moves(source, target)
        assert_moves(target, source)


def test_split_factors_say_an_order() -> None:
    sizes = {"dp": 3, "tp": 2, "cp": 4}
    assert shard_order([DTensorShard("dp", 0, 2), DTensorShard("tp", 0)], sizes, 2) == ("tp", "dp")
    assert shard_order([DTensorShard("dp", -1), DTensorShard("tp", 0)], sizes, 2) == ("tp", "dp")
    assert shard_order(
        [DTensorShard("dp", 0, 8), DTensorShard("tp", 0, 4), DTensorShard("cp", 0)], sizes, 1
    ) == (
        "cp",
        "tp",
        "dp",
    )
    # A factor that no axes further right multiply to came of a view.
    odd: list[DTensorShard | DTensorPartial]
    odd = [DTensorShard("dp", 0, 5), DTensorPartial("cp", "sum"), DTensorShard("tp", 0)]
    assert shard_order(odd, sizes, 1) is None
    assert ordered_dtensor_steps(odd, sizes, 1) == dtensor_steps(odd, 1)
    found = ordered_dtensor_steps(
        [DTensorShard("dp", 0, 2), DTensorPartial("cp", "sum"), DTensorShard("tp", 0)], sizes, 1
    )
    assert found == (Partial("cp", "sum"), Shard("tp", 0), Shard("dp", 0))


def test_flat_parameters_are_aligned_and_padded() -> None:
    grid = mesh(replica=2, fsdp=4)
    places = flat_parameter_places(
        grid, "unit", "fsdp", [(3, 5), (3,), (0, 2), (7,)], aligned_bytes=ALIGNED_BYTES, itemsize=4
    )
    assert [place.offsets for place in places] == [(0,), (16,), (20,), (20,)]
    assert {place.totals for place in places} == {(28,)}
    (place,) = flat_parameter_places(grid, "unit", "fsdp", [(3, 5)], aligned_bytes=0, itemsize=4)
    assert place.totals == (16,)
    source = lower(Layout(grid, flat_parameter_steps("unit", "fsdp")), (3, 5), place=place)
    assert [region.holders for region in source.regions()] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    with pytest.raises(LayoutError, match="no axis 'dp'"):
        flat_parameter_places(grid, "unit", "dp", [(3,)], aligned_bytes=0, itemsize=4)
