"""Whether the stored boxes of a tensor cover it exactly, in words."""

from __future__ import annotations

from collections.abc import Sequence

from ucpformat.geometry import Box, exact_cover

__all__ = ["cover_problem"]


def cover_problem(shape: tuple[int, ...], boxes: Sequence[Box]) -> str | None:
    """Say what keeps ``boxes`` from covering ``shape`` exactly once, or return None; empty boxes are ignored."""
    if any(box.ndim != len(shape) for box in boxes):
        return "a piece has another number of dimensions"
    fault = exact_cover(boxes, shape)
    if fault is None:
        return None
    where = f"at {list(fault.box.offset)} of shape {list(fault.box.shape)}"
    if fault.kind == "outside":
        return f"the piece {where} leaves the shape {list(shape)}"
    if fault.kind == "overlap":
        return f"pieces overlap {where}"
    return f"elements are missing {where}"
