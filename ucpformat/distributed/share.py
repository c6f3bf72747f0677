"""Who writes what: each part of a tensor once, replicas in turn (SPEC section 16.4).

Every rank finds its own share from the description of the whole, without a word to the others, and all shares agree.
What a rank alone holds, it writes. What several hold is cut at chunk boundaries and dealt out among them, largest
first, each part to the one that has been given the fewest bytes of what just these ranks hold. So no rank writes
more than its own bytes and, for every set of ranks that hold the same, their bytes over their number plus one chunk.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ucpformat.distributed.holdings import plain_holdings
from ucpformat.geometry import (
    Box,
    ChunkGrid,
    HeldBox,
    Holdings,
    Piece,
    held_boxes,
    seen_in,
)

if TYPE_CHECKING:
    from ucpformat.distributed.description import Source
    from ucpformat.distributed.local_state import SlotName

__all__ = ["Portion", "SlotToShare", "portions"]


@dataclass(frozen=True, slots=True)
class SlotToShare:
    """A slot, the ways in which ranks hold it, and how it is cut into chunks; ``item_bytes`` of an element."""

    name: SlotName
    sources: tuple[Source, ...]
    grid: ChunkGrid
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Portion:
    """A part of a slot that this rank writes: a box of it, and where that lies in the rank's local tensor."""

    name: SlotName
    piece: Piece


@dataclass(slots=True)
class _Unit:
    nbytes: int
    order: int
    name: SlotName
    box: Box


def portions(slots: Iterable[SlotToShare], rank: int) -> list[Portion]:
    """What ``rank`` writes, slot by slot in the order given.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for a layout with a factor or a pending reduction, and as `lower`.
    """
    held: dict[tuple[object, ...], tuple[tuple[HeldBox, ...], tuple[Piece, ...]]] = {}
    mine: list[tuple[int, SlotName, Box]] = []
    shared: dict[tuple[int, ...], list[_Unit]] = {}
    pieces: dict[SlotName, tuple[Piece, ...]] = {}
    order = 0
    for slot in slots:
        shape = slot.grid.shape
        key = (slot.sources, shape)
        if key not in held:
            held[key] = _held(slot, rank)
        boxes, pieces[slot.name] = held[key]
        for one in boxes:
            order += 1
            if len(one.holders) == 1:
                mine.append((order, slot.name, one.box))
                continue
            units = shared.setdefault(one.holders, [])
            for chunk in slot.grid.chunks_for(one.box):
                part = slot.grid.chunk_box(slot.grid.index_of(chunk)).intersect(one.box)
                if part is not None:
                    units.append(_Unit(part.size * slot.item_bytes, order, slot.name, part))
    for holders, units in shared.items():
        mine.extend((unit.order, unit.name, unit.box) for unit in _dealt(units, holders, rank))
    mine.sort(key=lambda entry: entry[0])
    return [
        Portion(name, clipped)
        for _, name, box in mine
        for piece in pieces[name]
        if (clipped := piece.clip(box)) is not None
    ]


def _dealt(units: list[_Unit], holders: Sequence[int], rank: int) -> Iterable[_Unit]:
    # Sorting is stable: what is equally large keeps the order of slots, on every rank.
    loads = [(0, place, holder) for place, holder in enumerate(holders)]
    for unit in sorted(units, key=lambda unit: -unit.nbytes):
        load, place, holder = loads[0]
        heapq.heapreplace(loads, (load + unit.nbytes, place, holder))
        if holder == rank:
            yield unit


def _held(slot: SlotToShare, rank: int) -> tuple[tuple[HeldBox, ...], tuple[Piece, ...]]:
    """The boxes that ``rank`` holds some of, with all who hold them, and its pieces, disjoint; none are empty."""
    shape = slot.grid.shape
    sources: list[tuple[Holdings, frozenset[int]]] = []
    pieces: tuple[Piece, ...] = ()
    for source in slot.sources:
        holdings = plain_holdings(source, shape, at="/".join(slot.name))
        sources.append((holdings, source.ranks))
        if rank in source.ranks:
            own = next((region for region in holdings.regions() if rank in region.holders), None)
            if own is not None:
                pieces = seen_in(own.local_map.pieces, holdings.view, shape)
    boxes = held_boxes(sources)
    return tuple(one for one in boxes if rank in one.holders and not one.box.is_empty), pieces
