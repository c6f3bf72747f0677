"""From storage to the local tensor of one coordinate (SPEC sections 13, 17.2 and 17.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ucpformat.errors import error
from ucpformat.geometry import Box, Concat, LocalOnly, Partial, Scale, decompose_flat_range
from ucpformat.storage.selection import selection

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.geometry import Layout, LocalMap, Lowering
    from ucpformat.storage.chunk_reader import ChunkReader
    from ucpformat.storage.part import StoredSlot

__all__ = ["read_local", "require_readable"]


def require_readable(layout: Layout, *, at: str) -> None:
    """Refuse layouts that say more than where elements go.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for pending reductions, factors, and entries that each rank has of its own.
    """
    if any(isinstance(step, Partial | Scale | LocalOnly) for step in layout.steps):
        message = "a target layout says where elements go; partial, scale and local steps are not for reading"
        raise error("UCP-E-LAYOUT", message, at=at)


def read_local(
    reader: ChunkReader,
    stored: StoredSlot,
    lowering: Lowering,
    local: LocalMap,
    target: NDArray[np.generic],
) -> None:
    """Fill ``target``, dense, of the local shape.

    What no piece maps to is padding, and becomes zero; but in a buffer it may be another tensor, and stays.

    Raises:
        UcpError: as procedure 17.3 says.
    """
    memory, item = target.reshape(-1).view(np.uint8), stored.dtype.item_bytes
    in_buffer = any(isinstance(step, Concat) for step in lowering.layout.steps)
    if local.mapped != local.size and not in_buffer:
        memory[...] = 0
    for piece in local.pieces:
        strides = tuple(stride * item for stride in piece.local.strides)
        place: NDArray[np.generic] = np.ndarray(
            piece.box.shape, stored.dtype.numpy, memory.data, piece.local.offset * item, strides
        )
        if lowering.view == stored.slot.shape:
            reader.read_box(stored, piece.box, place)
        else:
            _read_viewed(reader, stored, lowering.view, piece.box, place)


def _read_viewed(
    reader: ChunkReader, stored: StoredSlot, view: tuple[int, ...], box: Box, out: NDArray[np.generic]
) -> None:
    """Read a box of a view of the slot: a chunk is one run of elements in any view, so each is read once.

    Whole chunks are read, one at a time.
    """
    grid = stored.grid
    for chunk in range(grid.count):
        index = grid.index_of(chunk)
        held = grid.chunk_box(index)
        first = grid.chunk_start(index)
        runs = decompose_flat_range(view, first, first + held.size)
        if not any(run.intersect(box) for run in runs):
            continue
        data = np.empty(held.size, stored.dtype.numpy)
        reader.read_box(stored, held, data.reshape(held.shape))
        position = 0
        for run in runs:
            part = run.intersect(box)
            if part is not None:
                elements = data[position : position + run.size].reshape(run.shape)
                out[selection(part, box)] = elements[selection(part, run)]
            position += run.size
