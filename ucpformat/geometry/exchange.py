"""Planning a transfer, for all ranks or for one (SPEC section 17.2).

The plan is the composition ``target . source^-1``, found by intersecting the boxes of both in a view that
suits both; the logical tensor is never materialised. Who sends what is decided by what every rank knows, so
that each finds its own part without the others' and all parts agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ucpformat.errors import error
from ucpformat.geometry.piece import Holdings
from ucpformat.geometry.refine import common_refinement
from ucpformat.geometry.sharing import Sharing
from ucpformat.geometry.sides import Held, Wanted, held_in
from ucpformat.geometry.transfer import Copy, TransferPlan

__all__ = ["Exchange", "RankPlan", "exchange_view", "plan_transfer"]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank does in a transfer: copies within itself, from others, and to others."""

    rank: int
    keeps: tuple[Copy, ...]
    receives: tuple[Copy, ...]
    sends: tuple[Copy, ...]

    @property
    def elements_kept(self) -> int:
        """How many elements stay where they are."""
        return sum(copy.size for copy in self.keeps)

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


def exchange_view(source: Holdings, target: Holdings) -> tuple[int, ...]:
    """Return the view in which both are compared; it suits both where any does."""
    view = common_refinement(source.view, target.view)
    return target.view if view is None else view


class Exchange:
    """A source and a target of one tensor, prepared so that any rank finds its part; a rank is one in both.

    Source boxes are first made disjoint. Every element is taken from the target rank itself where that holds
    it; else the ranks that hold the same boxes share the work as `sharing` says. ``turn`` is the position of the
    tensor among those that are spread alike, so that not all of them begin with the same holder.

    ``held`` and ``wanted``, where given, are what `sides` makes of source and target in `exchange_view`, for
    callers that have many exchanges of one or the other.

    Raises UCP-E-MISMATCH where the logical shapes differ, or entries of their own are asked for under another
    mesh; UCP-E-LAYOUT for a target whose layout has contributions; UCP-E-LIMIT as `seen_in`.
    """

    def __init__(
        self,
        source: Holdings,
        target: Holdings,
        *,
        held: tuple[Held, ...] | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        check_exchange(source, target)
        self.view = exchange_view(source, target)
        self.reduce = source.reduce
        self._factor = target.scale / source.scale
        self.wanted = Wanted(target, self.view) if wanted is None else wanted
        self.sharings = tuple(
            Sharing(part, self.wanted) for part in (held_in(source, self.view) if held is None else held)
        )

    def plan(self, *, turn: int = 0) -> TransferPlan:
        """Return the copies of all ranks; UCP-E-COVER where no source holds a wanted cell."""
        ranks = (rank for holders in self.wanted.holders for rank in holders)
        return TransferPlan(tuple(copy for rank in ranks for copy in self._to(rank, turn)), self.reduce)

    def rank(self, rank: int, *, turn: int = 0) -> RankPlan:
        """Return the part of one rank; UCP-E-COVER where no source holds a cell that it wants."""
        incoming = tuple(self._to(rank, turn))
        return RankPlan(
            rank,
            tuple(copy for copy in incoming if copy.source_rank == rank),
            tuple(copy for copy in incoming if copy.source_rank != rank),
            tuple(self._from(rank, turn)),
        )

    def period(self, rank: int) -> int:
        """Return after how many turns the part of ``rank`` is as at the first."""
        periods = [1]
        numbers = self._pieces_of(rank)
        for sharing in self.sharings:
            held = sharing.held
            teams = set(held.teams_with.get(rank, ()))
            for piece in numbers:
                found = held.index.overlapping(self.wanted.pieces[piece].box)
                teams.update(held.team_of[number] for number in found if rank not in held.holders[number])
            periods += [sharing.of(team).period for team in teams if len(held.teams[team]) > 1]
        return math.lcm(*periods)

    def lower_bound(self) -> int:
        """Return how many elements must reach a rank that does not hold them: no plan sends fewer.

        A pending reduction needs at least one element from elsewhere for each that a rank cannot reduce alone.
        """
        bound = 0
        for number, holders in enumerate(self.wanted.holders):
            pieces = [self.wanted.pieces[piece] for piece in self.wanted.by_region[number]]
            size = sum(piece.box.size for piece in pieces)
            for rank in holders:
                bound += size - min(sharing.held.count(rank, pieces) for sharing in self.sharings)
        return bound

    def _pieces_of(self, rank: int) -> range:
        region = self.wanted.region_of.get(rank)
        return range(0) if region is None else self.wanted.by_region[region]

    def _to(self, rank: int, turn: int) -> Iterator[Copy]:
        for piece in self._pieces_of(rank):
            box = self.wanted.pieces[piece].box
            for contribution, sharing in enumerate(self.sharings):
                held = sharing.held
                missing = box.size
                for number in held.index.overlapping(box):
                    giver = rank
                    if rank not in held.holders[number]:
                        giver = sharing.of(held.team_of[number]).giver(number, piece, rank, turn)
                    copy = self._copy(sharing.held, number, piece, giver, rank, contribution)
                    missing -= copy.size
                    yield copy
                if missing:
                    raise error(
                        "UCP-E-COVER",
                        f"no source holds {missing} of the cells at {box.offset} of shape {box.shape}",
                    )

    def _from(self, rank: int, turn: int) -> Iterator[Copy]:
        for contribution, sharing in enumerate(self.sharings):
            for team in sharing.held.teams_with.get(rank, ()):
                for item in sharing.of(team).given_by(rank, turn):
                    yield self._copy(sharing.held, item.number, item.piece, rank, item.rank, contribution)

    def _copy(self, held: Held, number: int, piece: int, giver: int, rank: int, contribution: int) -> Copy:
        wanted, given = self.wanted.pieces[piece], held.holders[number][giver]
        offset = tuple(map(max, held.boxes[number].offset, wanted.box.offset))
        stop = map(min, held.boxes[number].stop, wanted.box.stop)
        return Copy(
            giver,
            rank,
            tuple(map(int.__sub__, stop, offset)),
            given.local.shifted(tuple(map(int.__sub__, offset, given.box.offset))),
            wanted.local.shifted(tuple(map(int.__sub__, offset, wanted.box.offset))),
            self._factor,
            contribution,
        )


def check_exchange(source: Holdings, target: Holdings) -> None:
    """Raise as `Exchange` where the two do not fit."""
    if source.shape != target.shape:
        raise error(
            "UCP-E-MISMATCH", f"the source has shape {source.shape}, the target has shape {target.shape}"
        )
    if target.reduce is not None:
        raise error("UCP-E-LAYOUT", "partial is of sources alone: leave it out of the target's layout")
    if not _entries_fit(source, target):
        raise error(
            "UCP-E-MISMATCH",
            "entries that belong to each rank are never merged or split: read them under the same mesh",
        )


def _entries_fit(source: Holdings, target: Holdings) -> bool:
    """Return whether entries that belong to each rank stay where they are; of equal shapes, they are equally many."""
    if source.own_axes is None or target.own_axes is None:
        return source.own_axes == target.own_axes
    return source.keeps_entries or source.own_axes == target.own_axes
