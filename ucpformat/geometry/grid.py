"""The storage chunk grid: a function of shape, item size and target size alone (SPEC section 16.1)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from ucpformat.errors import error
from ucpformat.geometry.box import Box, is_extents, row_major_strides

__all__ = ["ChunkGrid", "chunk_grid"]


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """A regular grid over an array: chunk ``i`` starts at ``i[d] * chunk_shape[d]`` in every dim.

    A chunk has an index, one integer per dim, and a position, where it stands in the C order of all chunks.
    Raises UCP-E-SHAPE unless both shapes have equally many dims and chunk extents are at least 1.
    """

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    counts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The number of chunks per dim: 0 where the extent is 0."""
    count: int = field(init=False, repr=False, compare=False)
    """The number of chunks: 1 for a 0-d array, 0 for an empty one."""
    whole: Box = field(init=False, repr=False, compare=False)
    """The box of all cells."""

    def __post_init__(self) -> None:
        if not (
            is_extents(self.shape)
            and is_extents(self.chunk_shape)
            and len(self.shape) == len(self.chunk_shape)
            and 0 not in self.chunk_shape
        ):
            raise error(
                "UCP-E-SHAPE",
                f"a grid needs a shape and as many chunk extents >= 1, "
                f"not {self.shape!r} and {self.chunk_shape!r}",
            )
        counts = tuple(
            -(-extent // chunk) for extent, chunk in zip(self.shape, self.chunk_shape, strict=True)
        )
        # Asked for with every chunk that is read or written.
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "count", math.prod(counts))
        object.__setattr__(self, "whole", Box.whole(self.shape))

    def chunk_box(self, index: tuple[int, ...]) -> Box:
        """Return the cells of a chunk, clipped to the array; UCP-E-SHAPE where there is no such chunk."""
        self._check(index)
        return self._box(index)

    def _box(self, index: tuple[int, ...]) -> Box:
        offset = tuple(map(int.__mul__, index, self.chunk_shape))
        rest = map(int.__sub__, self.shape, offset)
        return Box(offset, tuple(map(min, self.chunk_shape, rest)))

    def box_at(self, position: int) -> Box:
        """Return the cells of the chunk at a position in C order; UCP-E-SHAPE where there is no such chunk."""
        if position == 0 and self.count == 1:
            return self.whole
        return self._box(self.index_of(position))

    def chunk_start(self, index: tuple[int, ...]) -> int:
        """Return the row-major element offset of the first cell of a chunk.

        In a grid of `chunk_grid` the chunk is the run of ``chunk_box(index).size`` elements from there.
        Raises UCP-E-SHAPE where there is no such chunk.
        """
        self._check(index)
        strides = row_major_strides(self.shape)
        return sum(
            at * chunk * stride for at, chunk, stride in zip(index, self.chunk_shape, strides, strict=True)
        )

    def key(self, index: tuple[int, ...]) -> str:
        """Return the key, ``c/0/1`` or ``c`` for a 0-d array; UCP-E-SHAPE where there is no such chunk."""
        self._check(index)
        return "/".join(("c", *map(str, index)))

    def position_of(self, index: tuple[int, ...]) -> int:
        """Return the position of a chunk in C order; UCP-E-SHAPE where there is no such chunk."""
        self._check(index)
        return sum(map(int.__mul__, index, row_major_strides(self.counts)))

    def index_of(self, position: int) -> tuple[int, ...]:
        """Return the index of the chunk at a position in C order; UCP-E-SHAPE where there is no such chunk."""
        counts = self.counts
        if not 0 <= position < self.count:
            raise error("UCP-E-SHAPE", f"there is no chunk {position} in a grid of {counts}")
        return tuple(
            position // stride % count
            for stride, count in zip(row_major_strides(counts), counts, strict=True)
        )

    def chunks_for(self, box: Box) -> Iterator[int]:
        """Return the positions, ascending, of the chunks that share a cell with ``box``.

        Raises UCP-E-SHAPE where the box leaves the array.
        """
        if self.count == 1 and box == self.whole:
            return iter((0,))
        if not self.whole.contains(box):
            raise error(
                "UCP-E-SHAPE", f"the box at {box.offset} of {box.shape} leaves the shape {self.shape}"
            )
        if box.is_empty:
            return iter(())
        spans = [
            range(first // chunk, (last - 1) // chunk + 1)
            for first, last, chunk in zip(box.offset, box.stop, self.chunk_shape, strict=True)
        ]
        strides = row_major_strides(self.counts)
        return (sum(map(int.__mul__, index, strides)) for index in itertools.product(*spans))

    def _check(self, index: tuple[int, ...]) -> None:
        counts = self.counts
        if not is_extents(index) or len(index) != len(counts) or not all(map(int.__lt__, index, counts)):
            raise error("UCP-E-SHAPE", f"there is no chunk {index!r} in a grid of {counts}")


def chunk_grid(shape: tuple[int, ...], item_size: int, chunk_bytes: int) -> ChunkGrid:
    """Return the grid of an array of ``shape`` with elements of ``item_size`` bytes.

    With ``inner(k) = item_size * prod(shape[k + 1:])``, zero extents counted as 1 here and below, let ``k``
    be the smallest axis with ``inner(k) <= chunk_bytes``, or the last axis where there is none. Chunk extents
    are 1 before ``k`` and whole after it. At ``k`` a chunk has room for
    ``rows = max(1, chunk_bytes // inner(k))``, so that the extent ``d`` takes ``parts = ceil(d / rows)``, and
    the chunk extent is ``ceil(d / parts)``, which evens them out. Every chunk, clipped to the array, is one
    contiguous run of the row-major array.

    Raises UCP-E-SHAPE for a shape that is none, or sizes below 1.
    """
    if not is_extents(shape) or item_size < 1 or chunk_bytes < 1:
        raise error(
            "UCP-E-SHAPE",
            f"no grid for shape {shape!r}, items of {item_size} and chunks of {chunk_bytes} bytes",
        )
    if not shape:
        return ChunkGrid((), ())
    axis = len(shape) - 1
    inner = item_size
    while axis > 0 and inner * max(shape[axis], 1) <= chunk_bytes:
        inner *= max(shape[axis], 1)
        axis -= 1
    extent = max(shape[axis], 1)
    parts = -(-extent // max(1, chunk_bytes // inner))
    whole = tuple(max(extent, 1) for extent in shape[axis + 1 :])
    return ChunkGrid(shape, (1,) * axis + (-(-extent // parts),) + whole)
