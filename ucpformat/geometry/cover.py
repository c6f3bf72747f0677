"""Cover: whether boxes hold every cell of a tensor, and none twice (SPEC section 13).

No cell is enumerated: boxes that lie inside the tensor, do not overlap and have its volume cover it exactly;
gaps are found by a sweep over the edges of the boxes, dim by dim. Either is quick for boxes as tensors are cut, and
takes the square of their number for boxes made to do harm, as nested ones: for these a polynomial is evaluated.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import SystemRandom
from typing import Final, Literal

from ucpformat.errors import error
from ucpformat.geometry.box import Box
from ucpformat.geometry.piece import Holdings

__all__ = [
    "BoxIndex",
    "CoverFault",
    "check_cover",
    "covers",
    "distinct_boxes",
    "exact_cover",
    "first_gap",
    "first_overlap",
]


_STEPS: Final = (1 << 16, 64)
"""Steps of an index or a sweep that boxes may cost without being made to do harm: so many, and so many for each."""
_PRIME: Final = (1 << 127) - 1


class _TooManyStepsError(Exception):
    pass


class _Steps:
    """Steps that are left of those that some boxes may cost."""

    def __init__(self, boxes: int) -> None:
        self.left = _STEPS[0] + _STEPS[1] * boxes

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise _TooManyStepsError


class BoxIndex:
    """An index over boxes of one tensor; a lookup in a grid costs a bisection per dim and the boxes found.

    Each level groups the boxes by their interval on one dim, sorted by its start; as the largest stop so far
    ascends too, both ends of a lookup are bisected. A level below indexes each group on the next dim.
    Empty boxes are never found.
    """

    def __init__(self, boxes: Sequence[Box]) -> None:
        self._boxes = boxes
        numbers = [number for number, box in enumerate(boxes) if not box.is_empty]
        self._root = _Level(boxes, numbers, 0) if numbers else None

    def overlapping(self, box: Box, steps: _Steps | None = None) -> list[int]:
        """Return the numbers, ascending, of the boxes that share a cell with ``box``."""
        if self._root is None or box.is_empty:
            return []
        return sorted(self._root.find(box, steps))


class _Level:
    __slots__ = ("dim", "groups", "highest", "numbers", "starts", "stops")

    def __init__(self, boxes: Sequence[Box], numbers: list[int], dim: int) -> None:
        self.dim = dim
        self.numbers = numbers
        self.groups: list[_Level] = []
        if dim == boxes[numbers[0]].ndim:
            return
        grouped: dict[tuple[int, int], list[int]] = {}
        for number in numbers:
            start, extent = boxes[number].offset[dim], boxes[number].shape[dim]
            grouped.setdefault((start, start + extent), []).append(number)
        spans = sorted(grouped)
        self.starts = [start for start, _ in spans]
        self.stops = [stop for _, stop in spans]
        self.highest = list(accumulate(self.stops, max))
        self.groups = [_Level(boxes, grouped[span], dim + 1) for span in spans]

    def find(self, box: Box, steps: _Steps | None) -> Iterator[int]:
        if not self.groups:
            yield from self.numbers
            return
        low = box.offset[self.dim]
        high = low + box.shape[self.dim]
        first, last = bisect_right(self.highest, low), bisect_left(self.starts, high)
        if steps is not None:
            steps.take(last - first)
        for number in range(first, last):
            if self.stops[number] > low:
                yield from self.groups[number].find(box, steps)


_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CoverFault:
    """What keeps boxes from covering a tensor, and where: cells held by none, held twice, or nonexistent."""

    kind: Literal["gap", "overlap", "outside"]
    box: Box


def exact_cover(boxes: Iterable[Box], shape: tuple[int, ...]) -> CoverFault | None:
    """Return the first reason why ``boxes`` do not hold every cell of ``shape`` exactly once, or None.

    A box that leaves the tensor comes before overlaps, and they before gaps. Empty boxes hold nothing. Where boxes lie
    so that nothing quick finds the place, the fault names the whole tensor.
    """
    kept = [box for box in boxes if not box.is_empty]
    if _are_slabs(kept, shape):
        return None
    fault = _first_outside(kept, shape)
    if fault is not None:
        return fault
    steps = _Steps(len(kept))
    excess = sum(box.size for box in kept) - math.prod(shape)
    try:
        overlap = _first_overlap(kept, steps)
        if overlap is not None:
            return CoverFault("overlap", overlap)
        return None if excess == 0 else _gap_fault(kept, shape, steps)
    except _TooManyStepsError:
        if excess == 0 and _tile(kept, shape):
            return None
        return CoverFault("gap" if excess < 0 else "overlap", Box.whole(shape))


def _tile(boxes: Sequence[Box], shape: tuple[int, ...]) -> bool:
    """Return whether boxes inside the tensor hold every cell once; wrongly True with a probability below 2^-50.

    With a variable ``x[d]`` for each dim, the cells of a box are the monomials of the product of
    ``(x[d]**start - x[d]**stop) / (1 - x[d])``: boxes tile the tensor if, and only if, their products sum up to that of
    the tensor. Both polynomials are evaluated at one place that nobody can know before (Schwartz 1980, Zippel 1979).
    """
    draw = SystemRandom()
    total = 0
    powers: list[dict[int, int]] = [{} for _ in shape]
    bases = [draw.randrange(2, _PRIME) for _ in shape]

    def power(dim: int, exponent: int) -> int:
        known = powers[dim]
        if exponent not in known:
            known[exponent] = pow(bases[dim], exponent, _PRIME)
        return known[exponent]

    for sign, box in ((-1, Box.whole(shape)), *((1, box) for box in boxes)):
        product = sign
        for dim, (start, stop) in enumerate(zip(box.offset, box.stop, strict=True)):
            product = product * (power(dim, start) - power(dim, stop)) % _PRIME
        total += product
    return total % _PRIME == 0


def _are_slabs(boxes: Sequence[Box], shape: tuple[int, ...]) -> bool:
    """Return whether boxes, which are not empty, lie one behind another in one dim, and have all of every other.

    That is how most tensors are cut, and it is seen at a glance.
    """
    if not boxes or any(box.ndim != len(shape) for box in boxes):
        return False
    dim = next((dim for dim, extent in enumerate(shape) if boxes[0].shape[dim] != extent), 0)
    position = 0
    for box in boxes:
        if (
            any(box.offset[:dim])
            or any(box.offset[dim + 1 :])
            or box.shape[:dim] != shape[:dim]
            or box.shape[dim + 1 :] != shape[dim + 1 :]
            or box.offset[dim : dim + 1] != ((position,) if shape else ())
        ):
            return False
        position += box.shape[dim] if shape else 1
    return position == (shape[dim] if shape else 1)


def covers(boxes: Iterable[Box], shape: tuple[int, ...]) -> CoverFault | None:
    """Return the first reason why ``boxes`` do not hold every cell of ``shape`` at least once, or None.

    Replicas and overlaps are legal here, as they are in the layout of a source.
    """
    kept = [box for box in dict.fromkeys(boxes) if not box.is_empty]
    fault = _first_outside(kept, shape)
    if fault is not None:
        return fault
    # Most covers are exact up to replicas, and that is cheaper to see than the absence of gaps.
    steps = _Steps(len(kept))
    try:
        if sum(box.size for box in kept) == math.prod(shape) and _first_overlap(kept, steps) is None:
            return None
        return _gap_fault(kept, shape, steps)
    except _TooManyStepsError:
        if _tile(kept, shape):
            return None
    return _gap_fault(kept, shape, None)


def check_cover(boxes: Iterable[Box], shape: tuple[int, ...], *, at: str = "") -> None:
    """Raise UCP-E-COVER, at ``at``, unless ``boxes`` hold every cell of ``shape`` exactly once."""
    fault = exact_cover(boxes, shape)
    if fault is not None:
        raise error(
            "UCP-E-COVER",
            f"boxes must tile {shape}: {fault.kind} at {fault.box.offset} of shape {fault.box.shape}",
            at=at,
        )


def distinct_boxes(holdings: Holdings) -> list[Box]:
    """Return the boxes that are held, in their view, with coordinates that hold the same cells counted once.

    `exact_cover` of these on ``holdings.view`` says that unequal regions do not overlap; `covers` that no cell is lost.
    """
    regions = dict.fromkeys(
        tuple(piece.box for piece in region.local_map.pieces) for region in holdings.regions()
    )
    return [box for boxes in regions for box in boxes]


def first_overlap(boxes: Sequence[Box]) -> Box | None:
    """Return the cells that the first box to overlap another, by offset, shares with it, or None."""
    return _first_overlap(boxes, None)


def _first_overlap(boxes: Sequence[Box], steps: _Steps | None) -> Box | None:
    ordered = sorted(boxes, key=lambda box: (box.offset, box.shape))
    index = BoxIndex(ordered)
    for number, box in enumerate(ordered):
        for other in index.overlapping(box, steps):
            if other != number:
                return box.intersect(ordered[other])
    return None


def first_gap(boxes: Iterable[Box], shape: tuple[int, ...]) -> Box | None:
    """Return a box of cells of ``shape`` that are in none of ``boxes``, with the first such cell, or None."""
    return _first_gap(boxes, shape, None)


def _first_gap(boxes: Iterable[Box], shape: tuple[int, ...], steps: _Steps | None) -> Box | None:
    if 0 in shape:
        return None
    spans = [tuple(zip(box.offset, box.stop, strict=True)) for box in boxes if not box.is_empty]
    gap = _gap(spans, shape, 0, steps)
    if gap is None:
        return None
    return Box(tuple(low for low, _ in gap), tuple(high - low for low, high in gap))


def _first_outside(boxes: list[Box], shape: tuple[int, ...]) -> CoverFault | None:
    whole = Box.whole(shape)
    return next((CoverFault("outside", box) for box in boxes if not whole.contains(box)), None)


def _gap_fault(boxes: list[Box], shape: tuple[int, ...], steps: _Steps | None) -> CoverFault | None:
    gap = _first_gap(boxes, shape, steps)
    return None if gap is None else CoverFault("gap", gap)


def _gap(
    boxes: list[tuple[_Span, ...]], shape: tuple[int, ...], dim: int, steps: _Steps | None
) -> tuple[_Span, ...] | None:
    if not boxes:
        return tuple((0, extent) for extent in shape[dim:])
    if dim == len(shape):
        return None
    for slab, active in _slabs(boxes, shape[dim], dim):
        if steps is not None:
            steps.take(len(active))
        inner = _gap(active, shape, dim + 1, steps)
        if inner is not None:
            return slab, *inner
    return None


def _slabs(
    boxes: list[tuple[_Span, ...]], extent: int, dim: int
) -> Iterator[tuple[_Span, list[tuple[_Span, ...]]]]:
    """Return the dim cut at every edge of a box; each slab with the boxes that span it."""
    waiting = sorted(boxes, key=lambda box: box[dim][0], reverse=True)
    edges = {0, extent}.union(*(box[dim] for box in boxes))
    cuts = sorted(edges)
    active: list[tuple[_Span, ...]] = []
    for start, stop in pairwise(cuts):
        active = [box for box in active if box[dim][1] > start]
        while waiting and waiting[-1][dim][0] == start:
            active.append(waiting.pop())
        yield (start, stop), active
