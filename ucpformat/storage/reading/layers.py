"""Layers of a box: rows that later segments have written over (SPEC section 16.4)."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.errors import error
from ucpformat.geometry import Box, row_major_strides
from ucpformat.model.table import Segment, rows_of
from ucpformat.storage.checksum import BLOCK_BYTES
from ucpformat.storage.host_memory import selection
from ucpformat.storage.reading.byte_runs import ByteRun
from ucpformat.storage.reading.destinations import RowDestination

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.storage.reading.stored_slot import StoredSlot

__all__ = [
    "MOST_LAYERS",
    "ChunkWanted",
    "LayerRows",
    "are_layered",
    "check_layers",
    "fill_of_rows",
    "in_groups",
    "row_dim",
    "rows_within",
]

MOST_LAYERS: Final = 32
_ROWS_AT_ONCE: Final = 1 << 24
"""Rows told apart at a time, of all layers together: nine bytes for each."""
_BOX: Final = attrgetter("box")


def are_layered(segments: Sequence[Segment]) -> bool:
    """Say whether any segment of a chunk has some rows of its box alone."""
    return any(segment.row_set is not None for segment in segments)


def row_dim(shape: tuple[int, ...]) -> int:
    """Return the dimension along which rows of a box of this shape are counted."""
    return next(dim for dim, extent in enumerate(shape) if extent != 1)


class LayerRows(NamedTuple):
    """What a layer has of a box: which of its rows, in order, in bytes ``[first, stop)`` of the segment."""

    rows: NDArray[np.int64]
    first: int
    stop: int


def rows_within(segment: Segment, wanted: Box, item_bytes: int) -> LayerRows:
    """Return what a segment has of the rows of ``wanted``, a box within its own, in coordinates of the chunk.

    Raises:
        ValueError: the segment has no box.
    """
    box = segment.box
    if box is None:
        raise ValueError("a layer has a box")
    dim = row_dim(box.shape)
    row_bytes = box.size // box.shape[dim] * item_bytes
    rows = segment.row_numbers()
    low, extent = wanted.offset[dim] - box.offset[dim], wanted.shape[dim]
    if extent == box.shape[dim]:
        return LayerRows(rows, 0, rows.size * row_bytes)
    first, stop = np.searchsorted(rows, [low, low + extent]).tolist()
    return LayerRows(rows[first:stop] - low, first * row_bytes, stop * row_bytes)


def fill_of_rows(
    found: LayerRows,
    segment: Segment,
    wanted: Box,
    target: NDArray[np.generic],
    origin: int,
    is_wanted: NDArray[np.bool_] | None = None,
) -> RowDestination:
    """Return what fills an array of the shape of ``wanted`` with rows of a layer, whose bytes begin at ``origin``.

    Those that are not wanted are left as they are.

    Raises:
        ValueError: the segment has no box.
    """
    box = segment.box
    if box is None:
        raise ValueError("a layer has a box")
    dim = row_dim(box.shape)
    strides = tuple(stride * target.itemsize for stride in row_major_strides(box.shape))[dim:]
    inner = zip(wanted.offset[dim + 1 :], box.offset[dim + 1 :], strides[1:], strict=True)
    start = origin + found.first + sum((offset - first) * stride for offset, first, stride in inner)
    return RowDestination(target[(0,) * dim], start, origin + found.stop, strides, found.rows, is_wanted)


class ChunkWanted(NamedTuple):
    """A box of a slot, as far as a chunk has it, and ``out``, of the shape of the whole box, to fill with it."""

    stored: StoredSlot
    chunk: int
    segments: tuple[Segment, ...]
    box: Box
    out: NDArray[np.generic]


def in_groups(chunks: Iterable[ChunkWanted], *, verify: bool) -> Iterator[list[ByteRun]]:
    """Yield runs, some at a time, that fill what is wanted of chunks with those rows that were written over.

    No row is filled twice, so that runs may be read in any order; but what the first layer of a box has without a row
    set is to be there before. With ``verify`` they are whole checksum blocks.
    """
    group: list[ByteRun] = []
    rows = 0
    for chunk in chunks:
        for run, count in _runs(chunk, verify=verify):
            group.append(run)
            rows += count
            if rows > _ROWS_AT_ONCE:
                yield group
                group, rows = [], 0
    if group:
        yield group


def _runs(chunk: ChunkWanted, *, verify: bool) -> Iterator[tuple[ByteRun, int]]:
    """Yield the runs of a chunk, and how many rows each has."""
    stored, number, segments, box, out = chunk
    origin = stored.grid.box_at(number)
    for _, of_box in groupby(segments, key=_BOX):
        layers = [*of_box]
        for _, _, part in stored.meeting(number, layers[:1], box):
            target = out if part == box else out[selection(part, box)]
            yield from _of_layers(chunk, layers, part.relative_to(origin), target, verify=verify)


def _of_layers(
    chunk: ChunkWanted, layers: Sequence[Segment], wanted: Box, target: NDArray[np.generic], *, verify: bool
) -> Iterator[tuple[ByteRun, int]]:
    """Do as `_runs` for the layers of one box, which fill an array of the shape of ``wanted``."""
    stored, number = chunk.stored, chunk.chunk
    box = layers[0].box
    if box is None:
        raise ValueError("a layer has a box")
    is_left: NDArray[np.bool_] | None = None
    for segment in reversed(layers):
        if segment.row_set is None:
            continue
        found = rows_within(segment, wanted, stored.dtype.item_bytes)
        is_wanted = None
        if is_left is None:
            is_left = np.ones(wanted.shape[row_dim(box.shape)], np.bool_)
        else:
            is_wanted = is_left[found.rows]
            if not is_wanted.any():
                continue
        is_left[found.rows] = False
        begin, start, stop = segment.offset, found.first, found.stop
        if start == stop:
            continue
        if verify:
            start = start // BLOCK_BYTES * BLOCK_BYTES
            stop = min(-(-stop // BLOCK_BYTES) * BLOCK_BYTES, segment.length)
        destination = fill_of_rows(found, segment, wanted, target, begin, is_wanted)
        key = stored.object_key(number, segment)
        run = ByteRun(key, begin + start, begin + stop, begin, segment.checksums, (), (destination,))
        yield run, found.rows.size


def check_layers(segments: Sequence[Segment], item_bytes: int, at: str) -> Iterator[Box]:
    """Yield each box once of a chunk's segments, which all have boxes in order that are not empty.

    Raises:
        InvalidCheckpointError: ``UCP-E-SEGMENT`` (SPEC UCP-D-104, UCP-D-137 to UCP-D-140).
    """
    number = 0
    while number < len(segments):
        box = segments[number].box
        if box is None:
            raise ValueError("a layer has a box")
        layers = [segments[number]]
        while number + len(layers) < len(segments) and segments[number + len(layers)].box == box:
            layers.append(segments[number + len(layers)])
        number += len(layers)
        if len(layers) > MOST_LAYERS:
            raise error("UCP-E-SEGMENT", f"{box} has {len(layers)} layers, more than {MOST_LAYERS}", at=at)
        if any(layer.row_set is None for layer in layers[1:]):
            raise error("UCP-E-SEGMENT", f"a layer of {box} that is not the first has no row set", at=at)
        if are_layered(layers) and box.size < 2:
            raise error("UCP-E-SEGMENT", f"a segment of one element, {box}, has a row set", at=at)
        count = rows_of(box)
        every = has = (1 << count) - 1
        if layers[0].row_set is not None:
            has = 0
        for layer in layers:
            has |= int.from_bytes(layer.row_set or b"", "little")
            if layer.length != layer.row_count() * (box.size // count) * item_bytes:
                raise error("UCP-E-SEGMENT", f"the length of the segment is not that of {box}", at=at)
        if has != every:
            row = (~has & (has + 1)).bit_length() - 1
            raise error("UCP-E-SEGMENT", f"no layer has row {row} of {box}", at=at)
        yield box
