"""All that one rank does, slot by slot (SPEC-ARRANGEMENTS)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ucpformat.geometry import Copy, ExchangeTable, RankPlanner, lower
from ucpformat.planning.pairing import about
from ucpformat.storage.reading.local_reader import require_readable
from ucpformat.storage.reading.read_plan import StoredRead, planned_reads

if TYPE_CHECKING:
    from ucpformat.geometry import Lowering
    from ucpformat.planning.pairing import Kind, Pairing
    from ucpformat.planning.side import SlotName

__all__ = ["RankDetail", "SlotPart", "rank_detail"]


@dataclass(frozen=True, slots=True)
class SlotPart:
    """What a rank does for one slot; a copy's size is in elements, of which each has ``item_bytes``."""

    name: SlotName
    item_bytes: int
    keeps: tuple[Copy, ...] = ()
    receives: tuple[Copy, ...] = ()
    sends: tuple[Copy, ...] = ()
    reads: tuple[StoredRead, ...] = ()


class RankDetail:
    """The parts of one rank, made one after the other in order of name as they are asked for."""

    def __init__(self, pairing: Pairing, rank: int, table: ExchangeTable | None = None) -> None:
        self.pairing = pairing
        self.rank = rank
        self._table = table or ExchangeTable(pairing.source.layouts, pairing.target.layouts)

    def __iter__(self) -> Iterator[SlotPart]:
        """Yield the slots of which the rank moves something; raises as `geometry.lower` and `geometry.Exchange`."""
        parts = self._read if self.pairing.route == "storage" else self._copied
        return parts()

    def _copied(self) -> Iterator[SlotPart]:
        planner = RankPlanner(self.rank, self._table)
        chosen: list[tuple[SlotName, int, Kind]] = []
        for kind in self.pairing.kinds:
            if kind.source is not None and planner.takes_part(kind.source, kind.target):
                chosen += zip(kind.names, kind.turns, [kind] * len(kind.names), strict=True)
        for name, turn, kind in sorted(chosen, key=lambda entry: entry[0]):
            if kind.source is not None:
                with about(name):
                    plan = planner.plan(kind.source, kind.target, turn=turn)
                if plan is not None and (plan.keeps or plan.receives or plan.sends):
                    yield SlotPart(name, kind.dtype.item_bytes, plan.keeps, plan.receives, plan.sends)

    def _read(self) -> Iterator[SlotPart]:
        checkpoint = self.pairing.source.checkpoint
        layouts = self.pairing.target.layouts
        lowerings: dict[int, Lowering] = {}
        chosen = sorted(
            (name, number) for number, kind in enumerate(self.pairing.kinds) for name in kind.names
        )
        for name, number in chosen:
            kind = self.pairing.kinds[number]
            layout = layouts[kind.target.layout]
            if checkpoint is None or not layout.holds(self.rank):
                continue
            stored = checkpoint[name[0]][name[1]].stored
            if number not in lowerings:
                with about(name):
                    source = self.pairing.source.saved_under(stored.slot)
                    require_readable(layout, source, kind.dtype, at="")
                    lowerings[number] = lower(layout, kind.target.shape, place=kind.target.place)
            local = lowerings[number].at(layout.mesh.coordinate_of(self.rank))
            reads = tuple(planned_reads(stored, lowerings[number].view, local.pieces if local else ()))
            if reads:
                yield SlotPart(name, kind.dtype.item_bytes, reads=reads)


def rank_detail(pairing: Pairing, rank: int) -> RankDetail:
    """Return all that ``rank`` does."""
    return RankDetail(pairing, rank)
