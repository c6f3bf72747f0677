"""DTensor placements as steps (SPEC appendix A.2).

Source: torch/distributed/tensor/placement_types.py and _dtensor_spec.py of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ucpformat.errors import error
from ucpformat.geometry.steps import BlockRule, Blocks, Join, Partial, Reduce, Shard, Step

__all__ = ["DTensorPartial", "DTensorShard", "dtensor_steps", "ordered_dtensor_steps", "shard_order"]


@dataclass(frozen=True, slots=True)
class DTensorShard:
    """``Shard(dim)`` on a mesh axis, or ``_StridedShard(dim, split_factor)`` where that is above 1."""

    axis: str
    dim: int
    split_factor: int = 1


@dataclass(frozen=True, slots=True)
class DTensorPartial:
    """``Partial(reduce_op)`` on a mesh axis; DTensor's ``avg`` is ``mean``."""

    axis: str
    reduce: Reduce


def dtensor_steps(placements: Sequence[DTensorShard | DTensorPartial], ndim: int) -> tuple[Step, ...]:
    """Return the steps of DTensor placements, given in the order of mesh dims, ``Replicate`` left out.

    A negative dim counts from the end. As torch.chunk does, every split is by the rule ``ceil`` of the extent
    at hand; a strided shard splits each of ``split_factor`` such chunks and joins what is left of them
    (torch.distributed.tensor, ``_StridedShard``).

    Raises UCP-E-LAYOUT, at the index of a placement, for a dim that is none and a split factor below 1.
    """
    steps: list[Step] = []
    for placement, dim in zip(placements, _dims(placements, ndim), strict=True):
        if isinstance(placement, DTensorPartial):
            steps.append(Partial(placement.axis, placement.reduce))
            continue
        shard = Shard(placement.axis, dim, "ceil")
        if placement.split_factor == 1:
            steps.append(shard)
        else:
            steps += [Blocks(dim, BlockRule("ceil", placement.split_factor)), shard, Join(dim)]
    return tuple(steps)


def shard_order(
    placements: Sequence[DTensorShard | DTensorPartial], sizes: Mapping[str, int], ndim: int
) -> tuple[str, ...] | None:
    """Return the axes of the shards in an order in which plain shards over them say the same, dim by dim.

    A split factor counts the parts into which axes further right have split the dim already: FSDP2 over tensor
    parallelism splits over ``tp`` first, and says ``_StridedShard`` on ``dp``. ``sizes`` are those of the axes.
    None where no order has these split factors: then they came of a view, and shards act from left to right.

    Raises as `dtensor_steps`.
    """
    orders: dict[int, list[str]] = {}
    pairs = list(zip(placements, _dims(placements, ndim), strict=True))
    for placement, dim in reversed(pairs):
        if isinstance(placement, DTensorPartial):
            continue
        order = orders.setdefault(dim, [])
        place, parts = 0, 1
        while parts != placement.split_factor and place < len(order):
            parts *= sizes[order[place]]
            place += 1
        if parts != placement.split_factor:
            return None
        order.insert(place, placement.axis)
    return tuple(axis for dim in sorted(orders) for axis in orders[dim])


def ordered_dtensor_steps(
    placements: Sequence[DTensorShard | DTensorPartial], sizes: Mapping[str, int], ndim: int
) -> tuple[Step, ...]:
    """Return the steps of placements whose split factors say in which order the dims were split.

    That is how torch holds and gathers tensors with `_StridedShard` (``full_tensor``), and what FSDP2 made. It
    differs from `dtensor_steps` in extents that do not divide: 7 rows over ``tp`` 2, then ``dp`` 3. Where
    `shard_order` finds no order the steps are those of `dtensor_steps`.

    Raises as `dtensor_steps`.
    """
    order = shard_order(placements, sizes, ndim)
    if order is None:
        return dtensor_steps(placements, ndim)
    dims = dict(zip((placement.axis for placement in placements), _dims(placements, ndim), strict=True))
    partial = [
        Partial(placement.axis, placement.reduce)
        for placement in placements
        if isinstance(placement, DTensorPartial)
    ]
    return (*partial, *(Shard(axis, dims[axis], "ceil") for axis in order))


def _dims(placements: Sequence[DTensorShard | DTensorPartial], ndim: int) -> list[int]:
    """Return the dim of every placement, counted from 0; 0 for those without one."""
    dims: list[int] = []
    for place, placement in enumerate(placements):
        if isinstance(placement, DTensorPartial):
            dims.append(0)
            continue
        if not -ndim <= placement.dim < ndim:
            raise error("UCP-E-LAYOUT", f"a {ndim}-d tensor has no dim {placement.dim}", at=f"/{place}/dim")
        if placement.split_factor < 1:
            raise error(
                "UCP-E-LAYOUT",
                f"a split factor is at least 1, not {placement.split_factor}",
                at=f"/{place}/split_factor",
            )
        dims.append(placement.dim % ndim)
    return dims
