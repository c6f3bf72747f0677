"""One rank's part in moving a whole model, tensor by tensor (SPEC section 17.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ucpformat.geometry.buffer import BufferPlace
from ucpformat.geometry.buffer_share import BufferShare
from ucpformat.geometry.exchange import Exchange, RankPlan, check_exchange, exchange_view
from ucpformat.geometry.layout import Layout
from ucpformat.geometry.lower import Lowering, lower
from ucpformat.geometry.sides import Held, Wanted, held_in

__all__ = ["ExchangeTable", "RankPlanner", "Spread"]

_KEPT_SIDES: Final = 64


@dataclass(frozen=True, slots=True)
class Spread:
    """How a tensor is spread: its layout, by index, its shape, and its place where the layout has a buffer."""

    layout: int
    shape: tuple[int, ...]
    place: BufferPlace | None = None


class ExchangeTable:
    """Exchanges between the layouts of two tables; what many exchanges share is prepared once.

    Of what was prepared only the most recent is kept, so that memory does not follow the size of the tables.
    """

    def __init__(self, sources: Sequence[Layout], targets: Sequence[Layout]) -> None:
        self.sources = sources
        self.targets = targets
        self._lowered = lru_cache(maxsize=2 * _KEPT_SIDES)(_lowered)
        self._held = lru_cache(maxsize=_KEPT_SIDES)(self._held_in)
        self._wanted = lru_cache(maxsize=_KEPT_SIDES)(self._wanted_in)

    def source(self, spread: Spread) -> Lowering:
        """Return the lowering of a source; raises as `lower`."""
        return self._lowered(self.sources[spread.layout], spread.shape, spread.place)

    def target(self, spread: Spread) -> Lowering:
        """Return the lowering of a target; raises as `lower`."""
        return self._lowered(self.targets[spread.layout], spread.shape, spread.place)

    def exchange(self, source: Spread, target: Spread) -> Exchange:
        """Return the exchange of a tensor that is spread so; raises as `lower` and `Exchange`."""
        before, after = self.source(source), self.target(target)
        check_exchange(before, after)
        view = exchange_view(before, after)
        return Exchange(before, after, held=self._held(source, view), wanted=self._wanted(target, view))

    def _held_in(self, source: Spread, view: tuple[int, ...]) -> tuple[Held, ...]:
        return held_in(self.source(source), view)

    def _wanted_in(self, target: Spread, view: tuple[int, ...]) -> Wanted:
        return Wanted(self.target(target), view)


def _lowered(layout: Layout, shape: tuple[int, ...], place: BufferPlace | None) -> Lowering:
    return lower(layout, shape, place=place)


class RankPlanner:
    """Plans transfers for ``rank`` between the layouts of two tables, each kind of tensor once.

    Tensors that are spread alike have one exchange, so that the work follows the number of kinds that the
    rank takes part in, and not the number of tensors or ranks. ``table`` may be shared by planners.
    """

    def __init__(self, rank: int, table: ExchangeTable) -> None:
        self.rank = rank
        self._table = table
        self._holds = (_Holdings(rank, table.sources), _Holdings(rank, table.targets))
        self._periods: dict[tuple[Spread, Spread], int] = {}
        self._plans: dict[tuple[Spread, Spread, int], RankPlan] = {}

    def takes_part(self, source: Spread, target: Spread) -> bool:
        """Return whether the rank may hold an element of either; cheap, and never False where it does."""
        return self._holds[0].may_hold(source) or self._holds[1].may_hold(target)

    def plan(self, source: Spread, target: Spread, *, turn: int = 0) -> RankPlan | None:
        """Return the rank's part for a tensor, or None where it has none; raises as `lower` and `Exchange`."""
        if not self.takes_part(source, target):
            return None
        pair = (source, target)
        period = self._periods.get(pair)
        if period is None:
            period = self._periods[pair] = self._table.exchange(*pair).period(self.rank)
        key = (*pair, turn % period)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._table.exchange(*pair).rank(self.rank, turn=turn)
        return found


class _Holdings:
    """Whether a rank may hold anything of tensors that are spread by the layouts of a table."""

    def __init__(self, rank: int, layouts: Sequence[Layout]) -> None:
        self._rank = rank
        self._layouts = layouts
        self._holds: list[bool | None] = [None] * len(layouts)
        self._shares: dict[int, BufferShare] = {}

    def may_hold(self, spread: Spread) -> bool:
        index = spread.layout
        holds = self._holds[index]
        if holds is None:
            holds = self._holds[index] = self._layouts[index].holds(self._rank)
        if not holds or spread.place is None:
            return holds
        share = self._shares.get(index)
        if share is None:
            share = self._shares[index] = BufferShare(self._layouts[index], self._rank)
        return share.may_hold(spread.place, spread.shape)
