"""Parts of slots as one rank writes them: boxes, and their elements in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ucpformat.errors import error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.distributed.local_state import SlotName
    from ucpformat.geometry import Piece

__all__ = ["Part", "flat_memory", "seen_part"]


class Part(NamedTuple):
    """A box of a slot that this rank writes: where it lies, and its elements."""

    name: SlotName
    offset: tuple[int, ...]
    data: NDArray[np.generic]


def flat_memory(local: NDArray[np.generic]) -> NDArray[np.generic]:
    """The elements of a local tensor in C order; a copy only where they are not in that order."""
    return np.ascontiguousarray(local).reshape(-1)


def seen_part(memory: NDArray[np.generic], piece: Piece, *, at: str) -> NDArray[np.generic]:
    """What a dense local tensor, flat, has of a box of the slot."""
    local, shape = piece.local, piece.box.shape
    last = local.offset + sum((extent - 1) * step for extent, step in zip(shape, local.strides, strict=True))
    if last >= memory.size:
        message = f"the local tensor has {memory.size} elements, its layout says that it has more"
        raise error("UCP-E-MISMATCH", message, at=at)
    item = memory.itemsize
    steps = tuple(step * item for step in local.strides)
    return np.ndarray(shape, memory.dtype, memory.view(np.uint8).data, local.offset * item, steps)
