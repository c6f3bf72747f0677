"""Layers of a box: rows that later segments have written over (SPEC section 16.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.errors import error
from ucpformat.geometry import Box
from ucpformat.model.table import Segment, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["MOST_LAYERS", "LayerRows", "are_layered", "check_layers", "row_dim", "rows_within", "write_rows"]

MOST_LAYERS: Final = 32


def are_layered(segments: Sequence[Segment]) -> bool:
    """Say whether any segment of a chunk has some rows of its box alone."""
    return any(segment.row_set is not None for segment in segments)


def row_dim(shape: tuple[int, ...]) -> int:
    """Return the dimension along which rows of a box of this shape are counted."""
    return next(dim for dim, extent in enumerate(shape) if extent != 1)


class LayerRows(NamedTuple):
    """What a layer has of a box: ``rows``, from the wanted box's first one on, lie in it from ``first`` to ``stop``.

    ``first`` and ``stop`` are bytes of the segment.
    """

    rows: NDArray[np.int64]
    first: int
    stop: int


def rows_within(segment: Segment, wanted: Box, item_bytes: int) -> LayerRows:
    """Return what a segment has of the rows of ``wanted``, a box within its own, in coordinates of the chunk."""
    box = segment.box
    if box is None:
        raise ValueError("a layer has a box")
    dim = row_dim(box.shape)
    row_bytes = box.size // box.shape[dim] * item_bytes
    rows = segment.rows()
    low = wanted.offset[dim] - box.offset[dim]
    first, stop = np.searchsorted(rows, [low, low + wanted.shape[dim]]).tolist()
    return LayerRows(rows[first:stop] - low, first * row_bytes, stop * row_bytes)


def write_rows(
    target: NDArray[np.generic], found: LayerRows, data: memoryview, segment: Segment, wanted: Box
) -> None:
    """Write rows of a layer, whose bytes ``[first, stop)`` are ``data``, into an array of the shape of ``wanted``."""
    box = segment.box
    if box is None or not found.rows.size:
        return
    dim = row_dim(box.shape)
    rows = np.frombuffer(data, target.dtype).reshape(found.rows.size, *box.shape[dim + 1 :])
    inner = tuple(
        slice(offset - origin, offset - origin + extent)
        for offset, origin, extent in zip(wanted.offset, box.offset, wanted.shape, strict=True)
    )[dim + 1 :]
    target[(0,) * dim][found.rows] = rows[(slice(None), *inner)]


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
