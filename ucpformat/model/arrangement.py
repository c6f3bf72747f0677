"""Arrangement documents: how the ranks of a job hold a model, without its bytes (SPEC-ARRANGEMENTS).

They are read by planners, beside checkpoints, whose meshes, layouts and slots have the same form.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ucpformat.errors import Problem, UcpError, error
from ucpformat.geometry import Layout, Mesh
from ucpformat.jsonio import pointer
from ucpformat.model.atom import Slot
from ucpformat.model.envelope import Envelope
from ucpformat.model.fields import array, below, members, object_, raise_first, relocated, string
from ucpformat.model.layout_json import LayoutRecord, MeshRecord, layout_to_json, mesh_to_json, resolve
from ucpformat.model.names import case_problems, name_problems
from ucpformat.model.standalone import parse_standalone, standalone_members

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ucpformat.jsonio import JsonValue

__all__ = ["KIND", "ArrangedAtom", "Arrangement", "parse_arrangement"]

KIND: Final = "arrangement"
_NONE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class ArrangedAtom:
    """The slots of one atom, sorted by name; what an index part says of keys and aliases is not asked for."""

    name: str
    slots: tuple[Slot, ...]

    @classmethod
    def _read(cls, value: JsonValue) -> ArrangedAtom:
        """Read an atom; raises ``UCP-E-SCHEMA`` at a place relative to it."""
        found = members(value, frozenset({"name", "slots"}), _NONE, "")
        name = string(found["name"], "#/name")
        items = object_(found["slots"], "#/slots").items()
        if not items:
            raise error("UCP-E-SCHEMA", "an atom has at least one slot", at="#/slots")
        slots = [
            Slot.from_json(slot_name, slot, at=pointer("#/slots", slot_name)) for slot_name, slot in items
        ]
        return cls(name, tuple(sorted(slots, key=lambda slot: slot.name)))

    def problems(self) -> Iterator[Problem]:
        """Yield ``UCP-E-NAME`` and the problems of the slots, at places relative to the atom."""
        yield from name_problems(self.name, "#/name")
        for slot in self.slots:
            if found := slot.problems():
                yield from below(found, pointer("#/slots", slot.name))
        if len({slot.name.lower() for slot in self.slots}) < len(self.slots):
            yield from case_problems((slot.name, pointer("#/slots", slot.name)) for slot in self.slots)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object of the atom."""
        return {"name": self.name, "slots": {slot.name: slot.to_json() for slot in self.slots}}


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Meshes, layouts, and the atoms that are spread by them, in any order."""

    meshes: tuple[Mesh, ...]
    layouts: tuple[Layout, ...]
    atoms: tuple[ArrangedAtom, ...]
    envelope: Envelope = field(default_factory=Envelope)

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Arrangement:
        """Read an arrangement document and check its content.

        Raises the first by precedence: ``UCP-E-FORMAT``, ``UCP-E-VERSION``, ``UCP-E-FEATURE``,
        ``UCP-E-EXTENSION``, ``UCP-E-SCHEMA``, then ``UCP-E-LIMIT``, ``UCP-E-KEY``, ``UCP-E-NAME``,
        ``UCP-E-REFERENCE``, ``UCP-E-DTYPE``, ``UCP-E-SHAPE``, ``UCP-E-LAYOUT``.
        """
        arrangement, problems = cls.structure(value, at=at)
        raise_first(problems)
        return arrangement

    @classmethod
    def structure(cls, value: JsonValue, *, at: str) -> tuple[Arrangement, tuple[Problem, ...]]:
        """Read a structurally sound document, and say what is wrong with its content; raises the former."""
        faults: list[Problem] = []
        needed = frozenset({"meshes", "layouts", "atoms"})
        found = standalone_members(value, KIND, needed, _NONE, faults, at=at)
        meshes = [
            MeshRecord.from_json(mesh, at=pointer(at, "meshes", index))
            for index, mesh in enumerate(array(found["meshes"], pointer(at, "meshes")))
        ]
        layouts = [
            LayoutRecord.from_json(layout, at=pointer(at, "layouts", index))
            for index, layout in enumerate(array(found["layouts"], pointer(at, "layouts")))
        ]
        items = array(found["atoms"], pointer(at, "atoms"))
        atoms: list[ArrangedAtom] = []
        try:
            for item in items:
                atoms.append(ArrangedAtom._read(item))  # noqa: PERF401  # its length is the place of a refusal
        except UcpError as refusal:
            raise relocated(refusal, pointer(at, "atoms", len(atoms))) from None
        resolved = resolve(meshes, layouts, at=at)
        arrangement = cls(resolved.meshes, resolved.layouts, tuple(atoms), Envelope.from_json(value, at=at))
        problems = (*faults, *resolved.problems, *_atom_problems(atoms, len(layouts), at))
        return arrangement, problems

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return {
            **self.envelope.to_json(),
            "kind": KIND,
            "meshes": [mesh_to_json(mesh) for mesh in self.meshes],
            "layouts": [layout_to_json(layout, self.meshes) for layout in self.layouts],
            "atoms": [atom.to_json() for atom in self.atoms],
        }


def parse_arrangement(data: bytes, *, at: str) -> Arrangement:
    """Parse the bytes of an arrangement document; raises UCP-E-JSON, UCP-E-LIMIT, and as `Arrangement.from_json`."""
    return Arrangement.from_json(parse_standalone(data, at=at), at=at)


def _atom_problems(atoms: Sequence[ArrangedAtom], layouts: int, at: str) -> Iterator[Problem]:
    names: set[str] = set()
    for index, atom in enumerate(atoms):
        here = pointer(at, "atoms", index)
        yield from below(atom.problems(), here)
        if atom.name in names:
            yield Problem("UCP-E-NAME", f"{here}/name", f"the name {atom.name[:80]!r} is used twice")
        names.add(atom.name)
        for slot in atom.slots:
            if slot.layout is not None and slot.layout >= layouts:
                where = pointer(here, "slots", slot.name, "layout")
                message = f"there are {layouts} layouts, and none with the index {slot.layout}"
                yield Problem("UCP-E-REFERENCE", where, message)
