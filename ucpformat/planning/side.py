"""One side of a plan: the slots of a model and how ranks hold them, from whatever says so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ucpformat.geometry import Layout, Spread
from ucpformat.patterns import Patterns, Settings, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ucpformat.model.arrangement import Arrangement
    from ucpformat.model.atom import Slot
    from ucpformat.reader import Checkpoint

__all__ = ["Side", "SlotName", "arrangement_side", "checkpoint_side", "patterns_side"]

SlotName = tuple[str, str]
"""Name of an atom, and of its slot."""


@dataclass(frozen=True, slots=True)
class Side:
    """Slots by name, in any order, with layouts by index; ``checkpoint`` is where their bytes are, if anywhere."""

    label: str
    layouts: tuple[Layout, ...]
    slots: Mapping[SlotName, Slot]
    checkpoint: Checkpoint | None = None

    def spread(self, name: SlotName) -> Spread | None:
        """Return how a slot is spread, or None where that is not said."""
        slot = self.slots[name]
        return None if slot.layout is None else Spread(slot.layout, slot.shape, slot.place)

    def ranks(self) -> set[int]:
        """Return the ranks of all meshes."""
        meshes = {layout.mesh for layout in self.layouts}
        return {mesh.rank_at(position) for mesh in meshes for position in range(mesh.size)}

    def saved_under(self, slot: Slot) -> Layout | None:
        """Return the layout of a slot, None where it has none."""
        return None if slot.layout is None else self.layouts[slot.layout]


def checkpoint_side(label: str, checkpoint: Checkpoint) -> Side:
    """Return what an open checkpoint says; every index part is read."""
    slots = {(stored.atom.name, stored.slot.name): stored.slot for stored in checkpoint.slots()}
    return Side(label, checkpoint.root.layouts, slots, checkpoint)


def arrangement_side(label: str, arrangement: Arrangement) -> Side:
    """Return what an arrangement document says."""
    slots = {(atom.name, slot.name): slot for atom in arrangement.atoms for slot in atom.slots}
    return Side(label, arrangement.layouts, slots)


def patterns_side(label: str, patterns: Patterns, other: Side, settings: Settings) -> Side:
    """Return the slots of the other side, spread as patterns say; raises as `patterns.resolve`."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for (atom, name), slot in other.slots.items():
        shapes.setdefault(atom, {})[name] = slot.shape
    numbers: dict[Layout, int] = {}
    slots = {
        name: replace(other.slots[name], layout=numbers.setdefault(layout, len(numbers)))
        for name, layout in resolve(patterns, shapes, settings).items()
    }
    unheld = {name: replace(slot, layout=None) for name, slot in other.slots.items() if name not in slots}
    return Side(label, tuple(numbers), {**slots, **unheld})
