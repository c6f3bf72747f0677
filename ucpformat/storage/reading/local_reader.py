"""From storage to the local tensor of one coordinate (SPEC sections 13, 17.2 and 17.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ucpformat.errors import error
from ucpformat.geometry import Box, Concat, Partial, Scale, decompose_flat_range
from ucpformat.model.spread import check_scale_dtype
from ucpformat.storage.arithmetic import scaled
from ucpformat.storage.host_memory import selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ucpformat.geometry import Layout, LocalMap, Lowering
    from ucpformat.model.dtype import DType
    from ucpformat.storage.reading.box_reader import BoxReader
    from ucpformat.storage.reading.stored_slot import StoredSlot

__all__ = ["read_local", "require_readable"]


def require_readable(layout: Layout, source: Layout | None, kind: DType, *, at: str) -> int:
    """Check a target layout against the layout that a slot was saved under; return the exponent of its factor.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for pending reductions (UCP-R-018), and factors that are no power of two or
            that the data type has none of.
        MismatchError: ``UCP-E-MISMATCH`` where entries of each coordinate's own would change hands (UCP-R-020).
    """
    exponent: int | None = 0
    for step in layout.steps:
        if isinstance(step, Partial):
            message = "nothing is pending in a checkpoint: leave partial out of the layout to read under"
            raise error("UCP-E-LAYOUT", message, at=at)
        if isinstance(step, Scale):
            check_scale_dtype(kind.name, at=at)
            exponent = step.exponent
    if exponent is None:
        raise error("UCP-E-LAYOUT", "a factor that is no power of two is not exact", at=at)
    entries = None if source is None else source.entries
    if source is not None and entries is not None:
        if layout.entries is None:
            message = "every coordinate has an entry of its own: read the whole slot, or under a local step"
            raise error("UCP-E-MISMATCH", message, at=at)
        same = layout.mesh.axes == source.mesh.axes
        if not same and (entries.resize == "refuse" or layout.mesh.size != source.mesh.size):
            message = "the entries belong to another mesh: read the whole slot, and choose"
            raise error("UCP-E-MISMATCH", message, at=at)
    return exponent


def read_local(
    reader: BoxReader,
    stored: StoredSlot,
    lowering: Lowering,
    local: LocalMap,
    target: NDArray[np.generic],
    exponent: int = 0,
) -> None:
    """Fill ``target``, dense, of the local shape, with the elements times ``2**exponent``.

    What no piece maps to is padding, and becomes zero; but in a buffer it may be another tensor, and stays.

    Raises:
        UcpError: as procedure 17.3 says; ``UCP-E-INEXACT`` where a product would be rounded (UCP-R-019).
    """
    memory, item = target.reshape(-1).view(np.uint8), stored.dtype.item_bytes
    in_buffer = any(isinstance(step, Concat) for step in lowering.layout.steps)
    if local.mapped != local.size and not in_buffer:
        memory[...] = 0
    parts: list[tuple[Box, NDArray[np.generic]]] = []
    for piece in local.pieces:
        strides = tuple(stride * item for stride in piece.local.strides)
        part: NDArray[np.generic] = np.ndarray(
            piece.box.shape, stored.dtype.numpy, memory.data, piece.local.offset * item, strides
        )
        parts.append((piece.box, part))
    if lowering.view == stored.grid.shape:
        reader.read((stored, box, part) for box, part in parts)
    else:
        _read_viewed(reader, stored, lowering.view, parts)
    if exponent:
        for _, part in parts:
            part[...] = scaled(part, stored.dtype, exponent, at=stored.label)


def _read_viewed(
    reader: BoxReader,
    stored: StoredSlot,
    view: tuple[int, ...],
    parts: Sequence[tuple[Box, NDArray[np.generic]]],
) -> None:
    """Read boxes of a view of the slot: a chunk is one run of elements in any view.

    Whole chunks are read, one at a time, once each.
    """
    grid = stored.grid
    for chunk in range(grid.count):
        index = grid.index_of(chunk)
        held = grid.chunk_box(index)
        first = grid.chunk_start(index)
        runs = decompose_flat_range(view, first, first + held.size)
        if not any(run.intersect(box) for run in runs for box, _ in parts):
            continue
        data = np.empty(held.size, stored.dtype.numpy)
        reader.read([(stored, held, data.reshape(held.shape))])
        position = 0
        for run in runs:
            elements = data[position : position + run.size].reshape(run.shape)
            for box, out in parts:
                part = run.intersect(box)
                if part is not None:
                    out[selection(part, box)] = elements[selection(part, run)]
            position += run.size
