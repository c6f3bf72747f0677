"""Tensors of a DCP directory as sources of slots, slots as its tensors, and its grids of boxes as layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ucpformat.conversion.dcp_files.directory import DcpDirectory
from ucpformat.geometry import Box, Layout, Mesh, MeshAxis, Shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.conversion.contract.content import SlotContent
    from ucpformat.conversion.dcp_files.items import DcpTensor

__all__ = ["SlotReader", "TensorSource", "grid_layout"]


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A DCP tensor as a source of boxes."""

    directory: DcpDirectory
    tensor: DcpTensor

    def __call__(self, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out``, contiguous, with a box; the first call checks what torch never does, its CRC-32."""
        self.directory.verify(self.tensor.key)
        self.directory.read_box(self.tensor.key, box.offset, box.shape, out.reshape(-1).view(np.uint8))


@dataclass(frozen=True, slots=True)
class SlotReader:
    """A slot as `ExportTensor` reads it."""

    slot: SlotContent

    def __call__(self, offset: tuple[int, ...], shape: tuple[int, ...], out: NDArray[np.uint8]) -> None:
        """Fill ``out`` with the bytes of a box."""
        target = out.view(self.slot.dtype.numpy).reshape(shape)
        self.slot.read_box(Box(offset, shape), target)


def grid_layout(
    boxes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], shape: tuple[int, ...]
) -> Layout | None:
    """Return the layout of fragments (offset, shape) that form a grid: one axis ``dim<d>`` for every split dimension.

    DCP records boxes and neither mesh nor ranks, so that this is all that is known. None for a single fragment,
    or where the fragments form no grid.
    """
    if len(boxes) < 2 or 0 in shape:
        return None
    edges = [
        sorted({offset[dim] for offset, extent in boxes if 0 not in extent}) for dim in range(len(shape))
    ]
    if math.prod(map(len, edges)) != sum(0 not in extent for _, extent in boxes):
        return None
    split = [dim for dim in range(len(shape)) if len(edges[dim]) > 1]
    if not split:
        return None
    # Boxes cover exactly, so that as many of them as the edges have cells must be the cells.
    sizes = {dim: tuple(stop - start for start, stop in pairwise((*edges[dim], shape[dim]))) for dim in split}
    mesh = Mesh(tuple(MeshAxis(f"dim{dim}", len(sizes[dim])) for dim in split))
    return Layout(mesh, tuple(Shard(f"dim{dim}", dim, sizes[dim]) for dim in split))
