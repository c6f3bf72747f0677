"""Which ranks hold something of a tensor in a flat buffer, found without asking each (SPEC section 12)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import takewhile

from ucpformat.geometry.intervals import HOLE, Interval, part
from ucpformat.geometry.mesh import Coordinate, Mesh
from ucpformat.geometry.program import Place, Program, Split, projections

__all__ = ["BufferReach", "span_of"]


def span_of(intervals: list[Interval]) -> tuple[int, int]:
    """Return the smallest range that holds every element of a list, holes around them left out."""
    first = last = position = 0
    for start, length in intervals:
        if start != HOLE:
            first = first if last else position
            last = position + length
        position += length
    return first, last


class BufferReach:
    """The coordinates whose part of a buffer meets a tensor in it.

    ``program`` is what is done to the flat tensor, with a `Place`; ``axes`` all that are used, ``present`` as in
    `projections`. The splits right behind the place are looked up, instead of tried position by position.
    """

    def __init__(
        self,
        mesh: Mesh,
        program: Program,
        axes: set[int],
        present: tuple[tuple[int, frozenset[int]], ...],
    ) -> None:
        number = next(number for number, step in enumerate(program) if isinstance(step, Place))
        self.head = program[: number + 1]
        behind = takewhile(lambda step: isinstance(step, Split), program[number + 1 :])
        self._splits = [step for step in behind if isinstance(step, Split)]
        self._mesh = mesh
        self._present = present
        self._axes = axes - {split.axis for split in self._splits}

    def heads(self) -> Iterator[Coordinate]:
        """Return every coordinate over the axes that are not looked up, zero on the others."""
        return (coordinate for coordinate, _ in projections(self._mesh, self._axes, self._present))

    def coordinates(self, head: Coordinate, intervals: list[Interval]) -> Iterator[tuple[Coordinate, int]]:
        """Return the coordinates like ``head`` where something may be held, each with its position.

        ``intervals`` are the buffer at ``head``, before it is split.
        """
        first, last = span_of(intervals)
        total = sum(length for _, length in intervals)
        for coordinate in self._split(0, head, first, last, total):
            yield coordinate, self._mesh.position_of(coordinate)

    def _split(self, depth: int, head: Coordinate, first: int, last: int, total: int) -> Iterator[Coordinate]:
        if first >= last:
            return
        if depth == len(self._splits):
            yield head
            return
        split = self._splits[depth]
        count = split.sizes[0]

        def start(index: int) -> int:
            return part(total, count, split.rule, index, split.at)[0]

        def stop(index: int) -> int:
            return sum(part(total, count, split.rule, index, split.at))

        low = bisect_right(range(count), first, key=stop)
        for index in range(low, bisect_left(range(count), last, key=start)):
            begin, end = start(index), stop(index)
            inner = (*head[: split.axis], index, *head[split.axis + 1 :])
            yield from self._split(
                depth + 1, inner, max(first, begin) - begin, min(last, end) - begin, end - begin
            )
