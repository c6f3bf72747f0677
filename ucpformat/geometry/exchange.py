"""Planning a transfer, for all ranks or for one (SPEC section 17.2).

The plan is the composition ``target . source^-1``, found by intersecting the boxes of both in a view that
suits both; the logical tensor is never materialised. Who sends what is decided box by box, by what every rank
knows, so that each finds its own part without the others' and all parts agree.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from ucpformat.errors import error
from ucpformat.geometry.box import Box
from ucpformat.geometry.box_index import BoxIndex
from ucpformat.geometry.cover import first_overlap
from ucpformat.geometry.piece import Holdings, Piece
from ucpformat.geometry.refine import common_refinement, seen_in
from ucpformat.geometry.transfer import Copy, TransferPlan

__all__ = ["Exchange", "RankPlan", "plan_transfer"]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank does in a transfer: copies within itself, from others, and to others."""

    rank: int
    keeps: tuple[Copy, ...]
    receives: tuple[Copy, ...]
    sends: tuple[Copy, ...]

    @property
    def elements_received(self) -> int:
        """How many elements come from other ranks."""
        return sum(copy.size for copy in self.receives)

    @property
    def elements_sent(self) -> int:
        """How many elements go to other ranks."""
        return sum(copy.size for copy in self.sends)


def plan_transfer(source: Holdings, target: Holdings) -> TransferPlan:
    """Plan how the ranks of ``target`` get their tensors from those of ``source``; raises as `Exchange`."""
    return Exchange(source, target).plan()


class Exchange:
    """A source and a target of one tensor, prepared so that any rank finds its part; a rank is one in both.

    Source boxes are first made disjoint. Every element is taken from the target rank itself where that holds
    it. The other requests for a source box are served in the order of target regions and ranks, each by the
    holder that has given the fewest elements of that box so far; among equals, holders take turns, beginning
    at another one for every box. ``turn`` moves that beginning: the place of the tensor among those that
    are spread alike, so that not all of them begin with the same holder.

    Raises UCP-E-MISMATCH where the logical shapes differ, or entries of their own are asked for under another
    mesh; UCP-E-LAYOUT for a target whose layout has contributions; UCP-E-LIMIT as `seen_in`.
    """

    def __init__(self, source: Holdings, target: Holdings, *, turn: int = 0) -> None:
        if source.shape != target.shape:
            raise error(
                "UCP-E-MISMATCH", f"the source has shape {source.shape}, the target has shape {target.shape}"
            )
        if target.reduce is not None:
            raise error("UCP-E-LAYOUT", "partial is of sources alone: leave it out of the target's layout")
        if source.own_axes != target.own_axes:
            raise error(
                "UCP-E-MISMATCH",
                "entries that belong to each rank are never merged or split: read them under the same mesh",
            )
        view = common_refinement(source.view, target.view)
        self.view = target.view if view is None else view
        self.reduce = source.reduce
        self._factor = target.scale / source.scale
        self._demand = _Demand(target, self.view)
        self._supplies = [_Supply(held, turn, self._demand) for held in _contributions(source, self.view)]

    def plan(self) -> TransferPlan:
        """Return the copies of all ranks; UCP-E-COVER where no source holds a wanted cell."""
        ranks = (rank for holders in self._demand.holders for rank in holders)
        return TransferPlan(tuple(copy for rank in ranks for copy in self._to(rank)), self.reduce)

    def rank(self, rank: int) -> RankPlan:
        """Return the part of one rank; UCP-E-COVER where no source holds a cell that it wants."""
        incoming = tuple(self._to(rank))
        return RankPlan(
            rank,
            tuple(copy for copy in incoming if copy.source_rank == rank),
            tuple(copy for copy in incoming if copy.source_rank != rank),
            tuple(self._from(rank)),
        )

    def lower_bound(self) -> int:
        """Return how many elements must reach a rank that does not hold them: no plan sends fewer.

        A pending reduction needs at least one element from elsewhere for each that a rank cannot reduce alone.
        """
        bound = 0
        for number, holders in enumerate(self._demand.holders):
            pieces = [self._demand.pieces[place] for place in self._demand.by_region[number]]
            size = sum(piece.box.size for piece in pieces)
            for rank in holders:
                bound += size - min(supply.held(rank, pieces) for supply in self._supplies)
        return bound

    def _to(self, rank: int) -> Iterator[Copy]:
        region = self._demand.region_of.get(rank)
        for place in [] if region is None else self._demand.by_region[region]:
            piece = self._demand.pieces[place]
            for contribution, supply in enumerate(self._supplies):
                missing = piece.box.size
                for number in supply.index.overlapping(piece.box):
                    holder = supply.holder(number, place, rank)
                    copy = self._copy(supply, number, place, holder, rank, contribution)
                    missing -= copy.size
                    yield copy
                if missing:
                    raise error(
                        "UCP-E-COVER",
                        f"no source holds {missing} of the cells at {piece.box.offset} "
                        f"of shape {piece.box.shape}",
                    )

    def _from(self, rank: int) -> Iterator[Copy]:
        for contribution, supply in enumerate(self._supplies):
            for number in supply.by_rank.get(rank, ()):
                for (place, target_rank), holder in supply.assigned(number).items():
                    if holder == rank:
                        yield self._copy(supply, number, place, rank, target_rank, contribution)

    def _copy(
        self, supply: _Supply, number: int, place: int, holder: int, rank: int, contribution: int
    ) -> Copy:
        wanted, held = self._demand.pieces[place], supply.holders[number][holder]
        offset = tuple(map(max, supply.boxes[number].offset, wanted.box.offset))
        stop = map(min, supply.boxes[number].stop, wanted.box.stop)
        return Copy(
            holder,
            rank,
            tuple(map(int.__sub__, stop, offset)),
            held.local.shifted(tuple(map(int.__sub__, offset, held.box.offset))),
            wanted.local.shifted(tuple(map(int.__sub__, offset, wanted.box.offset))),
            self._factor,
            contribution,
        )


