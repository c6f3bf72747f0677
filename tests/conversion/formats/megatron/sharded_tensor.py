"""Megatron-core's ShardedTensor as pieces (dist_checkpointing/mapping.py).

A ShardedTensor says which box of a global tensor a local tensor is; axes prepended to the local shape (a layer, an
expert) have extent 1 there. 0.13.1 could
also keep a range of the flattened local tensor alone, which 0.16.1 refuses.
A ShardedTensorFactory makes several of them from one parameter, whose memory is then all of them in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ucpformat.errors import error
from ucpformat.geometry import (
    Box,
    ExplicitHoldings,
    LocalMap,
    Piece,
    Strided,
    canonical,
    decompose_flat_range,
    row_major_strides,
)

__all__ = [
    "ShardedTensorFacts",
    "facts_of",
    "fused_map",
    "is_main_replica",
    "sharded_holdings",
    "sharded_map",
]


@dataclass(frozen=True, slots=True)
class ShardedTensorFacts:
    """The integers of a ShardedTensor; names and meanings are Megatron's.

    ``global_shape`` and ``global_offset`` have ``prepend_axis_num`` dims more than ``local_shape``.
    ``axis_fragmentations`` is None where the shards form no regular grid. ``flattened_range`` are the first
    element and the one after the last of the flattened local tensor that are there, or None for all.
    """

    key: str
    local_shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]
    axis_fragmentations: tuple[int, ...] | None = None
    replica_id: int | tuple[int, ...] = 0
    prepend_axis_num: int = 0
    flattened_range: tuple[int, int] | None = None


def facts_of(sharded_tensor: Any) -> ShardedTensorFacts:
    """Return the integers of one of Megatron's own objects, which is only looked at."""
    fragmentations = sharded_tensor.axis_fragmentations
    flat = sharded_tensor.flattened_range
    replica = sharded_tensor.replica_id
    return ShardedTensorFacts(
        sharded_tensor.key,
        tuple(map(int, sharded_tensor.local_shape)),
        tuple(map(int, sharded_tensor.global_shape)),
        tuple(map(int, sharded_tensor.global_offset)),
        None if fragmentations is None else tuple(map(int, fragmentations)),
        replica if isinstance(replica, int) else tuple(map(int, replica)),
        int(sharded_tensor.prepend_axis_num),
        None if flat is None else (int(flat.start), int(flat.stop)),
    )


def is_main_replica(facts: ShardedTensorFacts) -> bool:
    """Return whether this is the copy that Megatron writes: every component of the replica id is 0."""
    replica = facts.replica_id
    return replica == 0 if isinstance(replica, int) else not any(replica)


def sharded_map(facts: ShardedTensorFacts) -> LocalMap:
    """Return what the local tensor holds of the global one: its shape has no prepended dims.

    Where a flattened range is given the local tensor is 1-D and has the elements of the range alone.

    Raises UCP-E-SHAPE where the numbers do not fit: dims, a box that leaves the global tensor, a grid that does
    not have this box, a range that leaves the local tensor.
    """
    _check(facts)
    pieces, shape = _pieces(facts, 0)
    return LocalMap(shape, canonical(pieces, facts.global_shape))


def fused_map(parts: Sequence[ShardedTensorFacts], local_shape: tuple[int, ...], dim: int) -> LocalMap:
    """Return what a parameter of ``local_shape`` holds of a global tensor that a factory cut it up for.

    ``parts`` lie one after another along ``dim`` of the parameter, and are boxes of one global tensor: gate and
    up of SwiGLU (transformer/mlp.py, `apply_swiglu_sharded_factory`).

    Raises as `sharded_map`, and UCP-E-SHAPE where the parts do not add up to the parameter.
    """
    strides = row_major_strides(local_shape)
    pieces: list[Piece] = []
    position = 0
    for place, part in enumerate(parts):
        _check(part)
        if part.flattened_range is not None or part.global_shape != parts[0].global_shape:
            raise error(
                "UCP-E-SHAPE", "parts are whole boxes of one global tensor: map others alone", at=f"/{place}"
            )
        extent = part.local_shape[dim]
        if (*part.local_shape[:dim], local_shape[dim], *part.local_shape[dim + 1 :]) != local_shape:
            raise error("UCP-E-SHAPE", f"{part.local_shape} is no part of {local_shape}", at=f"/{place}")
        box = Box(part.global_offset, (*(1,) * part.prepend_axis_num, *part.local_shape))
        local = Strided(position * strides[dim], (*(0,) * part.prepend_axis_num, *strides))
        pieces.append(Piece(box, local))
        position += extent
    if position != local_shape[dim]:
        raise error("UCP-E-SHAPE", f"parts of {position} along dim {dim} do not make {local_shape}")
    return LocalMap(local_shape, canonical(pieces, parts[0].global_shape))


def sharded_holdings(shards: Iterable[tuple[int, ShardedTensorFacts]]) -> ExplicitHoldings:
    """Return who holds what of one global tensor, from the shards of every rank, replicas included.

    A rank may be listed with several shards: each is a tensor of its own. Raises as `sharded_map`, and
    UCP-E-SHAPE where there are none, or two disagree on the global shape.
    """
    listed = [(rank, facts) for rank, facts in shards]
    shapes = {facts.global_shape for _, facts in listed}
    if len(shapes) != 1:
        raise error("UCP-E-SHAPE", f"shards of one tensor have one global shape, not {sorted(shapes)}")
    return ExplicitHoldings(shapes.pop(), tuple((rank, sharded_map(facts)) for rank, facts in listed))


def _pieces(facts: ShardedTensorFacts, position: int) -> tuple[list[Piece], tuple[int, ...]]:
    ahead = facts.prepend_axis_num
    strides = row_major_strides(facts.local_shape)
    whole = math.prod(facts.local_shape)
    start, stop = facts.flattened_range or (0, whole)
    pieces = []
    for box in decompose_flat_range(facts.local_shape, start, stop):
        offset = tuple(map(int.__add__, facts.global_offset[ahead:], box.offset))
        first = sum(map(int.__mul__, box.offset, strides)) - start + position
        pieces.append(
            Piece(
                Box((*facts.global_offset[:ahead], *offset), (*(1,) * ahead, *box.shape)),
                Strided(first, (*(0,) * ahead, *strides)),
            )
        )
    return pieces, facts.local_shape if facts.flattened_range is None else (stop - start,)


def _check(facts: ShardedTensorFacts) -> None:
    ndim = len(facts.global_shape)
    if len(facts.global_offset) != ndim or len(facts.local_shape) + facts.prepend_axis_num != ndim:
        raise error("UCP-E-SHAPE", f"{facts.key!r}: offset, local and global shape differ in dims")
    extents = (*(1,) * facts.prepend_axis_num, *facts.local_shape)
    box = Box(facts.global_offset, extents)
    if not Box.whole(facts.global_shape).contains(box):
        raise error("UCP-E-SHAPE", f"{facts.key!r}: {box} leaves the tensor of shape {facts.global_shape}")
    if facts.axis_fragmentations is not None and any(
        extent * parts != whole
        for extent, parts, whole in zip(extents, facts.axis_fragmentations, facts.global_shape, strict=True)
    ):
        raise error(
            "UCP-E-SHAPE",
            f"{facts.key!r}: {facts.axis_fragmentations} parts of {extents} do not make {facts.global_shape}",
        )
