"""Boxes of a slot that lie in one piece in storage: what can be looked at as one array (SPEC section 16.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ucpformat.errors import error
from ucpformat.geometry import Box
from ucpformat.storage.reading.layers import are_layered

if TYPE_CHECKING:
    from ucpformat.model.table import Segment
    from ucpformat.storage.reading.stored_slot import StoredSlot

__all__ = ["HeldBox", "held_together"]


class HeldBox(NamedTuple):
    """A box of a slot whose elements are bytes ``[start, stop)`` of the object at ``key``, in row-major order.

    ``segments`` are those that hold them, in order. Without a key they are zeros, which are not stored.
    """

    box: Box
    key: str | None
    start: int = 0
    stop: int = 0
    segments: tuple[Segment, ...] = ()


def held_together(stored: StoredSlot) -> list[HeldBox]:
    """Return the whole slot, which is not compressed, in as few boxes as can be looked at without a copy, in order.

    Raises:
        InvalidCheckpointError: as `StoredSlot.segments`.
        StoreError: ``UCP-E-STORE`` where rows were written over, which lie in several places.
    """
    found: list[HeldBox] = []
    for chunk in range(stored.grid.count):
        chunk_box = stored.grid.box_at(chunk)
        segments = stored.segments(chunk)
        if are_layered(segments):
            message = "rows of this slot were written over: it cannot be mapped; read it"
            raise error("UCP-E-STORE", message, at=stored.label)
        if not segments:
            _add(found, HeldBox(chunk_box, None))
        for segment, box, _ in stored.meeting(chunk, segments, chunk_box):
            stop = segment.offset + segment.covered
            _add(found, HeldBox(box, stored.object_key(chunk, segment), segment.offset, stop, (segment,)))
    return found


def _add(found: list[HeldBox], held: HeldBox) -> None:
    """Put a box behind the others, joined with those before it as far as they go together: parts make a row first."""
    while found:
        before = found[-1]
        box = _joined(before.box, held.box)
        if box is None or before.key != held.key or before.stop != held.start:
            break
        held = HeldBox(box, held.key, before.start, held.stop, before.segments + held.segments)
        found.pop()
    found.append(held)


def _joined(first: Box, second: Box) -> Box | None:
    """Return the box whose elements, row by row, are those of ``first`` and then of ``second``; None if none is."""
    for dim, extent in enumerate(first.shape):
        if first.offset[dim] != second.offset[dim]:
            behind = second.offset[dim] == first.offset[dim] + extent
            rest = slice(dim + 1, None)
            same = first.offset[rest] == second.offset[rest] and first.shape[rest] == second.shape[rest]
            if not (behind and same):
                return None
            return Box(first.offset, (*first.shape[:dim], extent + second.shape[dim], *first.shape[rest]))
        if (extent, second.shape[dim]) != (1, 1):
            return None
    return None
