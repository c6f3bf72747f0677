"""Who sends how much to whom, as a matrix of ranks: for pictures, and for jobs that are small enough for one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error
from ucpformat.geometry import ExchangeTable
from ucpformat.planning.pairing import about

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ucpformat.geometry import Exchange
    from ucpformat.planning.pairing import Kind, Pairing

__all__ = ["MOST_RANKS", "Movements", "movements"]

MOST_RANKS: Final = 128
"""Ranks of the largest matrix: its cells are counted one by one, and drawn."""


@dataclass(frozen=True, slots=True)
class Movements:
    """Bytes by the rank that has them and the rank that is to have them; where both are one, they stay in place."""

    pairing: Pairing
    ranks: tuple[int, ...]
    nbytes: Mapping[tuple[int, int], int]

    def to_json(self) -> dict[str, object]:
        """Return it as a page reads it."""
        return {
            "from": self.pairing.source.label,
            "to": self.pairing.target.label,
            "slots": self.pairing.slots,
            "bytes": self.pairing.nbytes,
            "unplanned": len(self.pairing.unplanned),
            "ranks": list(self.ranks),
            "moved": [[source, target, count] for (source, target), count in sorted(self.nbytes.items())],
        }


def movements(pairing: Pairing) -> Movements:
    """Count what goes from each rank to each other, as the plan of ``pairing`` from rank to rank has it.

    Raises:
        UcpError: ``UCP-E-LIMIT``: there are more than 128 ranks; and what `geometry.lower` and `geometry.Exchange`
            raise.
    """
    ranks = sorted(set(pairing.source.ranks()) | set(pairing.target.ranks()))
    if len(ranks) > MOST_RANKS:
        raise error(
            "UCP-E-LIMIT",
            f"{len(ranks)} ranks are too many for a matrix of {MOST_RANKS}: `ucp plan` says what each moves",
        )
    table = ExchangeTable(pairing.source.layouts, pairing.target.layouts)
    found: Counter[tuple[int, int]] = Counter()
    for kind in pairing.kinds:
        if kind.source is None:
            raise error("UCP-E-MISMATCH", "a route out of storage goes from no rank to another")
        with about(kind.names[0]):
            exchange = table.exchange(kind.source, kind.target)
            for rank in pairing.target.ranks():
                _count(found, kind, exchange, rank)
    return Movements(pairing, tuple(ranks), found)


def _count(found: Counter[tuple[int, int]], kind: Kind, exchange: Exchange, rank: int) -> None:
    """Count what one rank gets of a kind's slots, which differ by their turn, in a period."""
    period = min(exchange.period(rank), len(kind.turns))
    whole, rest = divmod(len(kind.turns), period)
    for phase in range(period):
        plan = exchange.rank(rank, turn=kind.turns[phase])
        for copy in (*plan.keeps, *plan.receives):
            times = whole + (phase < rest)
            found[copy.source_rank, copy.target_rank] += copy.size * kind.dtype.item_bytes * times
