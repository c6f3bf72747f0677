"""Who writes what: each part of a tensor once, replicas in turn (SPEC section 16.4).

Every rank finds its own share from the description of the whole, without a word to the others, and all shares agree.
What a rank alone holds, it writes. What several hold is cut at chunk boundaries and dealt out among them, largest
first, each part to the one that has been given the fewest bytes of what just these ranks hold. So no rank writes
more than its own bytes and, for every set of ranks that hold the same, their bytes over their number plus one chunk.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.errors import error
from ucpformat.gc_pause import paused
from ucpformat.geometry import (
    Box,
    ChunkGrid,
    ExplicitHoldings,
    HeldBox,
    Holdings,
    LocalMap,
    Lowering,
    Piece,
    Strided,
    held_boxes,
    lower,
    row_major_strides,
    seen_in,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.distributed.description import Source
    from ucpformat.distributed.local_state import SlotName
    from ucpformat.model.dtype import DType

__all__ = [
    "Assigned",
    "Part",
    "Portion",
    "SlotPiece",
    "SlotToShare",
    "assignments",
    "cut",
    "flat_memory",
    "held_by_all",
    "is_whole",
    "largest_part",
    "live_batches",
    "map_of",
    "pieces_of",
    "plain_holdings",
    "portions",
    "seen_part",
    "united",
]

_STAGED_BYTES: Final = 1 << 28


def plain_holdings(source: Source, shape: tuple[int, ...], *, at: str) -> Holdings:
    """Return what the ranks of a source hold as it is to be stored.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for a layout with a factor or a pending reduction, and as `lower`.
    """
    if source.layout is None:
        whole = LocalMap(shape, (_whole(shape),))
        return ExplicitHoldings(shape, tuple((rank, whole) for rank in sorted(source.ranks)))
    lowering = lower(source.layout, shape, place=source.place)
    if lowering.reduce is not None or lowering.scale != 1:
        message = (
            "a pending reduction or a factor is resolved before it is saved; redistribute the tensor first"
        )
        raise error("UCP-E-LAYOUT", message, at=at)
    return lowering


def _whole(shape: tuple[int, ...]) -> Piece:
    """Return a dense tensor of ``shape`` as one piece."""
    return Piece(Box.whole(shape), Strided(0, row_major_strides(shape)))


def map_of(holdings: Holdings, rank: int) -> LocalMap | None:
    """Return what one rank holds; of a layout, without a look at what others do."""
    if isinstance(holdings, Lowering):
        coordinate = holdings.layout.mesh.find(rank)
        return None if coordinate is None else holdings.at(coordinate)
    return next((region.local_map for region in holdings.regions() if rank in region.holders), None)


def is_whole(source: Source, lowering: Lowering) -> bool:
    """Return whether all ranks that hold something by the layout of a source are among its ranks."""
    mesh = lowering.layout.mesh
    if source.ranks.issuperset(mesh.rank_at(position) for position in range(mesh.size)):
        return True
    return all(source.ranks.issuperset(region.holders) for region in lowering.regions())


def united(sources: Sequence[Source], shape: tuple[int, ...], *, at: str) -> Holdings:
    """Return what ranks hold that say so in several ways; of a layout, only what is held by ranks that say it.

    Raises:
        LayoutError: as `plain_holdings`; ``UCP-E-LAYOUT`` for entries of each coordinate's own.
    """
    maps: dict[int, LocalMap] = {}
    for source in sources:
        holdings = plain_holdings(source, shape, at=at)
        if holdings.own_axes is not None:
            message = (
                "entries that belong to each rank go together: all ranks of their mesh have to list them"
            )
            raise error("UCP-E-LAYOUT", message, at=at)
        maps.update(_maps(holdings, source.ranks))
    return ExplicitHoldings(shape, tuple(sorted(maps.items())))


def _maps(holdings: Holdings, ranks: frozenset[int]) -> Iterable[tuple[int, LocalMap]]:
    for region in holdings.regions():
        local_map = region.local_map
        seen = LocalMap(local_map.shape, seen_in(local_map.pieces, holdings.view, holdings.shape))
        yield from ((rank, seen) for rank in region.holders if rank in ranks)


class Part(NamedTuple):
    """A box of a slot that this rank writes: where it lies, and its elements."""

    name: SlotName
    offset: tuple[int, ...]
    data: NDArray[np.generic]


def flat_memory(local: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return the elements of a local tensor in C order; a copy only where they are not in that order."""
    return np.ascontiguousarray(local).reshape(-1)


