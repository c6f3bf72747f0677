"""Boxes and row-major arithmetic: the integers that everything else stands on (SPEC section 13).

A shape is a tuple of extents >= 0; all offsets, lengths and strides count elements, never bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ucpformat.errors import error

__all__ = [
    "Box",
    "Runs",
    "decompose_flat_range",
    "row_major_strides",
    "runs",
    "strided_runs",
]


def is_extents(values: object) -> bool:
    """Return whether ``values`` is a tuple of integers >= 0; booleans are no integers here."""
    if not isinstance(values, tuple):
        return False
    # Every box is checked, so that a loop counts: a generator takes twice the time.
    for value in values:  # noqa: SIM110
        if type(value) is not int or value < 0:
            return False
    return True


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return one stride per dim, in elements, of a dense row-major tensor; zero extents count as zero."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return tuple(strides)


@dataclass(frozen=True, slots=True)
class Box:
    """A half-open box of a tensor: cells ``x`` with ``offset[d] <= x[d] < offset[d] + shape[d]``.

    Raises UCP-E-SHAPE unless both are tuples of integers >= 0 of equal length.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not (is_extents(self.offset) and is_extents(self.shape) and len(self.offset) == len(self.shape)):
            raise error(
                "UCP-E-SHAPE",
                f"a box needs an offset and a shape of equally many integers >= 0, "
                f"not {self.offset!r} and {self.shape!r}",
            )

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Box:
        """Return the box of all cells of a tensor of ``shape``."""
        return cls((0,) * len(shape), shape)

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def stop(self) -> tuple[int, ...]:
        """One past the last cell, per dim."""
        return tuple(map(int.__add__, self.offset, self.shape))

    @property
    def size(self) -> int:
        """The number of cells."""
        return math.prod(self.shape)

    @property
    def is_empty(self) -> bool:
        """Whether some extent is 0. A 0-d box has one cell and is never empty."""
        return 0 in self.shape

    def intersect(self, other: Box) -> Box | None:
        """Return the cells in both boxes, or None where there are none."""
        self._same_ndim(other)
        offset = tuple(map(max, self.offset, other.offset))
        shape = tuple(map(int.__sub__, map(min, self.stop, other.stop), offset))
        return Box(offset, shape) if min(shape, default=1) > 0 else None

    def contains(self, other: Box) -> bool:
        """Return whether ``other`` lies within the bounds of this box; an empty one must do so too."""
        self._same_ndim(other)
        return all(map(int.__le__, self.offset, other.offset)) and all(map(int.__le__, other.stop, self.stop))

    def subtract(self, hole: Box) -> tuple[Box, ...]:
        """Return the cells outside ``hole`` as at most ``2 * ndim`` disjoint boxes, outer dims cut first."""
        inner = self.intersect(hole)
        if inner is None:
            return () if self.is_empty else (self,)
        parts: list[Box] = []
        offset, shape = list(self.offset), list(self.shape)
        for dim, (low, high) in enumerate(zip(inner.offset, inner.stop, strict=True)):
            for first, last in ((offset[dim], low), (high, offset[dim] + shape[dim])):
                if first < last:
                    parts.append(
                        Box(
                            (*offset[:dim], first, *offset[dim + 1 :]),
                            (*shape[:dim], last - first, *shape[dim + 1 :]),
                        )
                    )
            offset[dim], shape[dim] = low, high - low
        return tuple(parts)

    def relative_to(self, origin: Box) -> Box:
        """Return this box in the coordinates of ``origin``, whose first cell becomes the zero cell.

        Raises UCP-E-SHAPE where a coordinate would be negative.
        """
        self._same_ndim(origin)
        return Box(tuple(map(int.__sub__, self.offset, origin.offset)), self.shape)

    def translate(self, by: tuple[int, ...]) -> Box:
        """Return this box moved by ``by`` elements per dim; UCP-E-SHAPE where that makes it negative."""
        if len(by) != self.ndim:
            raise error("UCP-E-SHAPE", f"a {self.ndim}-d box cannot move by {len(by)} distances")
        return Box(tuple(map(int.__add__, self.offset, by)), self.shape)

    def _same_ndim(self, other: Box) -> None:
        if len(self.shape) != len(other.shape):
            raise error("UCP-E-SHAPE", f"a {self.ndim}-d and a {other.ndim}-d box do not compare")


