"""Where the elements of a slot come from: pieces of stored tensors or shards of ranks, read box by box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ucpformat.conversion.contract.job import ReadBox
from ucpformat.errors import error
from ucpformat.geometry import Box, BoxIndex, Holdings, Piece, row_major_strides
from ucpformat.tensor_files.byte_source import element_view, slabs
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor

__all__ = [
    "AgreeingSources",
    "CastSource",
    "EqualSources",
    "Pieces",
    "StoredPiece",
    "Whole",
    "read_only_to_check",
    "sample_shape",
    "shard_source",
    "window",
]

_CAST_BYTES: Final = 4 << 20  # cast at a time: no array of a whole chunk, nor one that leaves the cache


@dataclass(frozen=True, slots=True)
class Whole:
    """A stored tensor that is the slot."""

    file: TorchFile
    stored: StoredTensor

    def __call__(self, box: Box, out: npt.NDArray[np.generic]) -> None:
        """Fill ``out``, contiguous, with a box."""
        if out.size:
            first = sum(map(int.__mul__, box.offset, self.stored.strides))
            self.file.read(self.stored, first, self.stored.strides, _elements(out))


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A piece of the slot, and the dense local tensor it lies in, as stored."""

    piece: Piece
    file: TorchFile
    stored: StoredTensor


class Pieces:
    """A slot of which several stored tensors hold boxes, as pieces say; every box is wholly covered."""

    def __init__(self, parts: Sequence[StoredPiece]) -> None:
        self.parts = parts
        self._index = BoxIndex([part.piece.box for part in parts])

    def __call__(self, box: Box, out: npt.NDArray[np.generic]) -> None:
        """Fill ``out``, contiguous, with a box; of cells that several hold, the first in order counts."""
        target = _elements(out)
        missing = box.size
        for number in reversed(self._index.overlapping(box)):
            part = self.parts[number]
            piece = part.piece.clip(box)
            if piece is None:
                continue
            within = piece.box.relative_to(box)
            part_of_target = window(target, within)
            offset, strides = _stored_place(piece, part)
            part.file.read(part.stored, offset, strides, part_of_target)
            missing -= piece.box.size
        if missing > 0:
            raise error("UCP-E-COVER", f"{missing} elements of the box at {box.offset} are stored nowhere")


def _stored_place(piece: Piece, part: StoredPiece) -> tuple[int, Sequence[int]]:
    """Return where a piece lies in the stored tensor, which may itself be a view with gaps."""
    stored = part.stored
    dense = row_major_strides(stored.shape)
    if all(n == 1 or a == b for n, a, b in zip(stored.shape, stored.strides, dense, strict=True)):
        return piece.local.offset, piece.local.strides
    if len(stored.shape) != piece.box.ndim:
        raise error("UCP-E-SOURCE", "a shard is stored with gaps; save contiguous tensors", at=part.file.name)
    index = [
        piece.local.offset // stride % extent for stride, extent in zip(dense, stored.shape, strict=True)
    ]
    strides = [kept if step else 0 for kept, step in zip(stored.strides, piece.local.strides, strict=True)]
    return sum(map(int.__mul__, index, stored.strides)), strides


@dataclass(frozen=True, slots=True)
class CastSource:
    """A slot that is another one, rounded to nearest, ties to even: what DeepSpeed's copy to the module does."""

    inner: ReadBox
    dtype: np.dtype[Any]

    def __call__(self, box: Box, out: npt.NDArray[np.generic]) -> None:
        """Fill ``out`` with a box."""
        for offset, shape in slabs(box.shape, self.dtype.itemsize, _CAST_BYTES):
            part = Box(tuple(map(int.__add__, box.offset, offset)), shape)
            data = np.empty(shape, self.dtype)
            self.inner(part, data)
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(window(out, Box(offset, shape)), data, casting="unsafe")

    def check(self, box: Box, kind: np.dtype[Any]) -> None:
        """Compare nothing: it is made of what it would be compared with."""


