"""A parameter of which several ranks hold shards, as one source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ucpformat.conversion.contract.job import ReadBox
from ucpformat.conversion.contract.sources import EqualSources, read_only_to_check, window
from ucpformat.errors import error
from ucpformat.geometry import Box, BoxIndex, Holdings, Piece

__all__ = ["shard_source"]


@dataclass(frozen=True, slots=True)
class _Shard:
    """A piece of the parameter, and a reader of the shard it lies in."""

    piece: Piece
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    read: ReadBox


class _Shards:
    """A parameter of which the shards of several ranks are read."""

    def __init__(self, shards: Sequence[_Shard]) -> None:
        self._shards = shards
        self._index = BoxIndex([shard.piece.box for shard in shards])

    def __call__(self, box: Box, out: npt.NDArray[np.generic]) -> None:
        """Fill ``out``, contiguous, with a box."""
        for number in self._index.overlapping(box):
            shard = self._shards[number]
            piece = shard.piece.clip(box)
            if piece is None:
                continue
            offset = tuple(
                piece.local.offset // stride % extent if stride else 0
                for stride, extent in zip(shard.strides, shard.shape, strict=True)
            )
            part = np.empty(piece.box.shape, out.dtype)
            shard.read(Box(offset, piece.box.shape), part)
            window(out, piece.box.relative_to(box))[...] = part

    def check(self, box: Box, kind: np.dtype[Any]) -> None:
        """Compare a box of ``kind`` that is not read: every shard as it compares itself."""
        read_only_to_check(self, box, kind)


def shard_source(held: Holdings, reads: Sequence[ReadBox], name: str, at: str) -> ReadBox:
    """Return a reader of the whole parameter; where several ranks hold a region, their copies must be equal."""
    shards = []
    for region in held.filled():
        read = reads[region.holders[0]]
        for other in region.holders[1:]:
            read = EqualSources(read, reads[other], name, at)
        shape = region.local_map.shape
        strides = _dense(shape)
        for piece in region.local_map.pieces:
            if len(shape) != piece.box.ndim or any(
                step not in (0, stride) for step, stride in zip(piece.local.strides, strides, strict=True)
            ):
                raise error(
                    "UCP-E-SOURCE", f"{name!r}: the affine map reorders elements within a shard", at=at
                )
            shards.append(_Shard(piece, strides, shape, read))
    return _Shards(shards)


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return tuple(strides)
