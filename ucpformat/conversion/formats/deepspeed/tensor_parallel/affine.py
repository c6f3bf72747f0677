"""DeepSpeed's affine maps, in and out (SPEC appendix A).

Its description of a parameter under tensor parallelism (``deepspeed/checkpoint/affine.py``, ``ParamAffineMap.to_dict``)
lists strided views of the whole parameter and of the shard, rank by rank. In contrast to DeepSpeed's own reader,
which starts from uninitialised memory, what comes in is checked to cover the parameter, and no shard element twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from ucpformat.errors import UcpError, error
from ucpformat.geometry import (
    Box,
    ExplicitHoldings,
    Holdings,
    LocalMap,
    Piece,
    Strided,
    canonical,
    covers,
    exact_cover,
    row_major_strides,
)

__all__ = ["affine_description", "affine_holdings"]

_MAX_PARTS: Final = 1 << 16
"""Most boxes that the pieces of one rank may fall into."""


def affine_holdings(entry: Mapping[str, Any], *, at: str) -> ExplicitHoldings:
    """Return what ``ParamAffineMap.to_dict`` says, of which every rank's boxes are made.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for what is malformed, leaves the parameter or the shard, writes a shard element
            twice or leaves one out, or scales pieces differently; ``UCP-E-COVER`` for elements that no rank holds.
    """
    try:
        shape = _extents(entry["logical_shape"])
        ranks = {int(rank): value for rank, value in entry["ranks"].items()}
        maps = [
            (
                rank,
                _local_map(
                    shape, _extents(ranks[rank]["shard_shape"]), ranks[rank]["pieces"], f"{at}/{rank}"
                ),
            )
            for rank in sorted(ranks)
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise _refused(f"the map is malformed ({type(problem).__name__}: {problem})", at) from None
    scales = {piece.scale for _, local_map in maps for piece in local_map.pieces} or {Fraction(1)}
    if len(scales) > 1:
        raise _refused("pieces of one parameter are scaled differently", at)
    fault = covers([piece.box for _, local_map in maps for piece in local_map.pieces], shape)
    if fault is not None:
        raise error("UCP-E-COVER", f"the pieces of all ranks leave a {fault.kind} at {fault.box}", at=at)
    return ExplicitHoldings(shape, tuple(maps), scales.pop())


def _local_map(
    shape: tuple[int, ...], shard: tuple[int, ...], pieces: Sequence[Mapping[str, Any]], at: str
) -> LocalMap:
    local_pieces: list[Piece] = []
    budget = [_MAX_PARTS]
    for piece in pieces:
        source, source_strides = piece["source"]
        dest, dest_strides = piece["dest"]
        block = _Block(
            _extents(piece["shape"]),
            Strided(_number(source), _extents(source_strides)),
            Strided(_number(dest), _extents(dest_strides)),
        )
        scale = Fraction(piece.get("scale", 1.0))
        if scale == 0:
            raise _refused("a scale of 0 cannot be undone", at)
        local_pieces.extend(Piece(box, local, scale) for box, local in _boxes(block, shape, at, budget))
    size = math.prod(shard)
    spans = [_last(piece) for piece in local_pieces]
    if max(spans, default=-1) >= size or sum(piece.box.size for piece in local_pieces) != size:
        raise _refused(f"the pieces do not fill the shard of {size} elements exactly", at)
    _check_distinct(local_pieces, shard, at)
    try:
        return LocalMap(shard, canonical(local_pieces, shape))
    except UcpError as refusal:
        raise error(refusal.code, refusal.message, at=at) from None


@dataclass(frozen=True, slots=True)
class _Block:
    """One piece of an affine map: the same cells in two linear memories."""

    shape: tuple[int, ...]
    source: Strided
    dest: Strided

    def __post_init__(self) -> None:
        if not len(self.shape) == len(self.source.strides) == len(self.dest.strides):
            raise ValueError("a piece has as many strides as dims, on both sides")

    def row(self, dim: int, first: int, count: int) -> _Block:
        by = tuple(first if d == dim else 0 for d in range(len(self.shape)))
        shape = (*self.shape[:dim], count, *self.shape[dim + 1 :])
        return _Block(shape, self.source.shifted(by), self.dest.shifted(by))


def _boxes(
    block: _Block, shape: tuple[int, ...], at: str, budget: list[int]
) -> Iterator[tuple[Box, Strided]]:
    """Yield the boxes of the logical tensor that a block is, with their places in the shard.

    A block whose dims walk along dims of the tensor and stay inside them is one box; others are cut along their
    outermost dim until each is.
    """
    if 0 in block.shape:
        return
    budget[0] -= 1
    if budget[0] < 0:
        raise error("UCP-E-LIMIT", f"a rank's pieces fall into more than {_MAX_PARTS} boxes", at=at)
    if not 0 <= block.source.offset < math.prod(shape):
        raise _refused("a piece begins outside the parameter", at)
    dims = _dims(block, shape)
    if dims is not None:
        offset = tuple(
            block.source.offset // stride % extent if extent else 0
            for stride, extent in zip(row_major_strides(shape), shape, strict=True)
        )
        extents, steps = [1] * len(shape), [0] * len(shape)
        for dim, extent, stride in zip(dims, block.shape, block.dest.strides, strict=True):
            if dim is not None:
                extents[dim], steps[dim] = extent, stride
        yield Box(offset, tuple(extents)), Strided(block.dest.offset, tuple(steps))
        return
    longest = next((dim for dim, extent in enumerate(block.shape) if extent > 1), None)
    if longest is None:
        raise _refused("a piece leaves the parameter", at)
    for first in range(block.shape[longest]):
        yield from _boxes(block.row(longest, first, 1), shape, at, budget)


def _dims(block: _Block, shape: tuple[int, ...]) -> list[int | None] | None:
    """Return which dim of the tensor each dim of a block walks along; None where it is no box of it as it stands."""
    strides = row_major_strides(shape)
    dims: list[int | None] = []
    for extent, stride in zip(block.shape, block.source.strides, strict=True):
        if extent == 1:
            dims.append(None)
            continue
        dim = next(
            (d for d, (s, n) in enumerate(zip(strides, shape, strict=True)) if s == stride and n > 1), None
        )
        if dim is None or dim in dims or block.source.offset // stride % shape[dim] + extent > shape[dim]:
            return None
        dims.append(dim)
    return dims


def _last(piece: Piece) -> int:
    return piece.local.offset + sum(
        (extent - 1) * stride for extent, stride in zip(piece.box.shape, piece.local.strides, strict=True)
    )


def _check_distinct(pieces: Sequence[Piece], shard: tuple[int, ...], at: str) -> None:
    """Refuse two pieces that share a shard element: as the counts agree, there are then holes as well."""
    blocks = (_Block(piece.box.shape, piece.local, piece.local) for piece in pieces)
    boxes = [box for block in blocks for box, _ in _boxes(block, shard, at, [_MAX_PARTS])]
    if exact_cover(boxes, shard) is not None:
        raise _refused("two pieces lie on the same element of the shard", at)


def affine_description(held: Holdings) -> dict[str, Any]:
    """Return what ``ParamAffineMap.from_dict`` reads, for what ranks hold of a parameter.

    Pieces are cut so that each is held by the same ranks throughout, as DeepSpeed asks.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for what an affine map cannot say: padding, pending reductions, entries that
            belong to each rank.
    """
    if held.reduce is not None or held.own_axes is not None:
        raise _refused("an affine map says neither reductions nor entries that belong to each rank", "")
    regions = held.regions()
    boxes = [(piece.box, region.holders) for region in regions for piece in region.local_map.pieces]
    ranks: dict[int, Any] = {}
    for region in regions:
        local_map = region.local_map
        if local_map.mapped != local_map.size:
            raise _refused("an affine map has no padding: pieces must fill the shard", "")
        pieces = [
            _piece(part, box_holders, held.view)
            for piece in local_map.pieces
            for part, box_holders in _homogeneous(piece, boxes)
        ]
        for rank in region.holders:
            ranks[rank] = {"shard_shape": list(_shard_shape(local_map.shape, held)), "pieces": pieces}
    return {"logical_shape": list(held.shape), "ranks": dict(sorted(ranks.items()))}


def _shard_shape(local: tuple[int, ...], held: Holdings) -> tuple[int, ...]:
    """Return the local shape; of a layout with a view, which splits dim 0 in several, with these dims as one again."""
    inner = held.shape[1:]
    if len(local) <= len(held.shape) or local[len(local) - len(inner) :] != inner:
        return local
    return (math.prod(local) // max(1, math.prod(inner)), *inner)


def _homogeneous(
    piece: Piece, boxes: Sequence[tuple[Box, tuple[int, ...]]]
) -> Iterator[tuple[Piece, tuple[int, ...]]]:
    """Cut a piece where the set of its holders changes."""
    parts = [piece.box]
    for other in dict(boxes):
        cut: list[Box] = []
        for part in parts:
            common = part.intersect(other)
            cut.extend([part] if common is None else [common, *part.subtract(other)])
        parts = cut
    for part in sorted(parts, key=lambda box: box.offset):
        holders = {rank for box, ranks in boxes if box.contains(part) for rank in ranks}
        clipped = piece.clip(part)
        if clipped is not None:
            yield clipped, tuple(sorted(holders))


def _piece(piece: Piece, holders: tuple[int, ...], view: tuple[int, ...]) -> dict[str, Any]:
    strides = row_major_strides(view)
    entry: dict[str, Any] = {
        "shape": list(piece.box.shape),
        "source": [Strided(0, strides).shifted(piece.box.offset).offset, list(strides)],
        "dest": [piece.local.offset, list(piece.local.strides)],
        "locations": list(holders),
    }
    if piece.scale != 1:
        entry["scale"] = float(piece.scale)
    return entry


def _extents(values: Any) -> tuple[int, ...]:
    extents = tuple(values)
    if not all(type(value) is int and value >= 0 for value in extents):
        raise ValueError(f"expected integers >= 0, not {extents!r}")
    return extents


def _number(value: Any) -> int:
    return _extents([value])[0]


def _refused(message: str, at: str) -> UcpError:
    return error("UCP-E-LAYOUT", message, at=at)
