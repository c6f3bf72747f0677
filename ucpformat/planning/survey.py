"""What every rank moves, kind by kind: no list of copies is ever held, and memory follows ranks (SPEC-ARRANGEMENTS)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ucpformat.drawing.bars import bars_of
from ucpformat.geometry import Amount, ExchangeTable, lower, traffic
from ucpformat.planning.pairing import about
from ucpformat.storage.reading.local_reader import require_readable
from ucpformat.storage.reading.read_plan import planned_reads
from ucpformat.text import human_bytes

if TYPE_CHECKING:
    from ucpformat.drawing.bars import Bars
    from ucpformat.planning.pairing import Kind, Pairing

__all__ = ["Flow", "RankTotals", "Survey", "survey"]


@dataclass(slots=True)
class Flow:
    """Bytes that move, in how many messages or reads, and how many contiguous ranges those are."""

    nbytes: int = 0
    messages: int = 0
    ranges: int = 0

    def add(self, nbytes: int, messages: int, ranges: int) -> None:
        """Count more."""
        self.nbytes += nbytes
        self.messages += messages
        self.ranges += ranges


@dataclass(slots=True)
class RankTotals:
    """What one rank does: what stays, what it sends and receives, and what it reads out of a checkpoint.

    Ranges are those of the memory that a message leaves (sent) or enters (kept, received), or of stored
    objects (read), where ``fetched`` bytes are fetched to have the bytes asked for, checksum blocks whole.
    ``written`` bytes fill its tensors, in the data types of the target.
    """

    kept: Flow = field(default_factory=Flow)
    sent: Flow = field(default_factory=Flow)
    received: Flow = field(default_factory=Flow)
    read: Flow = field(default_factory=Flow)
    fetched: int = 0
    written: int = 0

    @property
    def moved(self) -> int:
        """Bytes that go through the rank's network or storage, either way."""
        return self.sent.nbytes + self.received.nbytes + self.fetched


@dataclass(slots=True, repr=False)
class Survey:
    """The totals of every rank, also of those that do nothing; ``lower_bound`` is in bytes.

    For a route between ranks no plan sends fewer bytes, for one out of storage none reads fewer.
    """

    pairing: Pairing
    ranks: dict[int, RankTotals]
    lower_bound: int = 0

    def __repr__(self) -> str:
        moved = human_bytes(sum(entry.moved for entry in self.ranks.values()))
        ends = f"{self.pairing.source.label} to {self.pairing.target.label}"
        return f"<Survey {ends}: {len(self.ranks)} ranks, {moved} sent, received and fetched>"

    def _repr_svg_(self) -> str:
        return self.bars().svg()

    def bars(self) -> Bars:
        """Return bars: what a rank is to hold, what of it stays in place, what it receives and sends, or fetches."""
        pairing = self.pairing
        storage = pairing.route == "storage"
        how = "out of the checkpoint" if storage else "from rank to rank"
        notes = [
            f"from {pairing.source.label} to {pairing.target.label}, {how}",
            f"{pairing.slots} slots, {human_bytes(pairing.nbytes)}",
        ]
        if storage:
            fetched = [(rank, (entry.written, entry.fetched)) for rank, entry in self.ranks.items()]
            return bars_of(notes, ("is to hold", "fetches"), fetched)
        moved = [
            (rank, (entry.written, entry.kept.nbytes, entry.received.nbytes, entry.sent.nbytes))
            for rank, entry in self.ranks.items()
        ]
        return bars_of(notes, ("is to hold", "has", "receives", "sends"), moved)


def survey(pairing: Pairing) -> Survey:
    """Count what every rank moves; raises as `geometry.lower` and `geometry.Exchange`."""
    sides = [pairing.target] if pairing.route == "storage" else [pairing.source, pairing.target]
    ranks = sorted(set[int]().union(*(side.ranks() for side in sides)))
    found = Survey(pairing, {rank: RankTotals() for rank in ranks})
    table = ExchangeTable(pairing.source.layouts, pairing.target.layouts)
    for kind in pairing.kinds:
        with about(kind.names[0]):
            if pairing.route == "storage":
                _count_reads(found, kind)
            else:
                _count_copies(found, kind, table)
    return found


def _count_copies(found: Survey, kind: Kind, table: ExchangeTable) -> None:
    if kind.source is None:  # pragma: no cover - kinds between ranks have a source
        return
    exchange = table.exchange(kind.source, kind.target)
    item = kind.dtype.item_bytes
    for rank, mine in traffic(exchange, kind.turns).items():
        totals = found.ranks[rank]
        for flow, amount in (
            (totals.kept, mine.kept),
            (totals.sent, mine.sent),
            (totals.received, mine.received),
        ):
            flow.add(amount.elements * item, amount.copies, amount.runs)
        totals.written += (
            _written(mine.kept, mine.received, len(exchange.sharings)) * kind.target_dtype.item_bytes
        )
    found.lower_bound += exchange.lower_bound() * item * len(kind.names)


def _written(kept: Amount, received: Amount, contributions: int) -> int:
    """Return elements written, each once, however many contributions are reduced to it."""
    return (kept.elements + received.elements) // contributions


def _count_reads(found: Survey, kind: Kind) -> None:
    stored, layout = kind.stored, found.pairing.target.layouts[kind.target.layout]
    if stored is None:  # pragma: no cover - kinds out of storage lie somewhere
        return
    require_readable(layout, found.pairing.source.saved_under(stored.slot), kind.dtype, at="")
    lowering = lower(layout, kind.target.shape, place=kind.target.place)
    times = len(kind.names)
    for region in lowering.filled():
        needed = fetched = reads = 0
        for read in planned_reads(stored, lowering.view, region.local_map.pieces):
            needed += read.needed
            fetched += read.stop - read.start
            reads += 1
        mapped = region.local_map.mapped
        for rank in region.holders:
            totals = found.ranks[rank]
            totals.read.add(needed * times, reads * times, reads * times)
            totals.fetched += fetched * times
            totals.written += mapped * kind.target_dtype.item_bytes * times
        found.lower_bound += needed * times * len(region.holders)
