"""Finding, among many boxes, those that meet a given one without looking at them all."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from ucpformat.geometry.box import Box

__all__ = ["BoxIndex"]


class BoxIndex:
    """An index over boxes of one tensor; a lookup in a grid costs a bisection per dim and the boxes found.

    Each level groups the boxes by their interval on one dim, sorted by its start; as the largest stop so far
    ascends too, both ends of a lookup are bisected. A level below indexes each group on the next dim.
    Empty boxes are never found.
    """

    def __init__(self, boxes: Sequence[Box]) -> None:
        self._boxes = boxes
        places = [place for place, box in enumerate(boxes) if not box.is_empty]
        self._root = _Level(boxes, places, 0) if places else None

    def overlapping(self, box: Box) -> list[int]:
        """Return the places, ascending, of the boxes that share a cell with ``box``."""
        if self._root is None or box.is_empty:
            return []
        return sorted(self._root.find(box))


class _Level:
    __slots__ = ("dim", "groups", "highest", "places", "starts", "stops")

    def __init__(self, boxes: Sequence[Box], places: list[int], dim: int) -> None:
        self.dim = dim
        self.places = places
        self.groups: list[_Level] = []
        if dim == boxes[places[0]].ndim:
            return
        grouped: dict[tuple[int, int], list[int]] = {}
        for place in places:
            start, extent = boxes[place].offset[dim], boxes[place].shape[dim]
            grouped.setdefault((start, start + extent), []).append(place)
        spans = sorted(grouped)
        self.starts = [start for start, _ in spans]
        self.stops = [stop for _, stop in spans]
        self.highest = list(accumulate(self.stops, max))
        self.groups = [_Level(boxes, grouped[span], dim + 1) for span in spans]

    def find(self, box: Box) -> Iterator[int]:
        if not self.groups:
            yield from self.places
            return
        low = box.offset[self.dim]
        high = low + box.shape[self.dim]
        first, last = bisect_right(self.highest, low), bisect_left(self.starts, high)
        for place in range(first, last):
            if self.stops[place] > low:
                yield from self.groups[place].find(box)