@dataclass(frozen=True, slots=True)
class Runs:
    """Equal contiguous runs of elements in a linear memory, in compact form.

    The runs start at ``first + sum(i_k * stride_k)`` for ``0 <= i_k < count_k``, over ``loops`` of
    ``(count, stride)`` from the outermost in; each is ``length`` elements long. Loops have a count of at
    least 2 and are merged wherever one loop says the same as two. No elements: length 0 and no loops.
    """

    first: int
    length: int
    loops: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """The number of runs."""
        return math.prod(count for count, _ in self.loops) if self.length else 0

    @property
    def span(self) -> tuple[int, int]:
        """The smallest ``[first, last)`` that holds every run."""
        return self.first, self.first + self.length + sum((count - 1) * step for count, step in self.loops)

    def __iter__(self) -> Iterator[int]:
        """Return the first element of every run, outermost loop slowest."""
        return self._starts(0, self.first) if self.length else iter(())

    def _starts(self, depth: int, start: int) -> Iterator[int]:
        if depth == len(self.loops):
            yield start
            return
        count, stride = self.loops[depth]
        for index in range(count):
            yield from self._starts(depth + 1, start + index * stride)


def strided_runs(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Runs:
    """Return the contiguous runs of an array of ``shape`` at ``offset`` with ``strides`` >= 0 (elements)."""
    if 0 in shape:
        return Runs(0, 0, ())
    length = 1
    loops: list[tuple[int, int]] = []
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if not loops and stride == length:
            length *= extent
        elif loops and stride == loops[-1][0] * loops[-1][1]:
            loops[-1] = (loops[-1][0] * extent, loops[-1][1])
        else:
            loops.append((extent, stride))
    return Runs(offset, length, tuple(reversed(loops)))


def runs(box: Box, shape: tuple[int, ...]) -> Runs:
    """Return the contiguous runs of ``box`` in the row-major memory of a tensor of ``shape``.

    Raises UCP-E-SHAPE where the box leaves the tensor.
    """
    if not Box.whole(shape).contains(box):
        raise error("UCP-E-SHAPE", f"the box at {box.offset} of shape {box.shape} leaves the shape {shape}")
    strides = row_major_strides(shape)
    first = sum(map(int.__mul__, box.offset, strides))
    return strided_runs(first, box.shape, strides)


def decompose_flat_range(shape: tuple[int, ...], start: int, stop: int) -> list[Box]:
    """Return the elements ``[start, stop)`` of the row-major order of ``shape`` as boxes in that order.

    At most ``max(1, 2 * ndim - 1)`` of them, none empty. Raises UCP-E-SHAPE unless
    ``0 <= start <= stop`` and ``stop`` is at most the number of elements.
    """
    if not 0 <= start <= stop <= math.prod(shape):
        raise error("UCP-E-SHAPE", f"the range [{start}, {stop}) leaves a tensor of shape {shape}")
    if start == stop:
        return []
    return [Box(offset, extents) for offset, extents in _decompose(shape, start, stop)]


def _decompose(
    shape: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    if not shape:
        yield (), ()
        return
    inner = shape[1:]
    row_size = math.prod(inner)
    row, skipped = divmod(start, row_size)
    last_row, kept = divmod(stop, row_size)
    if row == last_row:
        yield from _in_row(row, inner, skipped, kept)
        return
    if skipped:
        yield from _in_row(row, inner, skipped, row_size)
        row += 1
    if row < last_row:
        yield (row, *(0 for _ in inner)), (last_row - row, *inner)
    if kept:
        yield from _in_row(last_row, inner, 0, kept)


def _in_row(
    row: int, inner: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for offset, extents in _decompose(inner, start, stop):
        yield (row, *offset), (1, *extents)
