"""The two sides of an exchange, each seen in one view: what is wanted, what is held, and by whom (SPEC 17.2)."""

from __future__ import annotations

from collections.abc import Iterator

from ucpformat.geometry.box import Box
from ucpformat.geometry.cover import BoxIndex, first_overlap
from ucpformat.geometry.piece import Holdings, Piece
from ucpformat.geometry.refine import seen_in

__all__ = ["Held", "Wanted", "held_in"]

_Boxes = dict[Box, dict[int, Piece]]


class Wanted:
    """The pieces that the regions of a target want, and who holds each region; empty regions want nothing.

    ``pieces`` are in ``view``; ``region`` is that of each piece, ``by_region`` the places of the pieces of
    each region, ``holders`` the ranks of each region, ascending, ``region_of`` the one region of a rank.
    """

    def __init__(self, target: Holdings, view: tuple[int, ...]) -> None:
        self.pieces: list[Piece] = []
        self.region: list[int] = []
        self.by_region: list[range] = []
        self.holders: list[tuple[int, ...]] = []
        for number, region in enumerate(target.filled()):
            pieces = seen_in(region.local_map.pieces, target.view, view)
            self.by_region.append(range(len(self.pieces), len(self.pieces) + len(pieces)))
            self.pieces.extend(pieces)
            self.region.extend(number for _ in pieces)
            self.holders.append(region.holders)
        self.region_of = {rank: number for number, ranks in enumerate(self.holders) for rank in ranks}
        self.index = BoxIndex([piece.box for piece in self.pieces])


class Held:
    """Disjoint boxes of one contribution of a source, and who holds each.

    ``holders`` has for every box the piece of each rank that holds it. Boxes that the same ranks hold belong
    to one team: ``teams`` are the ranks of each, ascending, ``team_of`` is that of each box, ``boxes_of`` the
    boxes of each team, and ``teams_with`` the teams of each rank.
    """

    def __init__(self, found: _Boxes) -> None:
        entries = list(found.items())
        if first_overlap([box for box, _ in entries]) is not None:
            entries = _disjoint(entries)
        self.boxes = [box for box, _ in entries]
        self.holders = [holders for _, holders in entries]
        self.index = BoxIndex(self.boxes)
        numbers: dict[tuple[int, ...], int] = {}
        self.team_of = [numbers.setdefault(tuple(sorted(ranks)), len(numbers)) for ranks in self.holders]
        self.teams = list(numbers)
        self.boxes_of: list[list[int]] = [[] for _ in self.teams]
        for number, team in enumerate(self.team_of):
            self.boxes_of[team].append(number)
        self.teams_with: dict[int, list[int]] = {}
        for team, ranks in enumerate(self.teams):
            for rank in ranks:
                self.teams_with.setdefault(rank, []).append(team)

    def count(self, rank: int, pieces: list[Piece]) -> int:
        """Return how many cells of ``pieces``, which are disjoint, the rank holds itself."""
        count = 0
        for team in self.teams_with.get(rank, ()):
            for number in self.boxes_of[team]:
                for piece in pieces:
                    part = self.boxes[number].intersect(piece.box)
                    count += 0 if part is None else part.size
        return count


def held_in(source: Holdings, view: tuple[int, ...]) -> tuple[Held, ...]:
    """Return for every contribution of a source, of which most have one, what is held of it.

    Raises UCP-E-LIMIT as `seen_in`.
    """
    found: list[_Boxes] = []
    for region in source.filled():
        groups = region.contributions or (region.holders,)
        found.extend({} for _ in range(len(groups) - len(found)))
        for piece in seen_in(region.local_map.pieces, source.view, view):
            for boxes, ranks in zip(found, groups, strict=True):
                boxes.setdefault(piece.box, {}).update(dict.fromkeys(ranks, piece))
    return tuple(map(Held, found or [{}]))


def _disjoint(entries: list[tuple[Box, dict[int, Piece]]]) -> list[tuple[Box, dict[int, Piece]]]:
    """Cut boxes up until they are equal or disjoint; each part with all its holders.

    A part belongs to the first box that holds it, and is cut by those behind that overlap it, so that the
    work follows overlaps and not pairs.
    """
    index = BoxIndex([box for box, _ in entries])
    done: list[tuple[Box, dict[int, Piece]]] = []
    for number, (box, holders) in enumerate(entries):
        parts = [(box, holders)]
        for place in index.overlapping(box):
            other, theirs = entries[place]
            if place < number:
                parts = [(rest, mine) for part, mine in parts for rest in part.subtract(other)]
            elif place > number:
                parts = [cut for part, mine in parts for cut in _cut(part, mine, other, theirs)]
        done += parts
    return done


def _cut(
    part: Box, mine: dict[int, Piece], other: Box, theirs: dict[int, Piece]
) -> Iterator[tuple[Box, dict[int, Piece]]]:
    for rest in part.subtract(other):
        yield rest, mine
    common = part.intersect(other)
    if common is not None:
        yield common, {**mine, **theirs}
