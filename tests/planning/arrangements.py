"""Arrangements, checkpoints and pairings for the tests of plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.geometry.strategies import placed_layouts, shapes
from ucpformat.geometry import BufferPlace, Layout
from ucpformat.model.arrangement import ArrangedAtom, Arrangement
from ucpformat.model.atom import Slot
from ucpformat.planning import Side, arrangement_side


@dataclass(frozen=True)
class Held:
    """A slot as a test states it."""

    dtype: str
    shape: tuple[int, ...]
    layout: Layout | None
    place: BufferPlace | None = None


def arranged(slots: Mapping[tuple[str, str], Held]) -> Arrangement:
    """An arrangement document of these slots."""
    layouts = tuple(dict.fromkeys(held.layout for held in slots.values() if held.layout is not None))
    meshes = tuple(dict.fromkeys(layout.mesh for layout in layouts))
    atoms: dict[str, list[Slot]] = {}
    for (atom, name), held in slots.items():
        index = None if held.layout is None else layouts.index(held.layout)
        atoms.setdefault(atom, []).append(Slot(name, held.dtype, held.shape, index, place=held.place))
    return Arrangement(
        meshes,
        layouts,
        tuple(
            ArrangedAtom(name, tuple(sorted(found, key=lambda slot: slot.name)))
            for name, found in atoms.items()
        ),
    )


def side(label: str, slots: Mapping[tuple[str, str], Held]) -> Side:
    """An arrangement as one side of a plan."""
    return arrangement_side(label, arranged(slots))


DTYPES = ("float32", "bfloat16", "int8")


@st.composite
def two_sides(draw: st.DrawFn) -> tuple[dict[tuple[str, str], Held], dict[tuple[str, str], Held]]:
    """The same slots under two jobs: several are spread alike."""
    before: dict[tuple[str, str], Held] = {}
    after: dict[tuple[str, str], Held] = {}
    for kind in range(draw(st.integers(1, 3))):
        shape = draw(shapes(max_elements=60))
        here, there = (draw(placed_layouts(shape, kinds="view pad concat")) for _ in range(2))
        types = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(DTYPES))
        for number in range(draw(st.integers(1, 4))):
            name = (f"layers.{number}.w{kind}", "value")
            before[name], after[name] = Held(types[0], shape, *here), Held(types[1], shape, *there)
    return before, after
