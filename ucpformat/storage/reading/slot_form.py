"""How a slot is cut into chunks, by its data type and shape (SPEC sections 11.2 and 16.1)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ucpformat.geometry import chunk_grid, element_count
from ucpformat.model.dtype import dtype
from ucpformat.model.table import OBJECT_TRAILER

if TYPE_CHECKING:
    from ucpformat.geometry import ChunkGrid
    from ucpformat.model.dtype import DType

__all__ = ["slot_form", "stored_bytes"]


# The slots of a model repeat few types and shapes.
@lru_cache(maxsize=4096)
def slot_form(dtype_name: str, shape: tuple[int, ...], chunk_bytes: int) -> tuple[DType, ChunkGrid]:
    """The data type and the chunk grid of a slot whose extents are known to be integers.

    Raises:
        UcpError: ``UCP-E-DTYPE`` or ``UCP-E-SHAPE``, with no place.
    """
    kind = dtype(dtype_name, at="")
    return kind, chunk_grid(shape, kind.item_bytes, chunk_bytes)


def stored_bytes(kind: DType, grid: ChunkGrid, shape: tuple[int, ...], *, packed: bool) -> int:
    """Bytes of an uncompressed chunk, of ``shape`` when clipped, in one segment; its own object has it unclipped."""
    if packed:
        return element_count(shape) * kind.item_bytes
    return element_count(grid.chunk_shape) * kind.item_bytes + OBJECT_TRAILER
