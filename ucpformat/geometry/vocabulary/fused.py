"""Fused parameters as steps: UCP's non-contiguous shards, DeepSpeed's sub-parameters (SPEC appendix A.3)."""

from __future__ import annotations

from collections.abc import Sequence

from ucpformat.geometry.steps import Blocks, Join, Shard, Step

__all__ = ["sub_parameter_steps"]


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