def seen_part(memory: NDArray[np.generic], piece: Piece, *, at: str) -> NDArray[np.generic]:
    """Return what a dense local tensor, flat, has of a box of the slot."""
    local, shape = piece.local, piece.box.shape
    last = local.offset + sum((extent - 1) * step for extent, step in zip(shape, local.strides, strict=True))
    if last >= memory.size:
        message = f"the local tensor has {memory.size} elements, its layout says that it has more"
        raise error("UCP-E-MISMATCH", message, at=at)
    item = memory.itemsize
    steps = tuple(step * item for step in local.strides)
    return np.ndarray(shape, memory.dtype, memory.view(np.uint8).data, local.offset * item, steps)


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


def live_batches(
    shares: Iterable[Portion], arrays: Mapping[SlotName, Callable[[], NDArray[np.generic]]]
) -> Iterator[list[Part]]:
    """Yield parts of live tensors, which ``arrays`` gives; so many at a time as may be copied from a device at once."""
    batch: list[Part] = []
    pending = 0
    for name, found in groupby(shares, key=attrgetter("name")):
        memory = flat_memory(arrays[name]())
        for portion in found:
            part = seen_part(memory, portion.piece, at="/".join(name))
            batch.append(Part(name, portion.piece.box.offset, part))
        pending += memory.nbytes
        if pending >= _STAGED_BYTES:
            yield batch
            batch, pending = [], 0
    yield batch


SlotPiece = tuple["SlotName", Piece, "DType"]
"""A part of a slot that is written, and the data type of the slot."""


def cut(share: Iterable[Portion], form: Callable[[SlotName], tuple[ChunkGrid, DType]]) -> Iterator[SlotPiece]:
    """Yield what is written, slot by slot, in parts that are not larger than a chunk; ``form`` is that of a slot."""
    by_slot: dict[SlotName, list[Piece]] = {}
    for portion in share:
        by_slot.setdefault(portion.name, []).append(portion.piece)
    for name, pieces in by_slot.items():
        grid, kind = form(name)
        for piece in pieces:
            chunks = list(grid.chunks_for(piece.box))
            if len(chunks) == 1:
                yield name, piece, kind
                continue
            for chunk in chunks:
                part = piece.clip(grid.box_at(chunk))
                if part is not None:
                    yield name, part, kind


@dataclass(frozen=True, slots=True)
class Assigned:
    """A box of a slot, all ranks that hold it, and the one of them that writes it, or reads it for all."""

    box: Box
    rank: int
    holders: tuple[int, ...]


@dataclass(slots=True)
class _Unit:
    nbytes: int
    order: int
    name: SlotName
    box: Box


def portions(slots: Iterable[SlotToShare], rank: int) -> list[Portion]:
    """Return what ``rank`` writes, slot by slot in the order given.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for a layout with a factor or a pending reduction, and as `lower`.
    """
    held: dict[tuple[object, ...], tuple[Piece, ...]] = {}
    pieces: dict[SlotName, tuple[Piece, ...]] = {}

    def noted() -> Iterator[SlotToShare]:
        for slot in slots:
            key = (slot.sources, slot.grid.shape)
            if key not in held:
                held[key] = pieces_of(slot, rank)
            pieces[slot.name] = held[key]
            yield slot

    with paused:
        return [
            Portion(name, clipped)
            for name, one in _assigned(noted(), rank)
            if one.rank == rank
            for piece in pieces[name]
            if (clipped := piece.clip(one.box)) is not None
        ]


