"""Pieces: which box of the logical tensor sits where in a local tensor (SPEC section 13)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol

from ucpformat.geometry.box import Box
from ucpformat.geometry.mesh import Axis
from ucpformat.geometry.steps import Reduce

__all__ = ["MAX_PIECES", "Holdings", "LocalMap", "Piece", "Region", "Strided"]

_ONE = Fraction(1)

MAX_PIECES: Final = 1 << 20
"""Most pieces of a map at one coordinate (SPEC UCP-D-066), and blocks by a rule (UCP-D-059)."""


@dataclass(frozen=True, slots=True)
class Strided:
    """A place in a linear memory: element ``offset + sum(x[d] * strides[d])`` for the relative cell ``x``."""

    offset: int
    strides: tuple[int, ...]

    def shifted(self, by: tuple[int, ...]) -> Strided:
        """Return the same strides, seen from the relative cell ``by``."""
        return Strided(self.offset + sum(map(int.__mul__, by, self.strides)), self.strides)


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of the logical tensor and its place in the local memory, one local stride per logical dim.

    ``box`` is in the coordinates of the logical tensor, or of the view of it that its lowering names. The
    local memory is that of the dense row-major local tensor. ``local value = scale * logical value``.
    """

    box: Box
    local: Strided
    scale: Fraction = _ONE

    def clip(self, box: Box) -> Piece | None:
        """Return the part of this piece inside ``box`` (logical coordinates), or None."""
        if box == self.box and not box.is_empty:
            return self  # as with all that one rank alone holds
        common = self.box.intersect(box)
        if common is None:
            return None
        by = tuple(map(int.__sub__, common.offset, self.box.offset))
        return Piece(common, self.local.shifted(by), self.scale)


@dataclass(frozen=True, slots=True)
class LocalMap:
    """What one coordinate holds: the shape of its local tensor and its pieces in canonical order.

    A coordinate that holds an empty tensor has a map without pieces; one that holds nothing has no map.
    Local elements that no piece maps to are padding, which is zero, or belong to other tensors of a buffer.
    """

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """The number of elements of the local tensor."""
        return math.prod(self.shape)

    @property
    def mapped(self) -> int:
        """The number of elements of the local tensor that some piece maps to."""
        return sum(piece.box.size for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Region:
    """One distinct local map, and the ranks that hold it, ascending.

    Holders are interchangeable, unless a reduction is pending: then ``contributions`` lists, for every
    position on the partial axes in row-major order, the ranks that hold that summand; else it is empty.
    """

    local_map: LocalMap
    holders: tuple[int, ...]
    contributions: tuple[tuple[int, ...], ...] = ()


class Holdings(Protocol):
    """Which ranks hold what of a tensor, as planners ask for it, in any order; answers never change.

    Pieces of ``regions`` are boxes of ``view``, which has the elements of ``shape`` in the same row-major
    order; ``scale`` is that of all of them. ``reduce`` is not None where contributions are pending.
    ``own_axes`` is not None where every coordinate of these axes has an entry of its own, never merged.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape."""
        ...

    @property
    def view(self) -> tuple[int, ...]:
        """The shape that boxes of pieces are of."""
        ...

    @property
    def scale(self) -> Fraction:
        """Local value / logical value."""
        ...

    @property
    def reduce(self) -> Reduce | None:
        """How contributions are reduced."""
        ...

    @property
    def own_axes(self) -> tuple[Axis, ...] | None:
        """The axes of a tensor with an entry of its own at every coordinate."""
        ...

    @property
    def keeps_entries(self) -> bool:
        """Whether such entries stay with their coordinates where another mesh has as many."""
        ...

    def regions(self) -> tuple[Region, ...]:
        """Return the distinct local maps with their holders."""
        ...

    def filled(self) -> tuple[Region, ...]:
        """Return the regions whose maps have pieces: those of `regions`, but for ranks that hold no element."""
        ...
