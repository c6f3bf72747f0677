"""Atom maps (SPEC-ATOM-MAPS): ordered entries, each two ways to put one tensor together of atoms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from ucpformat.errors import Problem, UcpError, error
from ucpformat.jsonio import pointer
from ucpformat.model.fields import (
    array,
    choice,
    integer,
    members,
    raise_first,
    relocated,
    string,
    wrong_type,
)
from ucpformat.model.standalone import parse_standalone, standalone_members
from ucpformat.patterns.document import read_globs
from ucpformat.patterns.expression import Scope
from ucpformat.patterns.glob import Glob, Kind, is_identifier, parse_glob
from ucpformat.patterns.parameters import Parameters
from ucpformat.patterns.template import RESERVED_NAMES, Template, parse_template

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = [
    "AtomMapDocument",
    "Each",
    "Entry",
    "Joined",
    "Leaf",
    "Node",
    "Same",
    "Side",
    "leaves",
    "parse_atom_map",
]

KIND: Final = "atom-map"
Direction = Literal["left", "right"]
_REQUIRED: Final = frozenset({"entries"})
_OPTIONAL: Final = frozenset({"parameters", "description"})
_ENTRY_OPTIONAL: Final = frozenset({"slots", "description"})
_LEAF_OPTIONAL: Final = frozenset({"shape", "view", "permute"})
_EACH: Final = frozenset({"each", "below", "item"})
_NONE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Leaf:
    """An atom: its name, its shape where stated, and how it is seen before it is joined with others."""

    name: Glob
    shape: Template | None
    view: Template | None
    permute: Template | None
    at: str


@dataclass(frozen=True, slots=True)
class Each:
    """``item`` for every value of ``index`` from 0 to below ``below``."""

    index: str
    below: Template
    item: Node


@dataclass(frozen=True, slots=True)
class Joined:
    """Tensors that lie one after another along ``dim``: a new one (``stack``), or one they have (``concat``)."""

    kind: Literal["stack", "concat"]
    dim: int
    of: tuple[Node, ...] | Each
    at: str


@dataclass(frozen=True, slots=True)
class Same:
    """Atoms that hold the same elements."""

    of: tuple[Leaf, ...] | Each
    at: str


Node = Leaf | Joined | Same
Side = Node | tuple[Glob, ...] | None
"""Of an entry: a tensor; or what the other side has nothing for; or that nothing."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Two sides that make the same tensor, for the slots that match one of ``slots``, or for all."""

    left: Side
    right: Side
    slots: tuple[Glob, ...] | None
    captures: tuple[str, ...]
    """What all its names capture, but for indices of ``each``."""
    at: str

    def side(self, direction: Direction) -> Side:
        """Return its left or its right."""
        return self.left if direction == "left" else self.right

    def takes_slot(self, slot: str) -> bool:
        """Return whether the entry is about slots of this name."""
        return self.slots is None or any(glob.match(slot) is not None for glob in self.slots)


@dataclass(frozen=True, slots=True)
class AtomMapDocument:
    """An atom map. ``document`` is the JSON that it was read from."""

    parameters: Parameters
    entries: tuple[Entry, ...]
    document: dict[str, Any]
    at: str

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> AtomMapDocument:
        """Read an atom map that lies at the place ``at``.

        Raises UCP-E-FORMAT, UCP-E-VERSION, UCP-E-SCHEMA, then the first by precedence of UCP-E-LIMIT,
        UCP-E-FEATURE-SET, UCP-E-PATTERN.
        """
        faults: list[Problem] = []
        found = standalone_members(value, KIND, _REQUIRED, _OPTIONAL, faults, at=at)
        string(found.get("description", ""), pointer(at, "description"))
        parameters = Parameters.from_json(found.get("parameters", []), faults, at=pointer(at, "parameters"))
        here = pointer(at, "entries")
        entries = tuple(
            _entry(entry, parameters.scope, faults, pointer(here, place))
            for place, entry in enumerate(array(found["entries"], here))
        )
        raise_first(faults)
        return cls(parameters, entries, found, at)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return self.document


def parse_atom_map(data: bytes, *, at: str = "atom-map.json") -> AtomMapDocument:
    """Parse the bytes of an atom map; raises as `parse_standalone` and `AtomMapDocument.from_json`."""
    return AtomMapDocument.from_json(parse_standalone(data, at=at), at=at)


def leaves(node: Node) -> Iterator[Leaf]:
    """Yield the atoms of a side, in order; those under an ``each`` once."""
    match node:
        case Leaf():
            yield node
        case Joined(of=Each(item=item)) | Same(of=Each(item=item)):
            yield from leaves(item)
        case Joined(of=of) | Same(of=of):
            assert not isinstance(of, Each)  # noqa: S101  # the case before
            for item in of:
                yield from leaves(item)


def _entry(value: JsonValue, parameters: Scope, faults: list[Problem], at: str) -> Entry:
    found = members(value, frozenset({"left", "right"}), _ENTRY_OPTIONAL, at)
    string(found.get("description", ""), pointer(at, "description"))
    slots = read_globs(found["slots"], faults, at=pointer(at, "slots")) if "slots" in found else None
    if found["left"] is None or found["right"] is None:
        kept = "right" if found["left"] is None else "left"
        globs = read_globs(found[kept], faults, at=pointer(at, kept))
        return Entry(None, globs, slots, (), at) if kept == "right" else Entry(globs, None, slots, (), at)
    reading = _Reading(parameters, faults)
    left = reading.side(found["left"], pointer(at, "left"))
    right = reading.side(found["right"], pointer(at, "right"))
    return Entry(left, right, slots, tuple(sorted(dict(reading.common or ()))), at)


