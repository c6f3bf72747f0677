"""Index parts: runs of atoms, read strictly (SPEC 11.1), and kept column by column.

A part has thousands of atoms, and whoever opens it asks for few of them, or for the place of each. So what has to be
checked of all is checked for whole columns at once. These alone are kept, and an `Atom` is made when it is asked for.
Where something is unusual, atoms are made and checked one by one, to say what is wrong, if anything is.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from ucpformat.errors import Problem, UcpError
from ucpformat.jsonio import MAX_INTEGER, pointer
from ucpformat.model.atom import (
    ATOM_OPTIONAL,
    ATOM_REQUIRED,
    CONTENT_DIGITS,
    CONTENT_PREFIX,
    SLOT_OPTIONAL,
    SLOT_REQUIRED,
    Atom,
    Slot,
    place_from_json,
    slot_problems,
)
from ucpformat.model.compressor import Compressor
from ucpformat.model.fields import array as json_array
from ucpformat.model.fields import below, members, raise_first, relocated
from ucpformat.model.names import RESERVED_COMPONENTS, are_components, are_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ucpformat.geometry import BufferPlace
    from ucpformat.jsonio import JsonValue

__all__ = ["IndexPart", "PartColumns", "SoundAtoms", "sound_atoms"]

_ATOM_MEMBERS: Final = ATOM_REQUIRED | ATOM_OPTIONAL
_SLOT_MEMBERS: Final = SLOT_REQUIRED | SLOT_OPTIONAL
_NO_CONTENT: Final = CONTENT_PREFIX + CONTENT_DIGITS * "0"
_DIGEST_BYTES: Final = CONTENT_DIGITS // 2
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Contents:
    """Content digests of slots in 32 bytes each, ``known`` telling which slots have one."""

    known: bytes
    digests: bytes

    @classmethod
    def of(cls, values: Sequence[str | None]) -> Contents:
        """Return those of slots in order; raises ``ValueError`` or ``TypeError`` for what is none."""
        known = bytes([value is not None for value in values])
        texts = [_NO_CONTENT if value is None else value for value in values]
        together = "".join(texts)
        if not {*map(len, texts)} <= {len(_NO_CONTENT)} or not all(
            together[place :: len(_NO_CONTENT)] == letter * len(texts)
            for place, letter in enumerate(CONTENT_PREFIX)
        ):
            raise ValueError
        # Where a prefix stands elsewhere as well, digits are missing; upper-case digits are none.
        digits = together.replace(CONTENT_PREFIX, "")
        digests = bytes.fromhex(digits)
        if len(digits) != CONTENT_DIGITS * len(texts) or digests.hex() != digits:
            raise ValueError
        return cls(known, digests)

    def __len__(self) -> int:
        return len(self.known)

    def __getitem__(self, number: int) -> str | None:
        if not self.known[number]:
            return None
        first = number * _DIGEST_BYTES
        return CONTENT_PREFIX + self.digests[first : first + _DIGEST_BYTES].hex()


@dataclass(frozen=True, slots=True)
class PartColumns:
    """All that a part says of its atoms, which are sorted, and of their slots, in order of table rows.

    ``counts`` are the slots of each atom. What few have is by number: ``aliases`` and ``atom_annotations`` of atoms,
    ``places``, ``compressors`` and ``annotations`` of slots.
    """

    atoms: list[str]
    keys: list[str]
    counts: list[int]
    slots: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    layouts: list[int | None]
    contents: Contents
    places: dict[int, BufferPlace]
    compressors: dict[int, Compressor]
    annotations: dict[int, Mapping[str, JsonValue]]
    aliases: dict[int, tuple[str, ...]]
    atom_annotations: dict[int, Mapping[str, JsonValue]]

    @classmethod
    def of(cls, atoms: Sequence[Atom]) -> PartColumns:
        """Return the columns of atoms."""
        slots = [slot for atom in atoms for slot in atom.slots]
        return cls(
            [atom.name for atom in atoms],
            [atom.key for atom in atoms],
            [len(atom.slots) for atom in atoms],
            [slot.name for slot in slots],
            [slot.dtype for slot in slots],
            [slot.shape for slot in slots],
            [slot.layout for slot in slots],
            Contents.of([slot.content for slot in slots]),
            {number: slot.place for number, slot in enumerate(slots) if slot.place is not None},
            {number: slot.compressor for number, slot in enumerate(slots) if slot.compressor is not None},
            {number: slot.annotations for number, slot in enumerate(slots) if slot.annotations},
            {position: atom.aliases for position, atom in enumerate(atoms) if atom.aliases},
            {position: atom.annotations for position, atom in enumerate(atoms) if atom.annotations},
        )

    @property
    def highest_layout(self) -> int:
        """The highest index of a layout; -1 without one."""
        return max((layout for layout in {*self.layouts} if layout is not None), default=-1)

    def atom(self, position: int, first_slot: int) -> Atom:
        """Return one atom, whose slots begin at a number."""
        numbers = range(first_slot, first_slot + self.counts[position])
        slots = tuple(
            Slot(
                self.slots[number],
                self.dtypes[number],
                self.shapes[number],
                self.layouts[number],
                self.compressors.get(number),
                self.contents[number],
                self.annotations.get(number, {}),
                self.places.get(number),
            )
            for number in numbers
        )
        return Atom(
            self.atoms[position],
            self.keys[position],
            slots,
            self.aliases.get(position, ()),
            self.atom_annotations.get(position, {}),
        )


class SoundAtoms(Sequence[Atom]):
    """Atoms of a part that has no problems, as columns; each is made when it is asked for."""

    def __init__(self, columns: PartColumns) -> None:
        self.columns = columns
        self._first_slots = array("q", accumulate(columns.counts, initial=0))

    def __len__(self) -> int:
        return len(self.columns.atoms)

    @overload
    def __getitem__(self, index: int) -> Atom: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Atom, ...]: ...
    def __getitem__(self, index: int | slice) -> Atom | tuple[Atom, ...]:
        positions = range(len(self.columns.atoms))[index]
        if isinstance(positions, range):
            return tuple(self.columns.atom(position, self._first_slots[position]) for position in positions)
        return self.columns.atom(positions, self._first_slots[positions])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SoundAtoms | tuple) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as tuples that hold JSON


class _Objects:
    """JSON objects of one kind; ``members`` are those that any of them has."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self.members = {*chain.from_iterable(values)}

    def all(self, member: str) -> list[Any]:
        """Return the values of a member that all have; raises ``KeyError``."""
        return [*map(itemgetter(member), self._values)]

    def some(self, member: str) -> dict[int, Any]:
        """Return the values of a member that some have, by the object's number."""
        if member not in self.members:
            return {}
        return {number: one[member] for number, one in enumerate(self._values) if member in one}


