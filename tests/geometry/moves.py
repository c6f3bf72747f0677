"""Carrying out a transfer plan on what ranks really hold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.geometry.model import Array, view
from ucpformat.geometry import Holdings, plan_transfer


def moved(source: Holdings, held: Mapping[int, Array], target: Holdings) -> dict[int, Array]:
    """The flat local tensors of the target's ranks, made of the source's; padding is 0."""
    plan = plan_transfer(source, target)
    sizes = {rank: region.local_map.size for region in target.regions() for rank in region.holders}
    dtype = np.result_type(*held.values())
    summands: dict[int, dict[int, Array]] = {rank: {} for rank in sizes}
    for copy in plan.copies:
        into = summands[copy.target_rank].setdefault(
            copy.contribution, np.zeros(sizes[copy.target_rank], dtype)
        )
        part = view(np.ascontiguousarray(held[copy.source_rank]).reshape(-1), copy.shape, copy.source)
        view(into, copy.shape, copy.target)[...] = part * float(copy.factor)
    return {
        rank: _reduced([parts[place] for place in sorted(parts)], plan.reduce, sizes[rank], dtype)
        for rank, parts in summands.items()
    }


def _reduced(parts: list[Array], reduce: str | None, size: int, dtype: np.dtype[np.generic]) -> Array:
    if not parts:
        return np.zeros(size, dtype)
    if reduce is None:
        (only,) = parts
        return only
    stacked = np.stack(parts)
    if reduce == "max":
        return np.asarray(stacked.max(axis=0))
    total = stacked.sum(axis=0)
    return np.asarray(total / len(parts) if reduce == "mean" else total)
