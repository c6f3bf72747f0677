"""Moves and copies: which elements go from which memory to which (SPEC section 17.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ucpformat.geometry.box import Box, Runs, row_major_strides, strided_runs
from ucpformat.geometry.piece import LocalMap, Piece, Strided
from ucpformat.geometry.steps import Reduce

__all__ = ["Copy", "Move", "TransferPlan", "coalesced", "extract", "intersect_box", "invert"]

_ONE = Fraction(1)


@dataclass(frozen=True, slots=True)
class Move:
    """Elements of ``shape`` from one strided place to another; one stride per dim on either side.

    Every value is multiplied by ``factor`` on the way.
    """

    shape: tuple[int, ...]
    source: Strided
    target: Strided
    factor: Fraction = _ONE


@dataclass(frozen=True, slots=True)
class Copy:
    """A move from the local memory of ``source_rank`` to that of ``target_rank``, maybe the same.

    Every value is multiplied by ``factor`` on the way. ``contribution`` is the place of the source on the
    partial axes of its layout, in row-major order; the target reduces all contributions in that order.
    """

    source_rank: int
    target_rank: int
    shape: tuple[int, ...]
    source: Strided
    target: Strided
    factor: Fraction = _ONE
    contribution: int = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """The copies that fill every target tensor, ordered by target region, then rank.

    Each element is written once, or, where ``reduce`` is not None, once for every contribution.
    """

    copies: tuple[Copy, ...]
    reduce: Reduce | None = None

    @property
    def elements_sent(self) -> int:
        """How many elements leave the rank that holds them."""
        return sum(copy.size for copy in self.copies if copy.source_rank != copy.target_rank)

    def to_rank(self, rank: int) -> tuple[Copy, ...]:
        """Return the copies that ``rank`` receives, those from itself included."""
        return tuple(copy for copy in self.copies if copy.target_rank == rank)

    def from_rank(self, rank: int) -> tuple[Copy, ...]:
        """Return the copies that ``rank`` provides, those to itself included."""
        return tuple(copy for copy in self.copies if copy.source_rank == rank)


def extract(local_map: LocalMap, view: tuple[int, ...]) -> tuple[Move, ...]:
    """Return the moves from a dense row-major logical tensor to the local tensor.

    ``view`` is that of the lowering. Local elements that no move writes are zero, or belong to other tensors
    of the same buffer.
    """
    return tuple(
        Move(piece.box.shape, _in_logical(piece.box, view), piece.local, piece.scale)
        for piece in local_map.pieces
    )


def invert(local_map: LocalMap, view: tuple[int, ...]) -> tuple[Move, ...]:
    """Return the moves from the local tensor back to a dense row-major logical tensor; see `extract`."""
    return tuple(
        Move(piece.box.shape, piece.local, _in_logical(piece.box, view), 1 / piece.scale)
        for piece in local_map.pieces
    )


def intersect_box(local_map: LocalMap, box: Box) -> tuple[Piece, ...]:
    """Return what a local tensor holds of ``box`` (in the lowering's view), in the order of its pieces."""
    clipped = (piece.clip(box) for piece in local_map.pieces)
    return tuple(piece for piece in clipped if piece is not None)


def coalesced(local_map: LocalMap, view: tuple[int, ...], *, gap: int = 0) -> list[tuple[int, int]]:
    """Return the ranges ``[start, stop)`` of the row-major logical tensor that a local tensor needs.

    They ascend; those with at most ``gap`` unneeded elements between them are joined, and runs of one piece
    that lie as close are never spelled out.
    """
    strides = row_major_strides(view)
    ranges: list[tuple[int, int]] = []
    for piece in local_map.pieces:
        first = sum(map(int.__mul__, piece.box.offset, strides))
        found = strided_runs(first, piece.box.shape, strides)
        length, loops = found.length, list(found.loops)
        while loops and loops[-1][1] - length <= gap:
            count, stride = loops.pop()
            length += (count - 1) * stride
        ranges.extend((start, start + length) for start in Runs(found.first, length, tuple(loops)))
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and start - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _in_logical(box: Box, view: tuple[int, ...]) -> Strided:
    return Strided(0, row_major_strides(view)).shifted(box.offset)
