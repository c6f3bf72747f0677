"""Atoms, their slots, and places of tensors in buffers (SPEC 11.1, 12.1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Final

from ucpformat.errors import Problem, UcpError, error
from ucpformat.geometry import BufferPlace
from ucpformat.jsonio import MAX_INTEGER, pointer
from ucpformat.model.compressor import Compressor
from ucpformat.model.dtype import dtype
from ucpformat.model.fields import (
    array,
    below,
    integer,
    integers,
    members,
    object_,
    relocated,
    string,
)
from ucpformat.model.names import (
    MAX_NAME_BYTES,
    RESERVED_COMPONENTS,
    case_problems,
    component_problems,
    is_component,
    name_problems,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.geometry import BufferPlace
    from ucpformat.jsonio import JsonValue

__all__ = [
    "ATOM_OPTIONAL",
    "ATOM_REQUIRED",
    "CONTENT_DIGITS",
    "CONTENT_PREFIX",
    "MAX_NDIM",
    "MAX_SLOT_NAME",
    "SLOT_OPTIONAL",
    "SLOT_REQUIRED",
    "Atom",
    "Slot",
    "place_from_json",
    "place_to_json",
    "slot_problems",
]

MAX_NDIM: Final = 32
MAX_SLOT_NAME: Final = 64
CONTENT_PREFIX: Final = "crc32c-tree:"
CONTENT_DIGITS: Final = 64
_CONTENT: Final = re.compile(rf"{CONTENT_PREFIX}[0-9a-f]{{{CONTENT_DIGITS}}}")
SLOT_REQUIRED: Final = frozenset({"dtype", "shape"})
SLOT_OPTIONAL: Final = frozenset({"layout", "place", "compressor", "content", "annotations"})
ATOM_REQUIRED: Final = frozenset({"name", "key", "slots"})
ATOM_OPTIONAL: Final = frozenset({"aliases", "annotations"})


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of an atom's state: its data type, its logical shape in elements, and how it is kept.

    ``layout`` is an index into the root's layouts, ``place`` where the tensor lies in the buffer of such a
    layout (SPEC 12.1), ``content`` a content digest (SPEC 11.3).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: int | None = None
    compressor: Compressor | None = None
    content: str | None = None
    annotations: Mapping[str, JsonValue] = field(default_factory=dict)
    place: BufferPlace | None = None

    @classmethod
    def _read(cls, name: str, value: JsonValue) -> Slot:
        """Read the slot ``name``; raises ``UCP-E-SCHEMA`` at a place relative to it."""
        found = members(value, SLOT_REQUIRED, SLOT_OPTIONAL, "")
        dtype = string(found["dtype"], "#/dtype")
        shape = integers(found["shape"], "#/shape")
        if len(found) == 2:
            return cls(name, dtype, shape)
        layout = compressor = content = place = None
        annotations: Mapping[str, JsonValue] = {}
        if "layout" in found:
            layout = integer(found["layout"], "#/layout")
        if "place" in found:
            place = place_from_json(found["place"], "#/place")
        if "compressor" in found:
            compressor = Compressor.from_json(found["compressor"], at="#/compressor")
        if "content" in found:
            content = _content(found["content"])
        if "annotations" in found:
            annotations = object_(found["annotations"], "#/annotations")
        return cls(name, dtype, shape, layout, compressor, content, annotations, place)

    @classmethod
    def from_json(cls, name: str, value: JsonValue, *, at: str) -> Slot:
        """Read the slot ``name``; raises ``UCP-E-SCHEMA``."""
        try:
            return cls._read(name, value)
        except UcpError as refusal:
            raise relocated(refusal, at) from None

    def problems(self) -> tuple[Problem, ...]:
        """Return ``UCP-E-KEY``, ``UCP-E-DTYPE`` and ``UCP-E-SHAPE``, at places relative to the slot."""
        return slot_problems(self.name, self.dtype, self.shape)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads; what is absent is left out."""
        value: dict[str, JsonValue] = {"dtype": self.dtype, "shape": list(self.shape)}
        if self.layout is not None:
            value["layout"] = self.layout
        if self.place is not None:
            value["place"] = place_to_json(self.place)
        if self.compressor is not None:
            value["compressor"] = self.compressor.to_json()
        if self.content is not None:
            value["content"] = self.content
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return value


# The slots of a model repeat few names, types and shapes.
@lru_cache(maxsize=4096)
def slot_problems(name: str, dtype_name: str, shape: tuple[int, ...]) -> tuple[Problem, ...]:
    """Return ``UCP-E-KEY``, ``UCP-E-DTYPE`` and ``UCP-E-SHAPE``, at places relative to the slot."""
    found = [*component_problems(name, "")]
    if len(name) > MAX_SLOT_NAME:
        found.append(Problem("UCP-E-KEY", "", f"a slot name has at most {MAX_SLOT_NAME} characters"))
    item_bytes = 1
    try:
        item_bytes = dtype(dtype_name, at="#/dtype").item_bytes
    except UcpError as refusal:
        found.append(refusal.problem())
    if len(shape) > MAX_NDIM:
        message = f"a tensor has at most {MAX_NDIM} dimensions, not {len(shape)}"
        found.append(Problem("UCP-E-SHAPE", "#/shape", message))
    elif prod(extent or 1 for extent in shape) * item_bytes > MAX_INTEGER:
        message = "the slot would have more than 2**53 - 1 bytes, extents of 0 counted as 1"
        found.append(Problem("UCP-E-SHAPE", "#/shape", message))
    return tuple(found)


