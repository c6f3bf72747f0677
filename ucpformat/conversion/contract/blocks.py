"""The elements of a slot in row-major order, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.geometry import Box
from ucpformat.storage.reading.slot_form import slot_form
from ucpformat.writer import DEFAULT_CHUNK_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BLOCK_BYTES", "slot_blocks"]

BLOCK_BYTES: Final = DEFAULT_CHUNK_BYTES
"""What an exporter holds of a tensor at a time: most often a chunk of a universal checkpoint, which is read once."""


def slot_blocks(
    dtype_name: str,
    shape: tuple[int, ...],
    read: Callable[[Box, NDArray[np.generic]], None],
    nbytes: int = BLOCK_BYTES,
) -> Iterator[tuple[Box, NDArray[Any]]]:
    """Boxes that tile a slot, each of at most ``nbytes`` or one element, with their elements; none of an empty one.

    Each block is one run of the row-major tensor, in an array of its own of the slot's numpy type. Raises what
    ``read`` raises.
    """
    kind, grid = slot_form(dtype_name, shape, nbytes)
    for chunk in range(grid.count):
        box = grid.box_at(chunk)
        data = np.empty(box.shape, kind.numpy)
        read(box, data)
        yield box, data
