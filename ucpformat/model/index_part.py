"""Index parts: runs of atoms, read strictly, and written as text (SPEC 11.1).

The texts are those that ``dumps_canonical`` makes of ``to_json``, without the objects of `Atom` and `Slot`. The slots
of a model repeat few names, types and shapes, so that what they share is made once, and a slot adds its content digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ucpformat.errors import Problem, UcpError
from ucpformat.jsonio import dumps_canonical, pointer, quoted
from ucpformat.model.atom import Atom, Slot, place_to_json
from ucpformat.model.fields import array, below, members, raise_first, relocated
from ucpformat.model.part_columns import PartColumns, SoundAtoms, sound_atoms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ucpformat.geometry import BufferPlace
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.compressor import Compressor


__all__ = [
    "IndexPart",
    "atom_text",
    "part_text",
    "slot_text",
]

_PART_REQUIRED: Final = frozenset({"atoms"})
_NONE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class IndexPart:
    """A run of atoms, sorted by the UTF-8 bytes of their names."""

    atoms: Sequence[Atom]

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> IndexPart:
        """Read an index part and check its content.

        Raises the first by precedence: ``UCP-E-SCHEMA``, then what `problems` finds.
        """
        atoms = sound_atoms(_items(value, at))
        if atoms is not None:
            return cls(atoms)
        part = cls.structure(value, at=at)
        raise_first(part.problems(at=at))
        return part

    @classmethod
    def structure(cls, value: JsonValue, *, at: str) -> IndexPart:
        """Read an index part without a look at its content; raises ``UCP-E-SCHEMA``."""
        items = _items(value, at)
        atoms: list[Atom] = []
        try:
            for item in items:
                atoms.append(Atom._read(item))  # noqa: PERF401  # its length is the place of a refusal
        except UcpError as refusal:
            raise relocated(refusal, pointer(at, "atoms", len(atoms))) from None
        return cls(tuple(atoms))

    def problems(self, *, at: str) -> Iterator[Problem]:
        """Yield what is wrong with the content: ``UCP-E-KEY``, ``UCP-E-NAME``, ``UCP-E-DTYPE``, ``UCP-E-SHAPE``.

        What depends on other documents is not looked at: layouts, other parts, the root's `Part`.
        """
        names: set[str] = set()
        owners: dict[str, str] = {}
        before = ""
        for index, atom in enumerate(self.atoms):
            found = [] if atom.is_sound() else [*atom.problems()]
            if index and atom.name <= before:
                message = (
                    f"{atom.name[:80]!r} must come after {before[:80]!r}: atoms are sorted by UTF-8 bytes"
                )
                found.append(Problem("UCP-E-NAME", "#/name", message))
            folded = atom.key.lower()
            if folded in owners:
                message = f"the key is also that of {owners[folded][:80]!r}, if case is ignored"
                found.append(Problem("UCP-E-KEY", "#/key", message))
            owners[folded] = before = atom.name
            for place, name in (("#/name", atom.name), *atom.alias_places()):
                if name in names:
                    found.append(Problem("UCP-E-NAME", place, f"the name {name[:80]!r} is used twice"))
                names.add(name)
            if found:
                yield from below(found, pointer(at, "atoms", index))

    def columns(self) -> PartColumns:
        """Return what it takes to find slots, without making atoms where they are `SoundAtoms`."""
        return self.atoms.columns if isinstance(self.atoms, SoundAtoms) else PartColumns.of(self.atoms)

    def reference_problems(self, layouts: int, *, at: str) -> Iterator[Problem]:
        """Yield ``UCP-E-REFERENCE`` for slots whose layout is not one of the root's ``layouts`` (UCP-D-032)."""
        if isinstance(self.atoms, SoundAtoms) and self.atoms.columns.highest_layout < layouts:
            return
        for index, atom in enumerate(self.atoms):
            for slot in atom.slots:
                if slot.layout is not None and slot.layout >= layouts:
                    yield Problem(
                        "UCP-E-REFERENCE",
                        pointer(at, "atoms", index, "slots", slot.name, "layout"),
                        f"the root has {layouts} layouts, and none with the index {slot.layout}",
                    )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return {"atoms": [atom.to_json() for atom in self.atoms]}


def _items(value: JsonValue, at: str) -> list[JsonValue]:
    found = members(value, _PART_REQUIRED, _NONE, at)
    return array(found["atoms"], pointer(at, "atoms"), least=1)


def slot_text(
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    *,
    layout: int | None = None,
    place: BufferPlace | None = None,
    compressor: Compressor | None = None,
    content: str | None = None,
    annotations: Mapping[str, JsonValue],
) -> str:
    """Return a slot as a member of ``slots``."""
    text = _head(name, dtype, shape, layout)
    if place is not None:
        text += f',"place":{_text(place_to_json(place))}'
    if compressor is not None:
        text += f',"compressor":{_text(compressor.to_json())}'
    if content is not None:
        text += f',"content":"{content}"'
    if annotations:
        text += f',"annotations":{_text(dict(annotations))}'
    return text + "}"


@lru_cache(maxsize=4096)
def _head(name: str, dtype: str, shape: tuple[int, ...], layout: int | None) -> str:
    return f"{quoted(name)}:{_text(Slot(name, dtype, shape, layout).to_json())[:-1]}"


def atom_text(
    name: str,
    key: str,
    slots: Sequence[str],
    *,
    aliases: Sequence[str] = (),
    annotations: Mapping[str, JsonValue],
) -> str:
    """Return an atom of slots of these texts, in the order of their names."""
    text = f'{{"name":{quoted(name)},"key":{quoted(key)},"slots":{{{",".join(slots)}}}'
    if aliases:
        text += f',"aliases":{_text(list(aliases))}'
    if annotations:
        text += f',"annotations":{_text(dict(annotations))}'
    return text + "}"


def part_text(atoms: Sequence[str]) -> str:
    """Return an index part of atoms of these texts."""
    return f'{{"atoms":[{",".join(atoms)}]}}'


def _text(value: JsonValue) -> str:
    return dumps_canonical(value).decode()
