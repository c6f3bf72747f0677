"""Boxes of segments that tile a chunk (SPEC section 16): chunks are mostly cut alike, and then it is known already."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Final

from ucpformat.geometry import Box, exact_cover

__all__ = ["sizes_of_tiles"]

_MEMORABLE: Final = 64
"""Boxes: what is remembered of a table is bounded, whatever it claims."""


def sizes_of_tiles(boxes: tuple[Box | None, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return how many elements boxes have, in order of offset, that tile a chunk of ``shape``.

    None where they do not, or are too many to be remembered.
    """
    return _sizes(boxes, shape) if len(boxes) <= _MEMORABLE else None


@lru_cache(maxsize=256)
def _sizes(boxes: tuple[Box | None, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    whole = Box.whole(shape)
    tiles = [box for box in boxes if box is not None and not box.is_empty and whole.contains(box)]
    in_order = all(before.offset < after.offset for before, after in pairwise(tiles))
    if len(tiles) < len(boxes) or not in_order or exact_cover(tiles, shape) is not None:
        return None
    return tuple(tile.size for tile in tiles)
