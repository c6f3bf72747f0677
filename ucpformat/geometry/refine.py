"""Views: shapes with the same row-major order of elements, and boxes seen in one or the other.

The *cuts* of a shape are the distinct products of its trailing extents between 1 and the element count,
exclusively. One view refines another when it has all of the other's cuts; two views have a common refinement
when their cuts together form a chain of divisors. Every view of one tensor refines the 1-d one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from ucpformat.errors import error
from ucpformat.geometry.box import Box, decompose_flat_range, row_major_strides
from ucpformat.geometry.canonical import canonical
from ucpformat.geometry.piece import MAX_PIECES, Piece, Strided

__all__ = ["Part", "assembled", "check_count", "common_refinement", "cuts", "grouped", "refined", "seen_in"]

# Along one dim of a view: first index per new dim, extents, strides, and how far the local place moves.
Part = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]


def cuts(shape: tuple[int, ...]) -> list[int]:
    """Return the cuts of a shape without zero extents, ascending."""
    count = math.prod(shape)
    return sorted({stride for stride in row_major_strides(shape) if 1 < stride < count})


def common_refinement(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return ``shape`` with its dims split at the cuts of ``other``, or None where one cut does not divide.

    Both shapes have the same element count. Of empty tensors every view is as good: that is ``shape``.
    """
    if 0 in shape:
        return shape
    wanted = cuts(other)
    refined: list[int] = []
    for extent, inner in zip(shape, row_major_strides(shape), strict=True):
        edges = [inner, *(cut for cut in wanted if inner < cut < inner * extent), inner * extent]
        if any(high % low for low, high in itertools.pairwise(edges)):
            return None
        refined += reversed([high // low for low, high in itertools.pairwise(edges)])
    return tuple(refined)


def seen_in(pieces: Iterable[Piece], shape: tuple[int, ...], view: tuple[int, ...]) -> tuple[Piece, ...]:
    """Return pieces on ``shape`` as the canonical pieces of the same map on another ``view`` of the tensor.

    Where ``view`` refines ``shape``, a box becomes a few boxes for each dim that is split; elsewhere every
    run of it may become one. Raises UCP-E-LIMIT over `MAX_PIECES`.
    """
    pieces = tuple(pieces)
    if shape == view or not pieces:
        return pieces
    fine = common_refinement(shape, view)
    if fine is not None:
        pieces = _coarser(_finer(pieces, shape, fine), fine, view)
    else:
        mine = set(cuts(shape))
        edges = [1, *(cut for cut in cuts(view) if cut in mine), math.prod(shape)]
        shared = tuple(reversed([high // low for low, high in itertools.pairwise(edges)]))
        pieces = _finer(_coarser(pieces, shape, shared), shared, view)
    return canonical(pieces, view)


def grouped(fine: tuple[int, ...], coarse: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return for every dim of ``coarse`` the dims of ``fine`` that make it up; those of extent 1 in none."""
    waiting = [dim for dim, extent in enumerate(fine) if extent > 1]
    groups: list[tuple[int, ...]] = []
    for extent in coarse:
        product, group = 1, []
        while product < extent:
            group.append(waiting.pop(0))
            product *= fine[group[-1]]
        groups.append(tuple(group))
    return groups


def refined(extents: tuple[int, ...], first: int, length: int, stride: int) -> list[Part]:
    """Return the run ``[first, first + length)`` of a dim as parts on the dims of ``extents`` it is made of.

    ``stride`` is the local one along the run; the shifts are relative to the place of its first index.
    """
    dense = row_major_strides(extents)
    return [
        (
            box.offset,
            box.shape,
            tuple(stride * inner for inner in dense),
            stride * (sum(map(int.__mul__, box.offset, dense)) - first),
        )
        for box in decompose_flat_range(extents, first, first + length)
    ]


def _finer(pieces: Sequence[Piece], shape: tuple[int, ...], fine: tuple[int, ...]) -> tuple[Piece, ...]:
    groups = grouped(fine, shape)

    def parts(piece: Piece, dim: int) -> list[Part]:
        extents = tuple(fine[part] for part in groups[dim])
        return refined(extents, piece.box.offset[dim], piece.box.shape[dim], piece.local.strides[dim])

    return _products(pieces, [list(group) for group in groups], len(fine), parts)


def _coarser(pieces: Sequence[Piece], fine: tuple[int, ...], coarse: tuple[int, ...]) -> tuple[Piece, ...]:
    groups = grouped(fine, coarse)

    def parts(piece: Piece, dim: int) -> list[Part]:
        group = groups[dim]
        dense = row_major_strides(tuple(fine[part] for part in group))
        shape = [piece.box.shape[part] for part in group]
        strides = [piece.local.strides[part] for part in group]
        # The innermost dims that make one run here and, with one stride, there.
        outer, length, stride = len(group), 1, 0
        while outer:
            extent, step = shape[outer - 1], strides[outer - 1]
            if extent > 1:
                if length != dense[outer - 1] or (length > 1 and step != stride * length):
                    break
                stride = step if length == 1 else stride
                length *= extent
            outer -= 1
        first = sum(piece.box.offset[part] * inner for part, inner in zip(group, dense, strict=True))
        check_count(math.prod(tuple(shape[:outer])))
        return [
            (
                (first + sum(map(int.__mul__, index, dense)),),
                (length,),
                (stride,),
                sum(map(int.__mul__, index, strides)),
            )
            for index in itertools.product(*map(range, shape[:outer]))
        ]

    return _products(pieces, [[dim] for dim in range(len(coarse))], len(coarse), parts)


def _products(
    pieces: Sequence[Piece],
    targets: list[list[int]],
    ndim: int,
    parts: Callable[[Piece, int], list[Part]],
) -> tuple[Piece, ...]:
    """Return the pieces made of one part per dim; ``targets`` are the new dims of each."""
    found: list[Piece] = []
    for piece in pieces:
        choices = [parts(piece, dim) for dim in range(len(targets))]
        check_count(len(found) + math.prod(map(len, choices)))
        found.extend(
            assembled(choice, targets, ndim, piece.local.offset, piece.scale)
            for choice in itertools.product(*choices)
        )
    return tuple(found)


def assembled(
    parts: Sequence[Part], targets: Sequence[Sequence[int]], ndim: int, local: int, scale: Fraction
) -> Piece:
    """Return the piece that is the product of ``parts``, each on its ``targets`` of ``ndim`` dims."""
    offset, shape, strides = [0] * ndim, [1] * ndim, [0] * ndim
    for (first, extents, steps, shift), dims in zip(parts, targets, strict=True):
        local += shift
        for number, dim in enumerate(dims):
            offset[dim], shape[dim] = first[number], extents[number]
            strides[dim] = steps[number] if extents[number] > 1 else 0
    return Piece(Box(tuple(offset), tuple(shape)), Strided(local, tuple(strides)), scale)


def check_count(count: int) -> None:
    """Raise UCP-E-LIMIT where a map would fall apart into more pieces than `MAX_PIECES`."""
    if count > MAX_PIECES:
        raise error("UCP-E-LIMIT", f"a map falls apart into more than {MAX_PIECES} pieces here")
