"""Who gives what, where several ranks hold the same (SPEC section 17.2).

The ranks that hold a box are a team, and serve together what is asked of all boxes that they hold: requests
are taken in the order of boxes, target regions and ranks, and each goes to the position of the team that has
the fewest elements to give so far, the first of those. So what two positions give differs by at most the
largest request. A rank's position moves on from turn to turn, so that over the tensors of a model that are
spread alike the ranks take turns: by as many positions as give the most where those give one amount and all
others another, which is round robin, and else by one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ucpformat.geometry.sides import Held, Wanted

__all__ = ["Request", "Shares", "Sharing"]


@dataclass(frozen=True, slots=True)
class Request:
    """The part of box ``number`` that the wanted piece number ``piece`` needs, for ``rank``, and its ``size``.

    ``position`` of the team gives it.
    """

    number: int
    piece: int
    rank: int
    size: int
    position: int


class Shares:
    """The requests to one team, ``ranks``, and who serves each."""

    def __init__(self, ranks: tuple[int, ...], requests: list[Request], loads: list[int]) -> None:
        self.ranks = ranks
        self.requests = requests
        self.loads = loads
        self._step = _step(loads)
        self._by_piece = {(item.number, item.piece, item.rank): item.position for item in requests}

    @property
    def period(self) -> int:
        """After so many turns everything is as at the first."""
        return len(self.ranks) // math.gcd(self._step, len(self.ranks))

    def giver(self, number: int, piece: int, rank: int, turn: int) -> int:
        """Return who gives ``rank`` its part of box ``number``."""
        return self.ranks[(self._by_piece[number, piece, rank] + turn * self._step) % len(self.ranks)]

    def position_of(self, index: int, turn: int) -> int:
        """Return the position of the team that its rank number ``index`` has."""
        return (index - turn * self._step) % len(self.ranks)

    def given_by(self, rank: int, turn: int) -> Iterator[Request]:
        """Return the requests that ``rank``, one of the team, serves."""
        position = self.position_of(self.ranks.index(rank), turn)
        return (item for item in self.requests if item.position == position)


def _step(loads: list[int]) -> int:
    most = max(loads)
    first = loads.count(most)
    if loads[:first] == [most] * first and len(set(loads[first:])) <= 1:
        return first
    return 1


class Sharing:
    """The shares of every team of one contribution, each worked out when it is first asked for."""

    def __init__(self, held: Held, wanted: Wanted) -> None:
        self.held = held
        self.wanted = wanted
        self._shares: dict[int, Shares] = {}

    def of(self, team: int) -> Shares:
        """Return the shares of a team."""
        found = self._shares.get(team)
        if found is None:
            found = self._shares[team] = self._worked_out(team)
        return found

    def _worked_out(self, team: int) -> Shares:
        held, wanted = self.held, self.wanted
        ranks = held.teams[team]
        members = frozenset(ranks)
        loads = [(0, position) for position in range(len(ranks))]
        requests: list[Request] = []
        for number in held.boxes_of[team]:
            box = held.boxes[number]
            for piece in wanted.index.overlapping(box):
                part = box.intersect(wanted.pieces[piece].box)
                size = 0 if part is None else part.size
                for rank in wanted.holders[wanted.region[piece]]:
                    if rank not in members:
                        load, position = loads[0]
                        requests.append(Request(number, piece, rank, size, position))
                        heapq.heapreplace(loads, (load + size, position))
        final = [0] * len(ranks)
        for load, position in loads:
            final[position] = load
        return Shares(ranks, requests, final)
