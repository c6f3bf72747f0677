"""How much every rank moves in an exchange, counted without a list of copies (SPEC section 17.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ucpformat.errors import error
from ucpformat.geometry.box import Box, strided_runs
from ucpformat.geometry.exchange import Exchange
from ucpformat.geometry.piece import Piece
from ucpformat.geometry.sharing import Shares
from ucpformat.geometry.sides import Held, Wanted

__all__ = ["Amount", "Traffic", "traffic"]


@dataclass(slots=True)
class Amount:
    """Elements that move, in how many copies, and how many contiguous runs of local memory those are."""

    elements: int = 0
    copies: int = 0
    runs: int = 0

    def add(self, elements: int, runs: int, times: int = 1) -> None:
        """Count a copy, ``times`` over."""
        self.elements += elements * times
        self.copies += times
        self.runs += runs * times

    def add_all(self, other: Amount, times: int = 1) -> None:
        """Count what another amount does, ``times`` over."""
        self.elements += other.elements * times
        self.copies += other.copies * times
        self.runs += other.runs * times


class Traffic:
    """What one rank keeps, receives and sends; runs are those of the target's memory, and of the source's for sends."""

    __slots__ = ("kept", "received", "sent")

    def __init__(self) -> None:
        self.kept = Amount()
        self.received = Amount()
        self.sent = Amount()


def traffic(exchange: Exchange, turns: range = range(1)) -> Mapping[int, Traffic]:
    """Return the traffic of every rank that takes part, over one tensor for each of ``turns``.

    Equal to what the plans of these turns say, but the work does not follow their number.
    Raises UCP-E-COVER where no source holds a wanted cell.
    """
    found: dict[int, Traffic] = {}
    wanted = exchange.wanted
    for sharing in exchange.sharings:
        held = sharing.held
        asked: set[int] = set()
        for place, piece in enumerate(wanted.pieces):
            ranks = wanted.holders[wanted.region[place]]
            missing = piece.box.size
            for number in held.index.overlapping(piece.box):
                part = _part(held, wanted, number, place)
                missing -= part.size
                runs = _runs(part, piece)
                holders = held.holders[number]
                asked.add(held.team_of[number])
                for rank in ranks:
                    mine = found.setdefault(rank, Traffic())
                    amount = mine.kept if rank in holders else mine.received
                    amount.add(part.size, runs, len(turns))
            if missing:
                raise error(
                    "UCP-E-COVER",
                    f"no source holds {missing} of the cells at {piece.box.offset} of shape {piece.box.shape}",
                )
        for team in sorted(asked):
            shares = sharing.of(team)
            if shares.requests:
                for rank, amount in _sent(held, wanted, team, shares, turns):
                    found.setdefault(rank, Traffic()).sent.add_all(amount)
    return found


def _sent(
    held: Held, wanted: Wanted, team: int, shares: Shares, turns: range
) -> Iterator[tuple[int, Amount]]:
    """Yield what each rank of a team sends over the turns, which are counted by their phase in the period."""
    count, period = len(shares.ranks), shares.period
    whole, rest = divmod(len(turns), period)
    # Runs follow the pieces of the rank that sends; most teams have one kind of them.
    by_kind: dict[tuple[tuple[int, ...], ...], list[Amount]] = {}
    for index, rank in enumerate(shares.ranks):
        pieces = {number: held.holders[number][rank] for number in held.boxes_of[team]}
        kind = tuple(piece.local.strides for piece in pieces.values())
        if kind not in by_kind:
            amounts = by_kind[kind] = [Amount() for _ in range(count)]
            for item in shares.requests:
                part = _part(held, wanted, item.number, item.piece)
                amounts[item.position].add(part.size, _runs(part, pieces[item.number]))
        total = Amount()
        for phase in range(min(period, len(turns))):
            position = shares.position_of(index, turns[phase])
            total.add_all(by_kind[kind][position], whole + (phase < rest))
        yield rank, total


def _part(held: Held, wanted: Wanted, number: int, place: int) -> Box:
    box, other = held.boxes[number], wanted.pieces[place].box
    offset = tuple(map(max, box.offset, other.offset))
    return Box(offset, tuple(map(int.__sub__, map(min, box.stop, other.stop), offset)))


def _runs(part: Box, piece: Piece) -> int:
    return strided_runs(0, part.shape, piece.local.strides).count
