"""Properties of Megatron's placements that need no Megatron; tests/frameworks_live/megatron compares with its code."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conversion.formats.megatron.attention import qkv_map
from tests.conversion.formats.megatron.meshes import dense_mesh, expert_mesh
from tests.conversion.formats.megatron.pipeline import chunk_sizes, layer_steps, stage_layers
from tests.conversion.formats.megatron.placements import (
    bucket_steps,
    column_parallel_steps,
    gated_steps,
    grouped_expert_steps,
    row_parallel_steps,
    sequential_expert_steps,
    vocabulary_steps,
)
from tests.geometry import model
from ucpformat.conversion.formats.megatron.buffers import BufferParameter, assign_buckets
from ucpformat.errors import UcpError
from ucpformat.geometry import Layout, Mesh, MeshAxis, Pad, Step, distinct_boxes, exact_cover, lower

SMALL = st.integers(1, 3)


def check_whole(mesh: Mesh, steps: tuple[Step, ...], shape: tuple[int, ...]) -> None:
    lowering = lower(Layout(mesh, steps), shape)
    assert exact_cover(distinct_boxes(lowering), lowering.view) is None


@settings(max_examples=20)  # twenty lowerings each
@given(SMALL, SMALL, SMALL, SMALL, st.integers(0, 40))
def test_every_cell_has_a_rank(tp: int, ep: int, per_rank: int, half: int, vocabulary: int) -> None:
    dense = dense_mesh(tp=tp, cp=2, dp=2)
    width = half * tp
    check_whole(dense, column_parallel_steps(), (width, 3))
    check_whole(dense, row_parallel_steps(), (3, width))
    check_whole(dense, gated_steps(width), (2 * width, 3))
    check_whole(dense, vocabulary_steps(4, tp), (vocabulary, 3))
    experts, mesh = ep * per_rank, expert_mesh(etp=tp, ep=ep, edp=2)
    first, second = (experts, 2 * width, 3), (experts, 3, width)
    fused = sequential_expert_steps(gated_steps(width, "etp"), experts=experts, ep=ep)
    check_whole(mesh, fused, first)
    check_whole(mesh, sequential_expert_steps(row_parallel_steps("etp"), experts=experts, ep=ep), second)
    grouped = grouped_expert_steps(width, experts=experts, ep=ep)
    check_whole(mesh, grouped, first)
    check_whole(mesh, grouped_expert_steps(None, experts=experts, ep=ep), second)
    # The two kinds hold the same cells; the memory of the grouped one is the other, transposed.
    for coordinate in mesh.coordinates():
        mine = model.local_of(lower(Layout(mesh, fused), first), coordinate)
        other = model.local_of(lower(Layout(mesh, grouped), first), coordinate)
        assert mine is not None
        assert other is not None
        np.testing.assert_array_equal(mine.transpose(0, 2, 1), other)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 4), st.integers(0, 1))
def test_stages_have_every_layer_once(stages: int, chunks: int, per_chunk: int, counts: int) -> None:
    layers = stages * chunks * per_chunk
    if not layers or stages == 1:
        counts = 0
    layers -= counts
    sizes = chunk_sizes(layers, stages, chunks=1 if stages == 1 else chunks, embedding_counts=bool(counts))
    found = [layer for stage in range(stages) for chunk in stage_layers(sizes, stage) for layer in chunk]
    assert sorted(found) == list(range(layers))
    check_whole(dense_mesh(pp=stages), layer_steps(sizes), (layers, 2))


@given(st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=6), st.integers(1, 5), st.data())
def test_buckets_hold_their_parameters(
    parameters: list[tuple[int, bool]], dp: int, data: st.DataObject
) -> None:
    size = data.draw(st.none() | st.integers(1, 400))
    slots, buckets = assign_buckets(
        [BufferParameter(*entry) for entry in parameters], dp=dp, bucket_size=size
    )
    mesh = Mesh((MeshAxis("dp", dp),))
    taken: dict[int, list[tuple[int, int]]] = {}
    for (numel, _), slot in zip(parameters, slots, strict=True):
        (start,) = slot.place.offsets
        assert start + numel <= buckets[slot.bucket].unpadded <= buckets[slot.bucket].length
        taken.setdefault(slot.bucket, []).append((start, start + numel))
        lowering = lower(Layout(mesh, bucket_steps((), "b")), (numel,), place=slot.place)
        assert exact_cover(distinct_boxes(lowering), (numel,)) is None
    for spans in taken.values():
        ordered = sorted(spans)
        assert all(one[1] <= two[0] for one, two in pairwise(ordered))
    assert sorted(taken) == list(range(len(buckets)))
    assert all(bucket.length % dp == 0 for bucket in buckets)


def test_refusals() -> None:
    with pytest.raises(UcpError, match="do not go evenly"):
        sequential_expert_steps((), experts=3, ep=2)
    with pytest.raises(UcpError, match="does not"):
        sequential_expert_steps((Pad(0, to=4),), experts=4, ep=2)
    with pytest.raises(UcpError, match="do not fit"):
        qkv_map("qkv", ("q", "k", "v"), heads=5, groups=2, head_dim=2, hidden=None)
    with pytest.raises(UcpError, match="do not make"):
        chunk_sizes(8, 2, chunks=3)
    with pytest.raises(UcpError, match="do not go evenly"):
        chunk_sizes(8, 3)
    with pytest.raises(UcpError, match="do not go evenly"):
        chunk_sizes(8, 2, first=3, last=3)
    with pytest.raises(UcpError, match="does not go with"):
        chunk_sizes(8, 2, first=3, loss_counts=True)
    with pytest.raises(UcpError, match="no layer to give up"):
        chunk_sizes(-1, 2, embedding_counts=True)


def test_a_bias_of_query_key_value() -> None:
    split = qkv_map("qkv", ("q", "k", "v"), heads=4, groups=2, head_dim=3, hidden=None)
    assert split.shape == (2 * 4 * 3,)
    assert [member.shape for member in split.members] == [(12,), (6,), (6,)]
