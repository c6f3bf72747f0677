"""Where ZeRO keeps the elements of a tensor, as layouts (SPEC appendix A).

Sources, DeepSpeed 0.19.8: ``runtime/zero/stage_1_and_2.py`` (flat groups, alignment, round robin),
``runtime/bf16_optimizer.py`` (the same buffers), ``runtime/zero/stage3.py`` and ``partition_parameters.py`` (one
partition per tensor, sub-groups), ``utils/zero_to_fp32.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from ucpformat.errors import error
from ucpformat.geometry import (
    BufferMember,
    BufferPlace,
    Concat,
    Flatten,
    Layout,
    Mesh,
    MeshAxis,
    Pad,
    Shard,
    Step,
    buffer_places,
)

__all__ = [
    "ALIGNMENT_FACTOR",
    "DATA_AXIS",
    "Placed",
    "partition_places",
    "round_robin_order",
    "shared_places",
    "zero_mesh",
]

ALIGNMENT_FACTOR: Final = 2
"""``nccl_start_alignment_factor``: a flat group is padded to a multiple of this times the data-parallel degree."""

DATA_AXIS: Final = "dp"

Placed = tuple[Layout, BufferPlace]


def zero_mesh(dp: int, *outer: MeshAxis) -> Mesh:
    """Return the mesh of a ZeRO run: ``outer`` axes (tensor parallelism), then data parallelism, varying fastest."""
    return Mesh((*outer, MeshAxis(DATA_AXIS, dp)))


def shared_places(
    mesh: Mesh,
    shapes: Sequence[tuple[int, ...]],
    *,
    group: str,
    steps: Sequence[tuple[Step, ...]] | None = None,
    paddings: Sequence[int] | None = None,
    alignment: int | None = None,
) -> tuple[Placed, ...]:
    """Return layout and place of every tensor of a ZeRO-1, ZeRO-2 or BF16_Optimizer group, in the group's flat order.

    The tensors are concatenated, the tail is padded to a multiple of ``alignment`` (`ALIGNMENT_FACTOR` times the
    data-parallel degree unless given), and every rank keeps an equal part. ``steps`` are what tensor parallelism
    does to each tensor before; ``shapes`` are logical. ``paddings`` are elements left free after each tensor
    (``param_alignment_paddings``).

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for lists of different lengths, and what lowering raises.
    """
    size = _data_size(mesh)
    alignment = ALIGNMENT_FACTOR * size if alignment is None else alignment
    layouts = [
        Layout(mesh, (*before, Flatten(), Concat(group), Shard(DATA_AXIS, 0, "even")))
        for before in _each(steps, len(shapes))
    ]
    members = [BufferMember(layout, shape) for layout, shape in zip(layouts, shapes, strict=True)]
    if paddings is None or not any(paddings):
        return tuple(zip(layouts, buffer_places(members, multiple=alignment), strict=True))
    return tuple(zip(layouts, _padded_places(members, paddings, alignment), strict=True))


def _padded_places(
    members: Sequence[BufferMember], paddings: Sequence[int], alignment: int
) -> Iterator[BufferPlace]:
    """Yield places with free elements after some tensors: those without, moved on by what is free before each."""
    if len(paddings) != len(members) or min(paddings) < 0:
        raise error("UCP-E-LAYOUT", f"{len(members)} tensors have as many paddings >= 0, not {paddings}")
    before = 0
    for dense, padding in zip(buffer_places(members), paddings, strict=True):
        yield BufferPlace(
            tuple(offset + before for offset in dense.offsets),
            tuple(-(-(total + sum(paddings)) // alignment) * alignment for total in dense.totals),
            dense.axes,
        )
        before += padding


def partition_places(
    mesh: Mesh,
    shapes: Sequence[tuple[int, ...]],
    *,
    group: str,
    steps: Sequence[tuple[Step, ...]] | None = None,
) -> tuple[Placed, ...]:
    """Return layout and place of every tensor of a ZeRO-3 sub-group, in its order.

    Every tensor is padded to a multiple of the data-parallel degree and split alone; a rank's buffer is the
    concatenation of its parts.

    Raises:
        LayoutError: as `shared_places`.
    """
    size = _data_size(mesh)
    layouts = [
        Layout(mesh, (*before, Flatten(), Pad(0, multiple=size), Shard(DATA_AXIS, 0, "even"), Concat(group)))
        for before in _each(steps, len(shapes))
    ]
    members = [BufferMember(layout, shape) for layout, shape in zip(layouts, shapes, strict=True)]
    return tuple(zip(layouts, buffer_places(members), strict=True))


def round_robin_order(count: int, dp: int) -> tuple[int, ...]:
    """Return which tensor of a group comes where in the flat buffer under ``round_robin_gradients``.

    Every ``dp``-th tensor from the first, then every ``dp``-th from the second, and so on.
    """
    return tuple(place for first in range(min(dp, count)) for place in range(first, count, dp))


def partition_size(shape: tuple[int, ...], dp: int) -> int:
    """Return elements that each rank holds of a tensor alone (ZeRO-3), padding counted."""
    return -(-math.prod(shape) // dp)


def _data_size(mesh: Mesh) -> int:
    index = mesh.axis_index(DATA_AXIS)
    if index is None:
        raise error("UCP-E-LAYOUT", f"the mesh has no axis {DATA_AXIS!r}")
    return mesh.shape[index]


def _each(steps: Sequence[tuple[Step, ...]] | None, count: int) -> Sequence[tuple[Step, ...]]:
    if steps is None:
        return [()] * count
    if len(steps) != count:
        raise error("UCP-E-LAYOUT", f"{count} tensors have as many lists of steps, not {len(steps)}")
    return steps