class _Demand:
    """The pieces that target regions want, and who holds each region."""

    def __init__(self, target: Holdings, view: tuple[int, ...]) -> None:
        self.pieces: list[Piece] = []
        self.region: list[int] = []
        self.by_region: list[range] = []
        self.holders: list[tuple[int, ...]] = []
        for number, region in enumerate(target.regions()):
            pieces = seen_in(region.local_map.pieces, target.view, view)
            self.by_region.append(range(len(self.pieces), len(self.pieces) + len(pieces)))
            self.pieces.extend(pieces)
            self.region.extend(number for _ in pieces)
            self.holders.append(region.holders)
        self.region_of = {rank: number for number, ranks in enumerate(self.holders) for rank in ranks}
        self.index = BoxIndex([piece.box for piece in self.pieces])


_Held = dict[Box, dict[int, Piece]]


def _contributions(source: Holdings, view: tuple[int, ...]) -> list[_Held]:
    """Return for every contribution the boxes that are held, with the piece of each holder."""
    found: list[_Held] = []
    for region in source.regions():
        groups = region.contributions or (region.holders,)
        found.extend({} for _ in range(len(groups) - len(found)))
        for piece in seen_in(region.local_map.pieces, source.view, view):
            for held, ranks in zip(found, groups, strict=True):
                held.setdefault(piece.box, {}).update(dict.fromkeys(ranks, piece))
    return found or [{}]


class _Supply:
    """Disjoint boxes of one contribution, who holds each, and who gives it to whom."""

    def __init__(self, held: _Held, turn: int, demand: _Demand) -> None:
        entries = list(held.items())
        if first_overlap([box for box, _ in entries]) is not None:
            entries = _disjoint(entries)
        self.boxes = [box for box, _ in entries]
        self.holders = [holders for _, holders in entries]
        self.index = BoxIndex(self.boxes)
        self.by_rank: dict[int, list[int]] = {}
        for number, holders in enumerate(self.holders):
            for rank in holders:
                self.by_rank.setdefault(rank, []).append(number)
        self._turn = turn
        self._demand = demand
        self._assigned: dict[int, dict[tuple[int, int], int]] = {}

    def holder(self, number: int, place: int, rank: int) -> int:
        """Return who gives ``rank`` the part of box ``number`` that the wanted piece at ``place`` needs."""
        return rank if rank in self.holders[number] else self.assigned(number)[place, rank]

    def assigned(self, number: int) -> dict[tuple[int, int], int]:
        """Return for every wanted piece and every rank that does not hold the box itself the one that gives."""
        found = self._assigned.get(number)
        if found is None:
            found = self._assigned[number] = self._assign(number)
        return found

    def _assign(self, number: int) -> dict[tuple[int, int], int]:
        box, holders = self.boxes[number], sorted(self.holders[number])
        count = len(holders)
        begin = (number + self._turn) % count
        loads = [(0, place, holders[(begin + place) % count]) for place in range(count)]
        found: dict[tuple[int, int], int] = {}
        for place in self._demand.index.overlapping(box):
            part = box.intersect(self._demand.pieces[place].box)
            size = 0 if part is None else part.size
            for rank in self._demand.holders[self._demand.region[place]]:
                if rank not in self.holders[number]:
                    load, order, holder = loads[0]
                    found[place, rank] = holder
                    heapq.heapreplace(loads, (load + size, order, holder))
        return found

    def held(self, rank: int, pieces: list[Piece]) -> int:
        """Return how many cells of ``pieces`` the rank holds itself."""
        count = 0
        for number in self.by_rank.get(rank, ()):
            for piece in pieces:
                part = self.boxes[number].intersect(piece.box)
                count += 0 if part is None else part.size
        return count


def _disjoint(entries: list[tuple[Box, dict[int, Piece]]]) -> list[tuple[Box, dict[int, Piece]]]:
    """Cut boxes up until they are equal or disjoint; each part with all its holders."""
    done: list[tuple[Box, dict[int, Piece]]] = []
    for box, holders in entries:
        rest = [box]
        cut: list[tuple[Box, dict[int, Piece]]] = []
        for other, theirs in done:
            common = other.intersect(box)
            if common is None:
                cut.append((other, theirs))
                continue
            cut.extend((part, theirs) for part in other.subtract(common))
            cut.append((common, {**theirs, **holders}))
            rest = [part for piece in rest for part in piece.subtract(common)]
        done = cut + [(part, holders) for part in rest]
    return done
