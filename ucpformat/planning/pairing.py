"""Which slots of two sides belong together, by kind: those that are spread, and stored, alike (SPEC-ARRANGEMENTS)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ucpformat.errors import UcpError, error
from ucpformat.geometry import Spread
from ucpformat.model.dtype import DType, dtype
from ucpformat.model.names import fits_glob
from ucpformat.planning.side import Side, SlotName
from ucpformat.storage.reading.read_plan import storage_pattern

if TYPE_CHECKING:
    from ucpformat.storage.reading.stored_slot import StoredSlot

__all__ = ["Kind", "Pairing", "Route", "Unplanned", "about", "pair"]

Route = Literal["ranks", "storage"]
"""Where a target rank gets what it lacks: from other ranks, or out of the checkpoint."""


@dataclass(slots=True)
class Kind:
    """Slots that are alike in all that a plan depends on, in order of name.

    ``source`` is None for a route out of storage. The first slot has the turn ``first_turn`` among those that
    are spread alike, the others follow (see `geometry.sharing`). ``stored`` is where the first one lies.
    """

    source: Spread | None
    target: Spread
    dtype: DType
    target_dtype: DType
    stored: StoredSlot | None
    names: list[SlotName] = field(default_factory=list)
    first_turn: int = 0

    @property
    def turns(self) -> range:
        """The turns of its slots."""
        return range(self.first_turn, self.first_turn + len(self.names))

    @property
    def nbytes(self) -> int:
        """Logical bytes of all its slots, as the source has them."""
        return math.prod(self.target.shape) * self.dtype.item_bytes * len(self.names)


@dataclass(frozen=True, slots=True)
class Unplanned:
    """A slot of which nothing moves, and why."""

    name: SlotName
    why: Literal[
        "not in the source", "not in the target", "no layout in the source", "no layout in the target"
    ]


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two sides, the kinds of slots that go from one to the other, and what does not."""

    source: Side
    target: Side
    route: Route
    kinds: tuple[Kind, ...]
    unplanned: tuple[Unplanned, ...]

    @property
    def slots(self) -> int:
        """How many slots go."""
        return sum(len(kind.names) for kind in self.kinds)

    @property
    def nbytes(self) -> int:
        """Logical bytes of all slots that go, as the source has them."""
        return sum(kind.nbytes for kind in self.kinds)


@contextmanager
def about(name: SlotName) -> Iterator[None]:
    """Say in refusals, which know of a layout alone, which slot they are about."""
    try:
        yield
    except UcpError as refusal:
        raise error(refusal.code, refusal.message, at=f"{'/'.join(name)}#{refusal.at}") from None


def pair(source: Side, target: Side, route: Route, *, atoms: str = "*") -> Pairing:
    """Bring the slots of atoms whose names match the glob ``atoms`` together.

    Raises:
        UcpError: ``UCP-E-MISMATCH``: a slot has another shape in the target, or the route is out of storage and
            the source is no checkpoint.
    """
    if route == "storage" and source.checkpoint is None:
        raise error("UCP-E-MISMATCH", "only a checkpoint has bytes to read: plan from rank to rank")
    kinds: dict[object, Kind] = {}
    unplanned: list[Unplanned] = []
    for name in sorted(source.slots.keys() | target.slots.keys()):
        if not fits_glob(atoms, name[0]):
            continue
        if name not in target.slots or name not in source.slots:
            side: Literal["not in the target", "not in the source"]
            side = "not in the target" if name in source.slots else "not in the source"
            unplanned.append(Unplanned(name, side))
            continue
        before, after = source.spread(name), target.spread(name)
        if after is None:
            unplanned.append(Unplanned(name, "no layout in the target"))
        elif before is None and route == "ranks":
            unplanned.append(Unplanned(name, "no layout in the source"))
        else:
            _join(kinds, source, target, name, before if route == "ranks" else None, after)
    turns: dict[tuple[int, int], int] = {}
    for kind in kinds.values():
        if kind.source is not None:
            layouts = (kind.source.layout, kind.target.layout)
            kind.first_turn = turns.get(layouts, 0)
            turns[layouts] = kind.first_turn + len(kind.names)
    return Pairing(source, target, route, tuple(kinds.values()), tuple(unplanned))


def _join(
    kinds: dict[object, Kind],
    source: Side,
    target: Side,
    name: SlotName,
    before: Spread | None,
    after: Spread,
) -> None:
    slot, other = source.slots[name], target.slots[name]
    if slot.shape != other.shape:
        message = f"{list(slot.shape)} in {source.label}, {list(other.shape)} in {target.label}"
        raise error("UCP-E-MISMATCH", f"the slot has another shape: {message}", at="/".join(name))
    stored = None
    key: tuple[object, ...] = (before, after, slot.dtype, other.dtype)
    if before is None and source.checkpoint is not None:
        stored = source.checkpoint[name[0]][name[1]].stored
        saved = source.saved_under(slot)
        entries = None if saved is None or saved.entries is None else slot.layout
        key = (*key, slot.compressor is None, entries, *storage_pattern(stored))
    kind = kinds.get(key)
    if kind is None:
        kind = kinds[key] = Kind(before, after, dtype(slot.dtype), dtype(other.dtype), stored)
    kind.names.append(name)
