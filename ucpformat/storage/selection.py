"""Boxes as numpy selections."""

from __future__ import annotations

from types import EllipsisType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ucpformat.geometry import Box

__all__ = ["Selection", "selection"]

Selection = tuple[slice | EllipsisType, ...]


def selection(part: Box, origin: Box) -> Selection:
    """Return the index that selects ``part`` of an array that holds ``origin``; the result is always an array."""
    local = part.relative_to(origin)
    return (*(slice(start, stop) for start, stop in zip(local.offset, local.stop, strict=True)), ...)
