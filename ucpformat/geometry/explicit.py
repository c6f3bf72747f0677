"""Holdings without a layout: boxes as each rank lists them (SPEC appendix A).

Torch's CheckpointableTensor, Megatron-core's ShardedTensor and DCP's chunks say this much and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ucpformat.errors import error
from ucpformat.geometry.box import Box, is_extents, row_major_strides
from ucpformat.geometry.canonical import canonical
from ucpformat.geometry.mesh import Axis
from ucpformat.geometry.piece import LocalMap, Piece, Region, Strided
from ucpformat.geometry.steps import Reduce

__all__ = ["ExplicitHoldings", "LocalBox", "local_map_of"]


@dataclass(frozen=True, slots=True)
class LocalBox:
    """A box of the global tensor and where it begins in the local one; both have as many dims."""

    global_offset: tuple[int, ...]
    local_offset: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExplicitHoldings:
    """What ranks hold of a tensor of ``shape``, listed rank by rank; see `piece.Holdings`."""

    shape: tuple[int, ...]
    maps: tuple[tuple[int, LocalMap], ...]
    scale: Fraction = Fraction(1)

    @property
    def view(self) -> tuple[int, ...]:
        """The shape itself."""
        return self.shape

    @property
    def reduce(self) -> Reduce | None:
        """None: nothing is pending."""
        return None

    @property
    def own_axes(self) -> tuple[Axis, ...] | None:
        """None: entries are parts of one tensor."""
        return None

    @property
    def keeps_entries(self) -> bool:
        """False: there are none."""
        return False

    def regions(self) -> tuple[Region, ...]:
        """Return the distinct local maps with their holders, by the first rank listed that holds each."""
        holders: dict[LocalMap, list[int]] = {}
        for rank, local_map in self.maps:
            holders.setdefault(local_map, []).append(rank)
        return tuple(Region(local_map, tuple(sorted(ranks))) for local_map, ranks in holders.items())

    def filled(self) -> tuple[Region, ...]:
        """Return the regions whose maps have pieces."""
        return tuple(region for region in self.regions() if region.local_map.pieces)


def local_map_of(shape: tuple[int, ...], local_shape: tuple[int, ...], boxes: Iterable[LocalBox]) -> LocalMap:
    """Return what a dense row-major local tensor holds of a tensor of ``shape``.

    Raises UCP-E-SHAPE, at the index of a box, where it leaves either tensor; UCP-E-COVER where two boxes
    hold one cell. Whether boxes overlap in the local tensor is not looked at.
    """
    strides = row_major_strides(local_shape)
    pieces: list[Piece] = []
    for number, box in enumerate(boxes):
        if not (
            _lies_in(box.global_offset, box.shape, shape)
            and _lies_in(box.local_offset, box.shape, local_shape)
        ):
            raise error(
                "UCP-E-SHAPE",
                f"{box} leaves the tensor of shape {shape} or the local one of shape {local_shape}",
                at=f"/{number}",
            )
        pieces.append(
            Piece(
                Box(box.global_offset, box.shape),
                Strided(sum(map(int.__mul__, box.local_offset, strides)), strides),
            )
        )
    return LocalMap(local_shape, canonical(pieces, shape))


def _lies_in(offset: tuple[int, ...], extents: tuple[int, ...], shape: Sequence[int]) -> bool:
    return (
        is_extents(offset)
        and is_extents(extents)
        and len(offset) == len(extents) == len(shape)
        and all(first + extent <= whole for first, extent, whole in zip(offset, extents, shape, strict=True))
    )
