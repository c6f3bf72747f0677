"""One rank's part in moving a whole model, tensor by tensor (SPEC section 17.2)."""

from __future__ import annotations

from collections.abc import Sequence

from ucpformat.geometry.exchange import Exchange, RankPlan
from ucpformat.geometry.layout import Layout
from ucpformat.geometry.lower import Lowering, lower
from ucpformat.geometry.piece import Holdings

__all__ = ["RankPlanner"]


class RankPlanner:
    """Plans transfers for ``rank`` between the layouts of two tables, each kind of tensor once.

    Tensors of one shape that are spread alike have one plan, so that the work follows the number of kinds
    that the rank takes part in, and not the number of tensors or ranks.
    """

    def __init__(self, rank: int, sources: Sequence[Layout], targets: Sequence[Layout]) -> None:
        self.rank = rank
        self._sources = _Table(rank, sources)
        self._targets = _Table(rank, targets)
        self._plans: dict[tuple[int, int, tuple[int, ...], int], RankPlan | None] = {}
        self._takes_part: dict[tuple[int, int], bool] = {}

    def plan(self, source: int, target: int, shape: tuple[int, ...], *, turn: int = 0) -> RankPlan | None:
        """Return the rank's part for a tensor, given by the indices of its layouts, or None where it has none.

        Raises as `lower` and `Exchange`.
        """
        pair = (source, target)
        takes_part = self._takes_part.get(pair)
        if takes_part is None:
            takes_part = self._sources.holds(source) or self._targets.holds(target)
            self._takes_part[pair] = takes_part
        if not takes_part:
            return None
        key = (source, target, shape, turn)
        if key not in self._plans:
            exchange = Exchange(
                self._sources.lowered(source, shape), self._targets.lowered(target, shape), turn=turn
            )
            self._plans[key] = exchange.rank(self.rank)
        return self._plans[key]


class _Table:
    """Layouts by index, lowered as shapes come, and whether a rank holds anything of each."""

    def __init__(self, rank: int, layouts: Sequence[Layout]) -> None:
        self._rank = rank
        self._layouts = layouts
        self._holds: dict[int, bool] = {}
        self._lowered: dict[tuple[int, tuple[int, ...]], Lowering] = {}

    def holds(self, index: int) -> bool:
        found = self._holds.get(index)
        if found is None:
            found = self._holds[index] = self._layouts[index].holds(self._rank)
        return found

    def lowered(self, index: int, shape: tuple[int, ...]) -> Holdings:
        key = (index, shape)
        if key not in self._lowered:
            self._lowered[key] = lower(self._layouts[index], shape)
        return self._lowered[key]
