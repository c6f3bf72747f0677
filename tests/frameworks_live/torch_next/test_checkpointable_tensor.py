"""Several boxes per rank as torch's ``CheckpointableTensor`` lists them, from and to `ExplicitHoldings`.

Torch cuts shards out of tensors by its own functions, and DCP saves one description and loads another.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import checkpoint
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.protocol import (
    _get_checkpointable_tensor_chunks,
    _get_checkpointable_tensor_shard,
)

from tests.geometry.model import counter, local_array
from tests.geometry.moves import moved
from tests.state_dict.torch_layouts.boxes import box_description, boxed_holdings
from ucpformat.errors import UcpError
from ucpformat.geometry import (
    Blocks,
    Flatten,
    Join,
    Layout,
    LocalMap,
    Mesh,
    MeshAxis,
    Shard,
    Step,
    covers,
    lower,
    sub_parameter_steps,
)
from ucpformat.state_dict.tensors.torch_layouts import boxes_of

# The torch that types are checked against is older.
dcp: Any = checkpoint

LAYOUTS: list[tuple[tuple[int, ...], tuple[Step, ...]]] = [
    ((16, 3), (Shard("tp", 0),)),
    ((7, 5), (Shard("tp", 1, "balanced"),)),
    ((24, 2), sub_parameter_steps("tp", 0, (16, 4, 4))),
    ((3, 24), sub_parameter_steps("tp", 1, (8, 8, 8))),
    ((12, 3), (Blocks(0, (8, 4), (None, ())), Shard("tp", 0, "even"), Join(0))),
    ((13,), (Shard("tp", 0, "ceil"),)),
    ((5, 0), (Shard("tp", 0, "ceil"),)),
]


def checkpointable(local_map: LocalMap, shape: tuple[int, ...], full: torch.Tensor | None = None) -> Any:
    """A plain torch tensor with the four attributes that we write, holding what ``full`` has there."""
    logical = counter(shape) + 1 if full is None else full.numpy()
    tensor: Any = torch.from_numpy(local_array(local_map, logical).copy())
    said = box_description(local_map, shape)
    for name in ("global_shape", "global_offsets", "local_offsets", "local_sizes"):
        setattr(tensor, name, getattr(said, name))
    return tensor


def tensors(steps: tuple[Step, ...], shape: tuple[int, ...], degree: int) -> dict[int, Any]:
    lowering = lower(Layout(Mesh((MeshAxis("tp", degree),)), steps), shape)
    found = {rank: lowering.at((rank,)) for rank in range(degree)}
    return {rank: checkpointable(held, shape) for rank, held in found.items() if held is not None}


@pytest.mark.parametrize(("shape", "steps"), LAYOUTS, ids=str)
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 1), (1, 2)])
def test_torch_cuts_the_shards_that_we_describe(
    shape: tuple[int, ...], steps: tuple[Step, ...], before: int, after: int
) -> None:
    """Each chunk that torch lists is our piece, its shard our cells; then at another degree."""
    held = {}
    full = counter(shape) + 1
    for degree in (before, after):
        held[degree] = tensors(steps, shape, degree)
        for tensor in held[degree].values():
            assert isinstance(tensor, dcp.CheckpointableTensor)
            _, local_map = boxes_of(tensor)
            chunks = _get_checkpointable_tensor_chunks(tensor)
            assert [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in chunks] == [
                (piece.box.offset, piece.box.shape) for piece in local_map.pieces
            ]
            for place, chunk in enumerate(chunks):
                shard = _get_checkpointable_tensor_shard(tensor, MetadataIndex("w", chunk.offsets, place))
                cells = tuple(
                    slice(first, first + extent)
                    for first, extent in zip(chunk.offsets, chunk.sizes, strict=True)
                )
                np.testing.assert_array_equal(shard.numpy(), full[cells])
    source, target = boxed_holdings(held[before]), boxed_holdings(held[after])
    assert source.maps == tuple(
        (rank, lower(Layout(Mesh((MeshAxis("tp", before),)), steps), shape).at((rank,)))
        for rank in range(before)
    )
    arrays = {rank: tensor.numpy() for rank, tensor in held[before].items()}
    for rank, part in moved(source, arrays, target).items():
        np.testing.assert_array_equal(part, held[after][rank].numpy().reshape(-1))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("before", [1, 2, 4])
def test_dcp_saves_one_description_and_loads_another(tmp_path: Path, before: int) -> None:
    """One tensor with the boxes of all ranks is what DCP writes without other processes; another degree loads it."""
    shape, steps = LAYOUTS[2]
    held = tensors(steps, shape, before)
    source = boxed_holdings(held)
    stacked = list(held.values())
    tall: Any = torch.cat(stacked)
    tall.global_shape = shape
    tall.global_offsets, tall.local_sizes = (
        tuple(entry for tensor in stacked for entry in getattr(tensor, name))
        for name in ("global_offsets", "local_sizes")
    )
    tall.local_offsets = tuple(
        (offset[0] + sum(len(other) for other in stacked[:place]), *offset[1:])
        for place, tensor in enumerate(stacked)
        for offset in tensor.local_offsets
    )
    dcp.save({"w": tall}, checkpoint_id=str(tmp_path / "c"), no_dist=True)
    for after in (1, 2, 4):
        arrays = {rank: tensor.numpy() for rank, tensor in held.items()}
        ours = moved(source, arrays, boxed_holdings(tensors(steps, shape, after)))
        for rank, wanted in tensors(steps, shape, after).items():
            torch.Tensor.zero_(wanted)
            dcp.load({"w": wanted}, checkpoint_id=str(tmp_path / "c"), no_dist=True)
            np.testing.assert_array_equal(wanted.numpy().reshape(-1), ours[rank])
            assert wanted.count_nonzero() == wanted.numel()


@given(st.data())
def test_padding_and_gaps(data: st.DataObject) -> None:
    """Boxes anywhere in a longer local tensor: what torch takes out of it is what our pieces take."""
    rows = data.draw(st.integers(1, 12))
    cuts = sorted(data.draw(st.sets(st.integers(0, rows), min_size=2, max_size=4)) | {0, rows})
    spans = list(itertools.pairwise(cuts))
    order = data.draw(st.permutations(spans))
    gaps = data.draw(st.lists(st.integers(0, 3), min_size=len(order), max_size=len(order)))
    full = torch.arange(1, rows * 2 + 1).reshape(rows, 2)
    inside, position = [], 0
    for (first, last), gap in zip(order, gaps, strict=True):
        inside.append((position + gap, 0))
        position += gap + last - first
    local: Any = torch.full((position, 2), -1)
    for (first, last), (place, _) in zip(order, inside, strict=True):
        local[place : place + last - first] = full[first:last]
    local.global_shape = tuple(full.shape)
    local.global_offsets = tuple((first, 0) for first, _ in order)
    local.local_offsets = tuple(inside)
    local.local_sizes = tuple((last - first, 2) for first, last in order)
    shape, local_map = boxes_of(local)
    np.testing.assert_array_equal(local_array(local_map, full.numpy()), local.numpy())
    assert covers([piece.box for piece in local_map.pieces], shape) is None
    for place, chunk in enumerate(_get_checkpointable_tensor_chunks(local)):
        shard = _get_checkpointable_tensor_shard(local, MetadataIndex("w", chunk.offsets, place))
        assert torch.equal(shard, full[chunk.offsets[0] : chunk.offsets[0] + chunk.sizes[0]])


def test_no_offsets_say_the_whole_local_tensor() -> None:
    local: Any = torch.arange(6).reshape(3, 2)
    local.global_shape, local.global_offsets = (9, 2), ((6, 0),)
    local.local_offsets, local.local_sizes = ((0, 0),), ((3, 2),)
    with_offsets = boxes_of(local)
    local.local_offsets = ((),)
    assert boxes_of(local) == with_offsets


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("global_offsets", ((0, 0), (2, 0), (3, 0)), "UCP-E-LAYOUT"),
        ("local_offsets", ((0, 0),), "UCP-E-LAYOUT"),
        ("global_offsets", ((0, 0), (3, 0)), "UCP-E-SHAPE"),
        ("local_offsets", ((0, 0), (3, 0)), "UCP-E-SHAPE"),
        ("local_sizes", ((2, 2), (-1, 2)), "UCP-E-SHAPE"),
        ("global_shape", (4, 2, 1), "UCP-E-SHAPE"),
    ],
)
def test_what_torch_refuses_we_refuse(name: str, value: Any, code: str) -> None:
    local: Any = torch.zeros(4, 2)
    local.global_shape, local.global_offsets = (4, 2), ((0, 0), (2, 0))
    local.local_offsets, local.local_sizes = ((0, 0), (2, 0)), ((2, 2), (2, 2))
    boxes_of(local)
    _get_checkpointable_tensor_chunks(local)
    setattr(local, name, value)
    with pytest.raises(ValueError, match=r"must have|outside"):
        _get_checkpointable_tensor_chunks(local)
    with pytest.raises(UcpError) as refusal:
        boxes_of(local)
    assert refusal.value.code == code


def test_ranks_agree_on_the_shape() -> None:
    (shape, steps), (wider, other_steps) = LAYOUTS[:2]
    one, other = tensors(steps, shape, 2), tensors(other_steps, wider, 2)
    with pytest.raises(UcpError, match="different global shapes"):
        boxed_holdings({0: one[0], 1: other[1]})


def test_a_flat_piece_is_no_box() -> None:
    held = lower(Layout(Mesh((MeshAxis("dp", 2),)), (Flatten(), Shard("dp", 0))), (5, 3)).at((0,))
    assert held is not None
    with pytest.raises(UcpError, match="no box of the local tensor"):
        box_description(held, (5, 3))
