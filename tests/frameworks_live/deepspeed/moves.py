"""Carrying out transfer plans on real tensors: what our planner says, with nothing but ``torch.as_strided``."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ucpformat.geometry import Holdings, plan_transfer


def moved(
    source: Holdings, held: Mapping[int, torch.Tensor], target: Holdings, kind: torch.dtype | None = None
) -> dict[int, torch.Tensor]:
    """The local tensors of ``target``'s ranks, flat, made of those that ``source``'s ranks hold."""
    sizes = {rank: region.local_map.size for region in target.regions() for rank in region.holders}
    dtype = kind or next(iter(held.values())).dtype
    found = {rank: torch.zeros(size, dtype=dtype) for rank, size in sizes.items()}
    for copy in plan_transfer(source, target).copies:
        flat = held[copy.source_rank].reshape(-1).clone()
        piece = torch.as_strided(flat, copy.shape, copy.source.strides, copy.source.offset)
        into = found[copy.target_rank]
        into.as_strided(copy.shape, copy.target.strides, copy.target.offset).copy_(piece * float(copy.factor))
    return found
