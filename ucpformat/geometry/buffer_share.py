"""What one rank keeps of a flat buffer, so that tensors elsewhere in it cost nothing (SPEC section 12)."""

from __future__ import annotations

from ucpformat.geometry.buffer import BufferPlace
from ucpformat.geometry.layout import Layout
from ucpformat.geometry.lower import lower
from ucpformat.geometry.steps import Concat, Flatten

__all__ = ["BufferShare"]


class BufferShare:
    """The part of a buffer that ``rank``, which is in the mesh, keeps, for all tensors of one layout."""

    def __init__(self, layout: Layout, rank: int) -> None:
        number = next(number for number, step in enumerate(layout.steps) if isinstance(step, Concat))
        self._head = Layout(layout.mesh, layout.steps[:number])
        self._tail = Layout(layout.mesh, (Flatten(), *layout.steps[number + 1 :]))
        self._coordinate = layout.mesh.coordinate_of(rank)
        self._lengths: dict[tuple[int, ...], int] = {}
        self._kept: dict[int, list[tuple[int, int]]] = {}

    def may_hold(self, place: BufferPlace, shape: tuple[int, ...]) -> bool:
        """Return whether the rank's part meets the room of a tensor of ``shape``; raises as `lower`."""
        mesh = self._head.mesh
        entry = 0
        for name in place.axes:
            axis = [axis.name for axis in mesh.axes].index(name)
            entry = entry * mesh.shape[axis] + self._coordinate[axis]
        offset, total = place.offsets[entry], place.totals[entry]
        length = self._lengths.get(shape)
        if length is None:
            held = lower(self._head, shape).at(self._coordinate)
            length = self._lengths[shape] = 0 if held is None else held.size
        kept = self._kept.get(total)
        if kept is None:
            held = lower(self._tail, (total,)).at(self._coordinate)
            pieces = () if held is None else held.pieces
            kept = self._kept[total] = [(piece.box.offset[0], piece.box.stop[0]) for piece in pieces]
        return any(start < offset + length and offset < stop for start, stop in kept)