def assignments(slots: Iterable[SlotToShare], *, only: int | None = None) -> dict[SlotName, list[Assigned]]:
    """Return who writes what of each slot: `portions` of all ranks, or of what ``only`` one rank holds some of.

    Raises as `portions`.
    """
    found: dict[SlotName, list[Assigned]] = {}
    with paused:
        for name, one in _assigned(slots, only):
            found.setdefault(name, []).append(one)
    return found


def _assigned(slots: Iterable[SlotToShare], only: int | None) -> list[tuple[SlotName, Assigned]]:
    """Return who writes which box, of all or of those that ``only`` one rank holds as well, in the order of slots."""
    held: dict[tuple[object, ...], tuple[HeldBox, ...]] = {}
    done: list[tuple[int, SlotName, Assigned]] = []
    shared: dict[tuple[int, ...], list[_Unit]] = {}
    order = 0
    for slot in slots:
        key = (slot.sources, slot.grid.shape)
        if key not in held:
            held[key] = tuple(held_by_all(slot, only))
        for one in held[key]:
            order += 1
            if len(one.holders) == 1:
                done.append((order, slot.name, Assigned(one.box, one.holders[0], one.holders)))
                continue
            units = shared.setdefault(one.holders, [])
            for chunk in slot.grid.chunks_for(one.box):
                part = slot.grid.box_at(chunk).intersect(one.box)
                if part is not None:
                    units.append(_Unit(part.size * slot.item_bytes, order, slot.name, part))
    for holders, units in shared.items():
        done.extend(
            (unit.order, unit.name, Assigned(unit.box, holder, holders))
            for holder, unit in _dealt(units, holders)
        )
    done.sort(key=itemgetter(0))
    return [(name, one) for _, name, one in done]


def _dealt(units: list[_Unit], holders: Sequence[int]) -> Iterator[tuple[int, _Unit]]:
    # Sorting is stable: what is equally large keeps the order of slots, on every rank.
    loads = [(0, place, holder) for place, holder in enumerate(holders)]
    for unit in sorted(units, key=lambda unit: -unit.nbytes):
        load, place, holder = loads[0]
        heapq.heapreplace(loads, (load + unit.nbytes, place, holder))
        yield holder, unit


def largest_part(slot: SlotToShare) -> int:
    """Return how many elements of a slot the rank holds that holds the most; raises as `portions`."""
    return _largest(slot.sources, slot.grid.shape)


@lru_cache(maxsize=256)
def _largest(sources: tuple[Source, ...], shape: tuple[int, ...]) -> int:
    return max(
        region.local_map.mapped
        for source in sources
        for region in plain_holdings(source, shape, at="").regions()
    )


def held_by_all(slot: SlotToShare, only: int | None = None) -> list[HeldBox]:
    """Return disjoint boxes, with all who hold each; those of which ``only`` one rank has some. None are empty.

    Raises as `portions`.
    """
    shape = slot.grid.shape
    held: Sequence[HeldBox]
    if all(source.layout is None for source in slot.sources):
        holders = frozenset[int]().union(*(source.ranks for source in slot.sources))
        held = (HeldBox(Box.whole(shape), tuple(sorted(holders))),)
    else:
        at = "/".join(slot.name)
        held = held_boxes((plain_holdings(source, shape, at=at), source.ranks) for source in slot.sources)
    return [one for one in held if not one.box.is_empty and (only is None or only in one.holders)]


def pieces_of(slot: SlotToShare, rank: int) -> tuple[Piece, ...]:
    """Return what ``rank`` holds of a slot, as disjoint pieces; raises as `portions`."""
    shape = slot.grid.shape
    pieces: tuple[Piece, ...] = ()
    for source in slot.sources:
        if rank not in source.ranks:
            continue
        if source.layout is None:
            pieces = (_whole(shape),)
        else:
            holdings = plain_holdings(source, shape, at="/".join(slot.name))
            own = map_of(holdings, rank)
            if own is not None:
                pieces = seen_in(own.pieces, holdings.view, shape)
    return pieces
