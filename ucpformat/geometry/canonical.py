"""The canonical form of a piece list (SPEC section 13).

Pieces denote a map: for every logical cell that some piece holds, the local element it sits at and its
scale. Many lists denote one map; the canonical list is defined on the map alone, by recursion over the dims
of the logical tensor, outermost first:

1. 0-d: the one cell, if held, is one piece, with no strides.
2. n-d: for every index ``i`` of dim 0, let ``R(i)`` be the canonical list of the (n-1)-d map at that index.
   Two such lists have the same structure when they have equally many pieces and the pieces agree, in order,
   in box, strides and scale: in everything but the local offset. Indices are visited from 0 upwards and put
   into groups of consecutive ones. Index ``i`` with ``R(i)`` empty belongs to no group. Otherwise ``i`` joins
   the group of ``i - 1`` if there is one, ``R(i)`` and ``R(i - 1)`` have the same structure, the step of
   every piece (its local offset in ``R(i)`` minus that in ``R(i - 1)``) is at least 1, and, where the group
   has two or more indices already, every step equals that piece's step between the group's first two
   indices; else it begins a new group.
3. Every group of ``h`` indices from ``i`` on, and every piece of ``R(i)`` in order, make one piece: dim 0 of
   its box is ``[i, i + h)``; its stride on dim 0 is the step of that piece, or 0 where ``h`` is 1; its local
   offset, its scale and the rest of its box and strides are those of the piece.
4. Pieces are listed group by group. That is the row-major order of the first cells of their boxes.

So the stride of every dim of extent 1 is 0, and no other stride is below 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from ucpformat.errors import error
from ucpformat.geometry.box import Box
from ucpformat.geometry.piece import Piece, Strided

__all__ = ["canonical"]


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece seen from dim ``d`` inwards, at fixed indices of the dims before; ``strides`` as given."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    local: int
    scale: Fraction

    def structure(self) -> tuple[object, ...]:
        return self.offset, self.shape, self.strides, self.scale

    def row(self, index: int) -> _Part:
        """Return the (n-1)-d part at ``index`` of the first dim."""
        local = self.local + (index - self.offset[0]) * self.strides[0]
        return _Part(self.offset[1:], self.shape[1:], self.strides[1:], local, self.scale)


def canonical(pieces: Iterable[Piece], shape: tuple[int, ...]) -> tuple[Piece, ...]:
    """Return the canonical list of the map that ``pieces`` denote on a tensor of ``shape``.

    Equal for every list that denotes the same map, however it was cut or ordered; empty boxes say nothing.
    The work follows the number of pieces where pieces that lie side by side have equal strides (as in one
    local tensor they do); pieces side by side with different strides cost their extent, as they may well
    be that many canonical pieces.

    Raises UCP-E-COVER where two pieces hold one cell or a piece leaves the tensor.
    """
    whole = Box.whole(shape)
    parts: list[_Part] = []
    for piece in pieces:
        box, local = piece.box, piece.local
        if not whole.contains(box):
            raise error("UCP-E-COVER", f"the piece at {box.offset} of {box.shape} leaves the tensor {shape}")
        if not box.is_empty:
            parts.append(_Part(box.offset, box.shape, local.strides, local.offset, piece.scale))
    return tuple(
        Piece(Box(part.offset, part.shape), Strided(part.local, part.strides), part.scale)
        for part in _canonical(parts, len(shape))
    )


def _canonical(parts: list[_Part], ndim: int) -> list[_Part]:
    if ndim == 0:
        if len(parts) > 1:
            raise error("UCP-E-COVER", "two pieces hold the same cell")
        return parts
    grouping = _Grouping()
    for start, stop, active in _slabs(parts):
        strides = {part.strides[0] for part in active}
        # With one stride for all, the rows of a slab differ by the same shift and so have one structure.
        if stop - start == 1 or (len(strides) == 1 and min(strides) >= 1):
            rows = _canonical([part.row(start) for part in active], ndim - 1)
            grouping.add(start, stop - start, rows, min(strides))
        else:
            for index in range(start, stop):
                grouping.add(index, 1, _canonical([part.row(index) for part in active], ndim - 1), 0)
    return grouping.finish()


def _slabs(parts: list[_Part]) -> Iterator[tuple[int, int, list[_Part]]]:
    """Yield the slabs between first and last indices of parts along dim 0; each with the parts that span it."""
    waiting = sorted(parts, key=lambda part: part.offset[0], reverse=True)
    edges = {part.offset[0] for part in parts} | {part.offset[0] + part.shape[0] for part in parts}
    cuts = sorted(edges)
    active: list[_Part] = []
    for start, stop in pairwise(cuts):
        active = [part for part in active if part.offset[0] + part.shape[0] > start]
        while waiting and waiting[-1].offset[0] == start:
            active.append(waiting.pop())
        if active:
            yield start, stop, active


class _Grouping:
    """Rule 2, a slab of rows at a time instead of row by row."""

    def __init__(self) -> None:
        self.done: list[_Part] = []
        self.start = 0
        self.height = 0
        self.rows: list[_Part] = []
        self.steps: list[int] = []

    def add(self, start: int, height: int, rows: list[_Part], stride: int) -> None:
        """Add rows ``[start, start + height)``: ``rows`` at the first, ``stride`` further at each next."""
        steps = self._joining_steps(start, rows)
        if steps is not None:
            if height == 1 or all(step == stride for step in steps):
                self.height += height
                self.steps = steps
                return
            # Only the first row continues the group; the second breaks the step and begins another.
            self.height += 1
            self.steps = steps
            start, height = start + 1, height - 1
            rows = [_Part(row.offset, row.shape, row.strides, row.local + stride, row.scale) for row in rows]
        self._flush()
        self.start, self.height, self.rows = start, height, rows
        self.steps = [stride if height > 1 else 0] * len(rows)

    def finish(self) -> list[_Part]:
        self._flush()
        return self.done

    def _joining_steps(self, start: int, rows: list[_Part]) -> list[int] | None:
        """Return every piece's step from the group's last row to this one, or None where it cannot join."""
        if self.height == 0 or self.start + self.height != start or len(rows) != len(self.rows):
            return None
        if any(row.structure() != mine.structure() for row, mine in zip(rows, self.rows, strict=True)):
            return None
        steps = [
            row.local - mine.local - (self.height - 1) * step
            for row, mine, step in zip(rows, self.rows, self.steps, strict=True)
        ]
        fits = steps == self.steps if self.height > 1 else all(step >= 1 for step in steps)
        return steps if fits else None

    def _flush(self) -> None:
        for row, step in zip(self.rows, self.steps, strict=True):
            self.done.append(
                _Part(
                    (self.start, *row.offset),
                    (self.height, *row.shape),
                    (step, *row.strides),
                    row.local,
                    row.scale,
                )
            )