def _content(value: JsonValue) -> str:
    content = string(value, "#/content")
    if not _CONTENT.fullmatch(content):
        message = "a content digest is 'crc32c-tree:' and 64 lower-case hexadecimal digits"
        raise error("UCP-E-SCHEMA", message, at="#/content")
    return content


@dataclass(frozen=True, slots=True)
class Atom:
    """One parameter or buffer with all its slots, sorted by name."""

    name: str
    key: str
    slots: tuple[Slot, ...]
    aliases: tuple[str, ...] = ()
    annotations: Mapping[str, JsonValue] = field(default_factory=dict)

    def slot(self, name: str) -> Slot:
        """Return the slot ``name``; raises ``KeyError``."""
        for slot in self.slots:
            if slot.name == name:
                return slot
        raise KeyError(name)

    def alias_places(self) -> Iterator[tuple[str, str]]:
        """Return every alias after its place relative to the atom."""
        return ((f"#/aliases/{index}", alias) for index, alias in enumerate(self.aliases))

    def is_sound(self) -> bool:
        """Return whether `problems` finds nothing, told quickly; False where it takes a closer look."""
        return (
            not self.aliases
            and is_component(self.key)
            and self.key.lower() not in RESERVED_COMPONENTS
            and self.name.isascii()
            and self.name.isprintable()
            and 1 <= len(self.name) <= MAX_NAME_BYTES
            and not any(slot_problems(slot.name, slot.dtype, slot.shape) for slot in self.slots)
            and (len(self.slots) == 1 or len({slot.name.lower() for slot in self.slots}) == len(self.slots))
        )

    def problems(self) -> Iterator[Problem]:
        """Yield ``UCP-E-KEY``, ``UCP-E-NAME`` and the problems of the slots, at places relative to the atom."""
        yield from component_problems(self.key, "#/key")
        yield from name_problems(self.name, "#/name")
        for place, alias in self.alias_places():
            yield from name_problems(alias, place)
        for slot in self.slots:
            if found := slot.problems():
                yield from below(found, pointer("#/slots", slot.name))
        if len({slot.name.lower() for slot in self.slots}) < len(self.slots):
            yield from case_problems((slot.name, pointer("#/slots", slot.name)) for slot in self.slots)

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Atom:
        """Read an atom; raises ``UCP-E-SCHEMA``."""
        try:
            return cls._read(value)
        except UcpError as refusal:
            raise relocated(refusal, at) from None

    @classmethod
    def _read(cls, value: JsonValue) -> Atom:
        found = members(value, ATOM_REQUIRED, ATOM_OPTIONAL, "")
        name = string(found["name"], "#/name")
        key = string(found["key"], "#/key")
        slots: list[Slot] = []
        slot_name = ""
        items = object_(found["slots"], "#/slots").items()
        if not items:
            raise error("UCP-E-SCHEMA", "an atom has at least one slot", at="#/slots")
        try:
            for slot_name, slot in items:
                slots.append(Slot._read(slot_name, slot))  # its name is the place of a refusal
        except UcpError as refusal:
            raise relocated(refusal, pointer("#/slots", slot_name)) from None
        # Not every language keeps the order of members: what counts is the names' (UCP-D-029).
        if len(slots) > 1:
            slots.sort(key=lambda slot: slot.name)
        if len(found) == 3:
            return cls(name, key, tuple(slots))
        aliases = array(found.get("aliases", []), "#/aliases")
        return cls(
            name,
            key,
            tuple(slots),
            tuple(string(alias, f"#/aliases/{index}") for index, alias in enumerate(aliases)),
            object_(found.get("annotations", {}), "#/annotations"),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads; what is absent is left out."""
        value: dict[str, JsonValue] = {
            "name": self.name,
            "key": self.key,
            "slots": {slot.name: slot.to_json() for slot in self.slots},
        }
        if self.aliases:
            value["aliases"] = list(self.aliases)
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return value


_REQUIRED: Final = frozenset({"offsets", "totals"})
_OPTIONAL: Final = frozenset({"axes"})


def place_from_json(value: JsonValue, at: str) -> BufferPlace:
    """Read the ``place`` of a slot in its buffer; raises ``UCP-E-SCHEMA``."""
    found = members(value, _REQUIRED, _OPTIONAL, at)
    here = pointer(at, "axes")
    return BufferPlace(
        integers(found["offsets"], pointer(at, "offsets"), items=1),
        integers(found["totals"], pointer(at, "totals"), items=1),
        tuple(
            string(axis, pointer(here, index))
            for index, axis in enumerate(array(found.get("axes", []), here))
        ),
    )


def place_to_json(place: BufferPlace) -> dict[str, JsonValue]:
    """Return the JSON object of a place; without axes where it is the same everywhere."""
    value: dict[str, JsonValue] = {"offsets": list(place.offsets), "totals": list(place.totals)}
    if place.axes:
        value["axes"] = list(place.axes)
    return value
