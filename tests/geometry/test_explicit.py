"""Boxes rank by rank, as torch's CheckpointableTensor and Megatron's ShardedTensor list them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import lowerings, shapes
from ucpformat.errors import UcpError
from ucpformat.geometry import (
    ExplicitHoldings,
    Layout,
    LocalBox,
    Mesh,
    MeshAxis,
    Shard,
    distinct_boxes,
    exact_cover,
    local_map_of,
    lower,
    plan_transfer,
)


@given(st.data(), shapes(max_elements=100))
def test_what_a_layout_says_can_be_listed(data: st.DataObject, shape: tuple[int, ...]) -> None:
    source = data.draw(lowerings(shape, ""))
    regions = source.regions()
    listed = ExplicitHoldings(
        shape, tuple((rank, region.local_map) for region in regions for rank in region.holders)
    )
    assert listed.regions() == regions
    assert plan_transfer(listed, source).elements_sent == 0
    target = data.draw(lowerings(shape))
    assert plan_transfer(listed, target) == plan_transfer(source, target)


def test_several_boxes_in_one_local_tensor() -> None:
    # Gate and up of a fused tensor, on two ranks, as global_offsets, local_offsets and local_sizes.
    maps = tuple(
        (
            rank,
            local_map_of(
                (8, 3),
                (4, 3),
                [LocalBox((2 * rank, 0), (0, 0), (2, 3)), LocalBox((4 + 2 * rank, 0), (2, 0), (2, 3))],
            ),
        )
        for rank in range(2)
    )
    fused = ExplicitHoldings((8, 3), maps)
    assert exact_cover(distinct_boxes(fused), (8, 3)) is None
    plan = plan_transfer(fused, lower(Layout(Mesh((MeshAxis("tp", 3),)), (Shard("tp", 0),)), (8, 3)))
    memory = {rank: model.local_array(local, model.counter((8, 3))).reshape(-1) for rank, local in maps}
    received = {rank: np.full(size, -1) for rank, size in ((0, 9), (1, 9), (2, 6))}
    for copy in plan.copies:
        part = model.view(memory[copy.source_rank], copy.shape, copy.source)
        model.view(received[copy.target_rank], copy.shape, copy.target)[...] = part
    assert np.concatenate(list(received.values())).tolist() == list(range(24))


@pytest.mark.parametrize(
    "box",
    [
        LocalBox((3,), (0,), (2,)),
        LocalBox((0,), (3,), (2,)),
        LocalBox((-1,), (0,), (2,)),
        LocalBox((0,), (0,), (-2,)),
        LocalBox((0, 0), (0,), (2,)),
        LocalBox((0, 0), (0, 0), (2, 1)),
    ],
)
def test_boxes_that_leave_a_tensor_are_refused(box: LocalBox) -> None:
    with pytest.raises(UcpError) as caught:
        local_map_of((4,), (4,), [LocalBox((0,), (0,), (1,)), box])
    assert (caught.value.code, caught.value.at) == ("UCP-E-SHAPE", "/1")