class _Reading:
    """Reads the sides of one entry; they share their captures."""

    def __init__(self, parameters: Scope, faults: list[Problem]) -> None:
        self.parameters = parameters
        self.faults = faults
        self.common: frozenset[tuple[str, Kind]] | None = None

    def side(self, value: JsonValue, at: str) -> Node:
        return self._node(value, {}, True, at)

    def _fault(self, message: str, at: str) -> None:
        self.faults.append(Problem("UCP-E-PATTERN", at, message))

    def _node(self, value: JsonValue, indices: Scope, outermost: bool, at: str) -> Node:
        if isinstance(value, str):
            return self._leaf({"name": value}, indices, at, pointer(at))
        if type(value) is not dict:
            raise wrong_type(value, "a string or an object", at)
        if "kind" not in value:
            raise error("UCP-E-SCHEMA", "a tensor has the member 'kind', or is the name of an atom", at=at)
        kind = choice(value["kind"], ("atom", "stack", "concat", "same"), pointer(at, "kind"))
        if kind == "atom":
            found = members(value, frozenset({"kind", "name"}), _LEAF_OPTIONAL, at)
            string(found["name"], pointer(at, "name"))
            return self._leaf(found, indices, at, pointer(at, "name"))
        if kind == "same":
            return self._same(value, indices, outermost, at)
        found = members(value, frozenset({"kind", "dim", "of"}), _NONE, at)
        dim = integer(found["dim"], pointer(at, "dim"), most=31)
        of = self._of(found["of"], indices, pointer(at, "of"))
        if kind == "concat":
            for leaf in leaves(Joined("concat", dim, of, at)):
                if leaf.shape is None:
                    self._fault("an atom below 'concat' states its 'shape', for the way back", leaf.at)
        return Joined("stack" if kind == "stack" else "concat", dim, of, at)

    def _same(self, value: Mapping[str, JsonValue], indices: Scope, outermost: bool, at: str) -> Same:
        found = members(dict(value), frozenset({"kind", "of"}), _NONE, at)
        here = pointer(at, "of")
        if not outermost:
            self._fault("'same' is a whole side, and not a part of a tensor", at)
        names = found["of"]
        if type(names) is list:
            for place, name in enumerate(names):
                string(name, pointer(here, place))
        elif type(names) is dict and "item" in names:
            string(names["item"], pointer(here, "item"))
        return Same(cast("tuple[Leaf, ...] | Each", self._of(names, indices, here)), at)

    def _of(self, value: JsonValue, indices: Scope, at: str) -> tuple[Node, ...] | Each:
        if type(value) is list:
            array(value, at, least=1)
            return tuple(
                self._node(item, indices, False, pointer(at, place)) for place, item in enumerate(value)
            )
        if type(value) is not dict:
            raise wrong_type(value, "an array, or an object with 'each'", at)
        found = members(value, _EACH, _NONE, at)
        index = string(found["each"], pointer(at, "each"))
        taken = {*self.parameters, *indices, *RESERVED_NAMES}
        if not is_identifier(index) or index in taken:
            self._fault(
                f"{index!r} cannot name an index: take letters, digits and _, and a name not used yet",
                pointer(at, "each"),
            )
        below = self._template(found["below"], indices, pointer(at, "below"))
        inner: Scope = {**indices, index: "integer"}
        return Each(index, below, self._node(found["item"], inner, False, pointer(at, "item")))

    def _leaf(self, found: Mapping[str, JsonValue], indices: Scope, at: str, name_at: str) -> Leaf:
        name = str(found["name"])
        try:
            glob = parse_glob(name)
        except UcpError as refusal:
            self.faults.append(relocated(refusal, name_at).problem())
            glob = parse_glob("unreadable")
        self._check_captures(glob, indices, name_at)
        scope: Scope = {**indices, **{key: "integer" for key, kind in glob.captures if kind == "int"}}
        shape, view, permute = (
            self._extents(found[member], scope, pointer(at, member)) if member in found else None
            for member in ("shape", "view", "permute")
        )
        if view is not None and shape is None:
            self._fault("an atom with a 'view' states its 'shape', for the way back", at)
        return Leaf(glob, shape, view, permute, at)

    def _check_captures(self, glob: Glob, indices: Scope, at: str) -> None:
        captures = frozenset(glob.captures)
        if not glob.is_template:
            self._fault(f"{glob.text!r} is no template: a name is made of captures alone, without *", at)
            return
        inner = frozenset((index, "int") for index in indices)
        if not inner <= captures:
            self._fault(f"{glob.text!r} does not name the index of every 'each' around it", at)
        if any(name in self.parameters or name in RESERVED_NAMES for name, _ in captures):
            self._fault(f"a capture of {glob.text!r} has a name that is taken", at)
        outer = captures - inner
        if self.common is None:
            self.common = outer
        if outer != self.common:
            self._fault(f"{glob.text!r} has other captures than the names before it in this entry", at)

    def _extents(self, value: JsonValue, scope: Scope, at: str) -> Template:
        if type(value) is not list and not (type(value) is dict and "each" in value):
            raise wrong_type(value, "an array", at)
        return self._template(value, scope, at)

    def _template(self, value: JsonValue, scope: Scope, at: str) -> Template:
        return parse_template(value, {**self.parameters, **scope}, self.faults, at=at)
