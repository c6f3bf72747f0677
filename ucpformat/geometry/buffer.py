"""Flat buffers: where each tensor of an ordered group lies in it (SPEC section 12).

A layout only says that its tensor goes into a buffer, so that all tensors of a model that are spread alike
share one layout. Where each lies follows from the order of the group, and is kept beside the layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ucpformat.errors import error
from ucpformat.geometry.box import is_extents, row_major_strides
from ucpformat.geometry.mesh import Mesh
from ucpformat.geometry.program import Place, axis_of

__all__ = ["BufferPlace", "compiled_place"]


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """First element of a tensor in its buffer, and the length of the buffer, both before the buffer is split.

    One entry per position over ``axes``, in row-major order: most buffers are alike everywhere, and have no
    axes and one entry.
    """

    offsets: tuple[int, ...]
    totals: tuple[int, ...]
    axes: tuple[str, ...] = ()


def compiled_place(place: BufferPlace | None, mesh: Mesh, alike: frozenset[str], at: str) -> Place:
    """Compile a Concat; UCP-E-LAYOUT where the place is missing or does not fit the mesh.

    ``alike`` are the axes along which it is one buffer (see `Layout.axes_of_buffer`).
    """
    if place is None:
        raise error("UCP-E-LAYOUT", "the tensor lies in a buffer: say where", at=at)
    if any(mesh.axis_index(name) is None for name in place.axes) or len(set(place.axes)) < len(place.axes):
        raise error("UCP-E-LAYOUT", f"{place.axes!r} are not distinct axes of the mesh", at=f"{at}/axes")
    if not alike.isdisjoint(place.axes):
        message = f"it is one buffer along {sorted(alike.intersection(place.axes))}: one place for all of it"
        raise error("UCP-E-LAYOUT", message, at=f"{at}/axes")
    axes = tuple(axis_of(mesh, name) for name in place.axes)
    if any(mesh.governing_axis(axis) not in axes for axis in axes):
        raise error("UCP-E-LAYOUT", "a ragged axis goes with the axis that decides its size", at=f"{at}/axes")
    sizes = tuple(mesh.shape[axis] for axis in axes)
    for entries in (place.offsets, place.totals):
        if not is_extents(entries) or len(entries) != math.prod(sizes):
            raise error(
                "UCP-E-LAYOUT",
                f"a place has {math.prod(sizes)} offsets and totals >= 0, not {entries!r}",
                at=at,
            )
    return Place(axes, row_major_strides(sizes), place.offsets, place.totals, at)
