"""Whether the stored boxes of a tensor cover it exactly."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence

__all__ = ["Box", "cover_problem", "intersection"]

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offset, shape

_MAX_COMPARISONS = 50_000_000


def cover_problem(shape: tuple[int, ...], boxes: Sequence[Box]) -> str | None:
    """Say what keeps ``boxes`` (offset, shape) from covering ``shape`` exactly once, or return None.

    Empty boxes are ignored. Sweeps along the longest dimension.
    """
    full = [box for box in boxes if math.prod(box[1])]
    for offset, extent in full:
        if len(offset) != len(shape) or len(extent) != len(shape):
            return "a piece has another number of dimensions"
        if any(
            start < 0 or start + size > whole
            for start, size, whole in zip(offset, extent, shape, strict=True)
        ):
            return f"the piece at {list(offset)} of shape {list(extent)} leaves the shape {list(shape)}"
    sweep = max(range(len(shape)), key=lambda dim: shape[dim], default=None)
    if sweep is None:
        return None if len(full) == 1 else f"a 0-d tensor has {len(full)} pieces"
    active: list[tuple[int, int]] = []  # (end, index) of the boxes that the sweep line crosses
    comparisons = 0
    for index in sorted(range(len(full)), key=lambda i: full[i][0][sweep]):
        start = full[index][0][sweep]
        del active[: bisect_right(active, (start, len(full)))]
        comparisons += len(active)
        if comparisons > _MAX_COMPARISONS:
            return "it has too many pieces side by side to check"
        for _, other in active:
            if intersection(full[index], full[other]) is not None:
                return f"the pieces at {list(full[other][0])} and {list(full[index][0])} overlap"
        insort(active, (start + full[index][1][sweep], index))
    stored, wanted = sum(math.prod(extent) for _, extent in full), math.prod(shape)
    return None if stored == wanted else f"{wanted - stored} of {wanted} elements are missing"


def intersection(first: Box, second: Box) -> Box | None:
    """Return the common part of two boxes, or None where it is empty."""
    offset = tuple(map(max, first[0], second[0]))
    ends = [min(a + n, b + m) for a, n, b, m in zip(first[0], first[1], second[0], second[1], strict=True)]
    extent = tuple(end - start for start, end in zip(offset, ends, strict=True))
    return (offset, extent) if all(size > 0 for size in extent) else None
