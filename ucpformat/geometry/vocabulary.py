"""Other vocabularies as steps (SPEC appendix A): UCP's patterns, DTensor placements, JAX, uneven ratios.

Only what integers can say; reading a framework's own objects is the business of `ucpformat.frameworks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ucpformat.errors import error
from ucpformat.geometry.steps import BlockRule, Blocks, Join, Partial, Reduce, Shard, Step

__all__ = [
    "DTensorPartial",
    "DTensorShard",
    "dtensor_steps",
    "named_sharding_steps",
    "ratio_sizes",
    "sub_parameter_steps",
]


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
    for place, placement in enumerate(placements):
        if isinstance(placement, DTensorPartial):
            steps.append(Partial(placement.axis, placement.reduce))
            continue
        dim, factor = placement.dim, placement.split_factor
        if not -ndim <= dim < ndim:
            raise error("UCP-E-LAYOUT", f"a {ndim}-d tensor has no dim {dim}", at=f"/{place}/dim")
        if factor < 1:
            raise error(
                "UCP-E-LAYOUT", f"a split factor is at least 1, not {factor}", at=f"/{place}/split_factor"
            )
        dim %= ndim
        shard = Shard(placement.axis, dim, "ceil")
        if factor == 1:
            steps.append(shard)
        else:
            steps += [Blocks(dim, BlockRule("ceil", factor)), shard, Join(dim)]
    return tuple(steps)


def named_sharding_steps(spec: Sequence[str | Sequence[str] | None]) -> tuple[Step, ...]:
    """Return the steps of a JAX ``PartitionSpec``: per dim an axis, several from major to minor, or None.

    JAX splits evenly or not at all (``jax.sharding.NamedSharding``), and so does the rule.
    """
    steps: list[Step] = []
    for dim, axes in enumerate(spec):
        names = (axes,) if isinstance(axes, str) else tuple(axes or ())
        steps.extend(Shard(name, dim, "even") for name in names)
    return tuple(steps)


def sub_parameter_steps(
    axis: str, dim: int, widths: Sequence[int], shard_widths: Sequence[Sequence[int]] | None = None
) -> tuple[Step, ...]:
    """Return the steps of a fused parameter: UCP's non-contiguous shards.

    ``widths`` are those of the sub-parameters along ``dim`` (query, key, value; gate, up); each is split over
    ``axis`` on its own, evenly, or by ``shard_widths``, one list of widths per sub-parameter with one for
    each position (DeepSpeed's ``sub_param_shape`` and ``sub_param_shard_widths``).
    """
    if shard_widths is None:
        return (Blocks(dim, tuple(widths)), Shard(axis, dim, "even"), Join(dim))
    own = tuple((Shard(axis, dim, tuple(parts)),) for parts in shard_widths)
    return (Blocks(dim, tuple(widths), own), Join(dim))


def ratio_sizes(extent: int, ratios: Sequence[int]) -> tuple[int, ...]:
    """Return sizes that sum to ``extent`` in the proportion of ``ratios``, exact zeros for zeros.

    Edges are those of the running sum, rounded down: uneven shards as AccPar computes them for devices of
    unequal speed. Raises UCP-E-LAYOUT unless ratios are integers >= 0 with a sum above 0.
    """
    total = sum(ratios)
    if min(ratios, default=0) < 0 or total <= 0:
        raise error("UCP-E-LAYOUT", f"ratios are integers >= 0, not all 0, and not {tuple(ratios)}")
    edges = [0]
    running = 0
    for ratio in ratios:
        running += ratio
        edges.append(extent * running // total)
    return tuple(edges[place + 1] - edges[place] for place in range(len(ratios)))