@dataclass(frozen=True, slots=True)
class EqualSources:
    """A slot of which there are two copies that must agree, bit by bit."""

    first: ReadBox
    second: ReadBox
    name: str
    at: str

    def __call__(self, box: Box, out: npt.NDArray[np.generic]) -> None:
        """Fill ``out`` with a box. Raises ``UCP-E-SOURCE`` where the copies differ."""
        self.first(box, out)
        other = np.empty_like(out)
        self.second(box, other)
        if not np.array_equal(_bits(out), _bits(other)):
            raise error(
                "UCP-E-SOURCE",
                f"the copies of {self.name!r} differ (of the module and the optimizer, or of two ranks): "
                "the files are from two saves, or a copy was changed without the other",
                at=self.at,
            )

    def check(self, box: Box, kind: np.dtype[Any]) -> None:
        """Compare a box of ``kind`` that is not read. Raises ``UCP-E-SOURCE`` as for one that is read."""
        read_only_to_check(self, box, kind)


def read_only_to_check(read: ReadBox, box: Box, kind: np.dtype[Any]) -> None:
    """Read a box for the comparisons that its source makes, and keep nothing of it."""
    read(box, np.empty(box.shape, kind))


def _bits(array: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _elements(out: npt.NDArray[np.generic]) -> npt.NDArray[Any]:
    return element_view(out.reshape(-1).view(np.uint8), out.itemsize, out.shape)


@dataclass(frozen=True, slots=True)
class AgreeingSources:
    """A slot of which there is a second, derived copy: the first elements of every box are compared with it.

    Files of two saves differ nearly everywhere, so that a few elements of each tensor tell.
    """

    first: ReadBox
    second: ReadBox
    name: str
    at: str

    def __call__(self, box: Box, out: npt.NDArray[np.generic]) -> None:
        """Fill ``out`` with a box. Raises ``UCP-E-SOURCE`` where the copies differ."""
        self.first(box, out)
        sample = Box(box.offset, sample_shape(box.shape))
        self._compare(sample, window(out, Box((0,) * sample.ndim, sample.shape)))

    def check(self, box: Box, kind: np.dtype[Any]) -> None:
        """Compare as for a box of ``kind`` that is read, and read no more than that takes.

        Raises ``UCP-E-SOURCE`` as for one that is read.
        """
        sample = Box(box.offset, sample_shape(box.shape))
        mine = np.empty(sample.shape, kind)
        self.first(sample, mine)
        self._compare(sample, mine)

    def _compare(self, sample: Box, mine: npt.NDArray[np.generic]) -> None:
        other = np.empty(sample.shape, mine.dtype)
        self.second(sample, other)
        if not np.array_equal(_bits(mine), _bits(other)):
            raise error(
                "UCP-E-SOURCE",
                f"the module's {self.name!r} is not the optimizer's copy of it, rounded: "
                "the files are from two saves, or the weights were changed without the optimizer",
                at=self.at,
            )


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
        strides = row_major_strides(shape)
        for piece in region.local_map.pieces:
            if len(shape) != piece.box.ndim or any(
                step not in (0, stride) for step, stride in zip(piece.local.strides, strides, strict=True)
            ):
                raise error(
                    "UCP-E-SOURCE", f"{name!r}: the affine map reorders elements within a shard", at=at
                )
            shards.append(_Shard(piece, strides, shape, read))
    return _Shards(shards)


_SAMPLE: Final = 4096


def sample_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the extents of at most `_SAMPLE` elements, the last dims first."""
    left, extents = _SAMPLE, []
    for extent in reversed(shape):
        kept = min(extent, max(left, 1))
        extents.append(kept)
        left //= max(kept, 1)
    return tuple(reversed(extents))


def window(array: npt.NDArray[Any], box: Box) -> npt.NDArray[Any]:
    """Return a view of a box; of a 0-d array too, where an empty index would give a copy."""
    index: Any = (*map(slice, box.offset, box.stop), ...)
    view: npt.NDArray[Any] = array[index]
    return view
