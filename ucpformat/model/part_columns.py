"""The atoms of an index part, column by column (SPEC 11.1).

A part has thousands of atoms, and whoever opens it asks for few of them, or for the place of each. So what has to be
checked of all is checked for whole columns at once, and an `Atom` is made when it is asked for. Whatever is unusual
about a part is left to `IndexPart`, which says what is wrong, if anything is.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, cast, overload

from ucpformat.errors import UcpError
from ucpformat.jsonio import MAX_INTEGER
from ucpformat.model.atom import (
    ATOM_OPTIONAL,
    ATOM_REQUIRED,
    CONTENT_DIGITS,
    CONTENT_PREFIX,
    SLOT_OPTIONAL,
    SLOT_REQUIRED,
    Atom,
    slot_problems,
)
from ucpformat.model.compressor import Compressor
from ucpformat.model.names import RESERVED_COMPONENTS, are_names, is_component
from ucpformat.model.place import place_from_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ucpformat.jsonio import JsonValue

__all__ = ["PartColumns", "SoundAtoms", "sound_atoms"]

_ATOM_MEMBERS: Final = ATOM_REQUIRED | ATOM_OPTIONAL
_SLOT_MEMBERS: Final = SLOT_REQUIRED | SLOT_OPTIONAL
_Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PartColumns:
    """What it takes to find the slots of a part: of atoms their names and keys, and of slots, in order of table rows.

    ``counts`` are the slots of each atom, ``compressors`` those of the slots that have one, by number; ``contents``
    are content digests, ``aliases`` those of all atoms. ``spread``: whether any slot has a layout or a place.
    """

    atoms: list[str]
    keys: list[str]
    counts: list[int]
    slots: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    compressors: dict[int, Compressor]
    highest_layout: int
    spread: bool
    contents: list[str | None]
    aliases: list[str]

    @classmethod
    def of(cls, atoms: Sequence[Atom]) -> PartColumns:
        """The columns of atoms."""
        slots = [slot for atom in atoms for slot in atom.slots]
        return cls(
            [atom.name for atom in atoms],
            [atom.key for atom in atoms],
            [len(atom.slots) for atom in atoms],
            [slot.name for slot in slots],
            [slot.dtype for slot in slots],
            [slot.shape for slot in slots],
            {number: slot.compressor for number, slot in enumerate(slots) if slot.compressor is not None},
            max((slot.layout for slot in slots if slot.layout is not None), default=-1),
            any(slot.layout is not None or slot.place is not None for slot in slots),
            [slot.content for slot in slots],
            [alias for atom in atoms for alias in atom.aliases],
        )


class SoundAtoms(Sequence[Atom]):
    """Atoms of a part that has no problems, still JSON; each is made when it is asked for."""

    def __init__(self, values: Sequence[_Object], columns: PartColumns) -> None:
        self._values = values
        self.columns = columns

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> Atom: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Atom, ...]: ...
    def __getitem__(self, index: int | slice) -> Atom | tuple[Atom, ...]:
        if isinstance(index, slice):
            return tuple(Atom.from_json(value, at="") for value in self._values[index])
        return Atom.from_json(self._values[index], at="")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SoundAtoms | tuple) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as JSON


def sound_atoms(values: Sequence[JsonValue]) -> SoundAtoms | None:
    """The atoms, of which there are some, of a part that has no problems; None where it takes a closer look."""
    atoms = cast("Sequence[_Object]", values)
    with suppress(KeyError, TypeError, ValueError, UcpError):  # of what is no object, or lacks a member
        aliases: list[str] = [*chain.from_iterable(map(_list, _of(atoms, "aliases")))]
        if not _atoms_are_sound(atoms, aliases):
            return None
        by_atom = [_in_order(atom["slots"]) for atom in atoms]
        if 0 in map(len, by_atom):
            return None
        names = [*chain.from_iterable(by_atom)]
        slots: list[_Object] = [*chain.from_iterable(of_atom.values() for of_atom in by_atom)]
        columns = PartColumns(
            [atom["name"] for atom in atoms],
            [atom["key"] for atom in atoms],
            [*map(len, by_atom)],
            names,
            [slot["dtype"] for slot in slots],
            [_extents(slot["shape"]) for slot in slots],
            _compressors(slots),
            max(_of(slots, "layout"), default=-1),
            any("layout" in slot or "place" in slot for slot in slots),
            [slot.get("content") for slot in slots],
            aliases,
        )
        if _slots_are_sound(slots, columns):
            return SoundAtoms(atoms, columns)
    return None


def _atoms_are_sound(atoms: Sequence[_Object], aliases: list[str]) -> bool:
    names = [atom["name"] for atom in atoms]
    keys = [atom["key"] for atom in atoms]
    folded = {*map(str.lower, keys)}
    return (
        _have_types(chain(names, keys, aliases), str)
        and _have_types([atom["slots"] for atom in atoms], dict)
        and _have_types(_of(atoms, "annotations"), dict)
        and _have_no_others(atoms, _ATOM_MEMBERS)
        and are_names([*names, *aliases])
        and all(map(operator.lt, names, islice(names, 1, None)))
        and all(map(is_component, keys))
        and len(folded) == len(keys)
        and RESERVED_COMPONENTS.isdisjoint(folded)
        and (not aliases or len({*names, *aliases}) == len(names) + len(aliases))
    )


def _slots_are_sound(slots: Sequence[_Object], columns: PartColumns) -> bool:
    extents = [*chain.from_iterable(columns.shapes)]
    layouts, contents = _of(slots, "layout"), _of(slots, "content")
    for place in _of(slots, "place"):
        place_from_json(place, "")
    return (
        _have_no_others(slots, _SLOT_MEMBERS)
        and _have_types(columns.dtypes, str)
        and _have_types(chain(extents, layouts), int)
        and min(extents, default=0) >= 0
        and max(extents, default=0) <= MAX_INTEGER
        and min(layouts, default=0) >= 0
        and columns.highest_layout <= MAX_INTEGER
        and _have_types(contents, str)
        and _are_digests(contents)
        and _have_types(_of(slots, "annotations"), dict)
        # The slots of a model repeat few names, types and shapes.
        and not any(
            slot_problems(*form)
            for form in {*zip(columns.slots, columns.dtypes, columns.shapes, strict=True)}
        )
    )


def _of(objects: Iterable[_Object], member: str) -> list[Any]:
    """The values of an optional member, where it is there."""
    return [one[member] for one in objects if member in one]


def _have_types(values: Iterable[object], kind: type) -> bool:
    return {*map(type, values)} <= {kind}  # a bool is no int


def _have_no_others(objects: Sequence[_Object], known: frozenset[str]) -> bool:
    return known.issuperset(chain.from_iterable(objects))


def _are_digests(contents: Sequence[str]) -> bool:
    """Whether all are content digests; one look at the digits of all is quicker than one at each."""
    start = len(CONTENT_PREFIX)
    digits = "".join([content[start:] for content in contents])
    return (
        {*map(len, contents)} <= {start + CONTENT_DIGITS}
        and {content[:start] for content in contents} <= {CONTENT_PREFIX}
        and bytes.fromhex(digits).hex() == digits
    )


def _list(value: object) -> list[Any]:
    if type(value) is not list:
        raise TypeError
    return value


def _extents(shape: object) -> tuple[Any, ...]:
    return tuple(_list(shape))


def _in_order(slots: _Object) -> _Object:
    """Slots in the order of their names, which differ if case is ignored."""
    if len(slots) < 2:
        return slots
    if len({*map(str.lower, slots)}) < len(slots):
        raise TypeError
    return dict(sorted(slots.items()))


def _compressors(slots: Sequence[_Object]) -> dict[int, Compressor]:
    return {
        number: Compressor.from_json(slot["compressor"], at="")
        for number, slot in enumerate(slots)
        if "compressor" in slot
    }