def sound_atoms(values: Sequence[JsonValue]) -> SoundAtoms | None:
    """Return the atoms, of which there are some, of a part that has no problems; None where it takes a closer look."""
    with suppress(KeyError, TypeError, ValueError, UcpError):  # of what is no object, or lacks a member
        atoms = _Objects(values)
        by_atom: list[dict[str, Any]] = atoms.all("slots")
        aliases = {position: tuple(_list(found)) for position, found in atoms.some("aliases").items()}
        if not _atoms_are_sound(atoms, by_atom, [*chain.from_iterable(aliases.values())]):
            return None
        by_atom = [*map(_in_order, by_atom)]
        slots = _Objects([*chain.from_iterable(map(dict.values, by_atom))])
        layouts, contents = slots.some("layout"), slots.some("content")
        dtypes, shapes = slots.all("dtype"), slots.all("shape")
        if not _slots_are_sound(slots, dtypes, shapes, layouts, contents):
            return None
        names = atoms.all("name")
        numbers = range(len(dtypes))
        # The slots of a model repeat few types and shapes.
        columns = PartColumns(
            names,
            [name if key == name else key for name, key in zip(names, atoms.all("key"), strict=True)],
            [*map(len, by_atom)],
            [*chain.from_iterable(by_atom)],
            _shared(dtypes),
            _shared(map(tuple, shapes)),
            [*map(layouts.get, numbers)],
            Contents.of([*map(contents.get, numbers)]),
            {number: place_from_json(found, "") for number, found in slots.some("place").items()},
            {number: Compressor.from_json(one, at="") for number, one in slots.some("compressor").items()},
            slots.some("annotations"),
            aliases,
            atoms.some("annotations"),
        )
        forms = {*zip(columns.slots, columns.dtypes, columns.shapes, strict=True)}
        if not any(slot_problems(*form) for form in forms):
            return SoundAtoms(columns)
    return None


def _atoms_are_sound(atoms: _Objects, by_atom: Sequence[object], aliases: list[str]) -> bool:
    names, keys = atoms.all("name"), atoms.all("key")
    folded = {*map(str.lower, keys)}
    return (
        _have_types(chain(names, keys, aliases), str)
        and _have_types(by_atom, dict)
        and all(by_atom)
        and _have_types(atoms.some("annotations").values(), dict)
        and atoms.members <= _ATOM_MEMBERS
        and are_names([*names, *aliases])
        and all(map(operator.lt, names, islice(names, 1, None)))
        and are_components(keys)
        and len(folded) == len(keys)
        and RESERVED_COMPONENTS.isdisjoint(folded)
        and (not aliases or len({*names, *aliases}) == len(names) + len(aliases))
    )


def _slots_are_sound(
    slots: _Objects,
    dtypes: list[Any],
    shapes: list[Any],
    layouts: dict[int, Any],
    contents: dict[int, Any],
) -> bool:
    extents = [*chain.from_iterable(shapes)]
    return (
        slots.members <= _SLOT_MEMBERS
        and _have_types(dtypes, str)
        and _have_types(shapes, list)
        and _have_types(chain(extents, layouts.values()), int)
        and _have_types(contents.values(), str)
        and min(extents, default=0) >= 0
        and max(extents, default=0) <= MAX_INTEGER
        and min(layouts.values(), default=0) >= 0
        and max(layouts.values(), default=0) <= MAX_INTEGER
        and _have_types(slots.some("annotations").values(), dict)
    )


def _have_types(values: Iterable[object], kind: type) -> bool:
    return {*map(type, values)} <= {kind}  # a bool is no int


def _list(value: object) -> list[Any]:
    if type(value) is not list:
        raise TypeError
    return value


def _in_order(slots: dict[str, Any]) -> dict[str, Any]:
    """Return slots in the order of their names, which differ if case is ignored."""
    if len(slots) < 2:
        return slots
    names = tuple(slots)
    ordered = _ordered(names)
    return slots if ordered == names else {name: slots[name] for name in ordered}


# The atoms of a model repeat few slots.
@lru_cache(maxsize=256)
def _ordered(names: tuple[str, ...]) -> tuple[str, ...]:
    if len({*map(str.lower, names)}) < len(names):
        raise TypeError
    return tuple(sorted(names))


def _shared(values: Iterable[_T]) -> list[_T]:
    """Return the values, of which those that are equal, and of one type, are one object."""
    known: dict[_T, _T] = {}
    return [known.setdefault(value, value) for value in values]


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
    found = members(value, frozenset({"atoms"}), frozenset(), at)
    return json_array(found["atoms"], pointer(at, "atoms"), least=1)
