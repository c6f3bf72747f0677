"""Atom maps applied (SPEC-ATOM-MAPS): which atoms are made, of which elements, and that nothing is left over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from ucpformat.errors import UcpError, error
from ucpformat.geometry import Move, compose_atoms
from ucpformat.jsonio import pointer
from ucpformat.patterns.atom_map_document import leaves
from ucpformat.patterns.atom_map_sides import (
    Group,
    Shape,
    Tensor,
    expanded,
    hub_map,
    parts_of,
    relocate,
    shapes_from_hub,
)
from ucpformat.patterns.nearest import Candidate, unmatched

if TYPE_CHECKING:
    from ucpformat.patterns.atom_map_document import AtomMapDocument, Entry, Node
    from ucpformat.patterns.expression import Environment
    from ucpformat.patterns.glob import Captures, Glob
    from ucpformat.patterns.parameters import Settings
    from ucpformat.patterns.resolution import AtomShapes

__all__ = ["AtomMapping", "Direction", "MappedSlot", "Part", "apply_atom_map"]

Direction = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Part:
    """What one atom gives to a slot: elements that ``move`` takes from its row-major memory to the slot's."""

    source: str
    move: Move


@dataclass(frozen=True, slots=True)
class MappedSlot:
    """A slot that is made: the parts fill a tensor of ``shape``, each element once."""

    atom: str
    slot: str
    shape: Shape
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class AtomMapping:
    """What an atom map makes of the atoms there are.

    ``equal`` lists ``(atom, other atom, slot)`` that have to hold equal elements, since only the first is
    used; ``dropped`` lists ``(atom, slot)`` that an entry says are for nothing.
    """

    slots: tuple[MappedSlot, ...]
    equal: tuple[tuple[str, str, str], ...]
    dropped: tuple[tuple[str, str], ...]

    @property
    def shapes(self) -> dict[str, dict[str, Shape]]:
        """The atoms that are made: name to slot to shape."""
        found: dict[str, dict[str, Shape]] = {}
        for made in self.slots:
            found.setdefault(made.atom, {})[made.slot] = made.shape
        return found


def apply_atom_map(
    document: AtomMapDocument, atoms: AtomShapes, parameters: Settings | None = None, *, towards: Direction
) -> AtomMapping:
    """Return what the map makes of ``atoms``, which are those of the other side: of the left ``towards="right"``.

    Every slot is used by the first entry that has its atom on that side and takes it, or dropped by one.

    Raises UCP-E-UNMATCHED: no entry has a slot. UCP-E-MISMATCH: an entry lacks other atoms, or shapes do not
    fit. UCP-E-NAME: two entries make one slot. UCP-E-PATTERN, UCP-E-SCHEMA, UCP-E-LIMIT: parameters are
    missing or superfluous, or a template has no fitting value.
    """
    application = _Application(document, {} if parameters is None else parameters, atoms, towards)
    return application.mapping()


@dataclass(slots=True)
class _Instance:
    """An entry for one set of captures: the tensors that it takes and that it makes."""

    entry: Entry
    sources: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    names: frozenset[str]
    form: tuple[object, ...]


@dataclass(slots=True)
class _Use:
    """An instance for one slot: the atoms that were found for it."""

    instance: _Instance
    slot: str
    found: set[str] = field(default_factory=set)


class _Application:
    def __init__(
        self, document: AtomMapDocument, settings: Settings, atoms: AtomShapes, towards: Direction
    ) -> None:
        self.document = document
        self.atoms = atoms
        self.towards: Direction = towards
        self.away: Direction = "left" if towards == "right" else "right"
        try:
            self.environment: Environment = document.parameters.environment(settings)
        except UcpError as refusal:
            raise refusal if refusal.at else error(refusal.code, refusal.message, at=document.at) from None
        self.instances: dict[tuple[str, tuple[tuple[str, str | int], ...]], _Instance] = {}
        self.geometry: dict[tuple[object, ...], _Made] = {}
        self.uses: dict[tuple[int, str], _Use] = {}
        self.dropped: list[tuple[str, str]] = []

    def mapping(self) -> AtomMapping:
        missing: list[tuple[str, str]] = []
        for name, slots in self.atoms.items():
            candidates = list(self._candidates(name))
            for slot in slots:
                self._take(name, slot, candidates, missing)
        if missing:
            raise unmatched(self._explanations(), missing, pointer(self.document.at, "entries"))
        made: dict[tuple[str, str], MappedSlot] = {}
        equal: list[tuple[str, str, str]] = []
        for use in self.uses.values():
            self._check_whole(use)
            for mapped in self._made(use):
                if (mapped.atom, mapped.slot) in made:
                    message = f"the slot {mapped.slot!r} of {mapped.atom!r} is made twice"
                    raise error("UCP-E-NAME", message, at=use.instance.entry.at)
                made[mapped.atom, mapped.slot] = mapped
            first, *others = use.instance.sources
            equal += [
                (one.name, other.name, use.slot)
                for tensor in others
                for one, other in zip(parts_of(first), parts_of(tensor), strict=True)
            ]
        return AtomMapping(tuple(made.values()), tuple(equal), tuple(self.dropped))

    def _candidates(self, name: str) -> Iterator[tuple[Entry, _Instance | None]]:
        """Yield entries that have ``name`` on the source side, in order, and those that drop it."""
        components = name.split(".")
        for entry in self.document.entries:
            source, target = entry.side(self.away), entry.side(self.towards)
            if source is None:
                continue
            if target is None:
                globs = cast("tuple[Glob, ...]", source)
                if any(glob.match_components(components) is not None for glob in globs):
                    yield entry, None
                continue
            for leaf in leaves(cast("Node", source)):
                captures = leaf.name.match_components(components)
                if captures is None:
                    continue
                instance = self._instance(entry, captures)
                if name in instance.names:
                    yield entry, instance
                    break

    def _instance(self, entry: Entry, captures: Captures) -> _Instance:
        """Return the instance of ``entry`` that has these captures; those that are an index of `each` do not count."""
        outer = {name: captures[name] for name in entry.captures}
        key = entry.at, tuple(outer.items())
        found = self.instances.get(key)
        if found is None:
            integers = {name: value for name, value in outer.items() if isinstance(value, int)}
            environment = {**self.environment, **integers}
            try:
                sources = expanded(cast("Node", entry.side(self.away)), outer, environment)
                targets = expanded(cast("Node", entry.side(self.towards)), outer, environment)
            except UcpError as refusal:
                raise relocate(refusal, entry.at) from None
            names = frozenset(part.name for tensor in sources for part in parts_of(tensor))
            form = tuple(map(_form, sources))
            found = self.instances[key] = _Instance(entry, sources, targets, names, form)
        return found

    def _take(
        self,
        name: str,
        slot: str,
        candidates: list[tuple[Entry, _Instance | None]],
        missing: list[tuple[str, str]],
    ) -> None:
        for entry, instance in candidates:
            if not entry.takes_slot(slot):
                continue
            if instance is None:
                self.dropped.append((name, slot))
            else:
                use = self.uses.setdefault((id(instance), slot), _Use(instance, slot))
                use.found.add(name)
            return
        missing.append((name, slot))

    def _check_whole(self, use: _Use) -> None:
        lacking = sorted(use.instance.names - use.found)
        if lacking:
            there = min(use.found)
            message = (
                f"{there!r} is there, and the slot {use.slot!r} of {lacking[0]!r} that belongs to it is not"
            )
            more = f"; {len(lacking) - 1} more are missing" if len(lacking) > 1 else ""
            raise error("UCP-E-MISMATCH", message + more, at=use.instance.entry.at)

    def _made(self, use: _Use) -> Iterator[MappedSlot]:
        instance = use.instance
        sources = [[part.name for part in parts_of(tensor)] for tensor in instance.sources]
        shapes = tuple(tuple(tuple(self.atoms[name][use.slot]) for name in names) for names in sources)
        for tensor in instance.targets:
            key = instance.form, shapes, _form(tensor)
            made = self.geometry.get(key)
            if made is None:
                try:
                    made = self.geometry[key] = _carried_parts(instance.sources, shapes, tensor)
                except UcpError as refusal:
                    raise relocate(refusal, instance.entry.at) from None
            for part, (shape, moves) in zip(parts_of(tensor), made, strict=True):
                parts = tuple(Part(sources[0][place], move) for place, move in moves)
                yield MappedSlot(part.name, use.slot, shape, parts)

    def _explanations(self) -> list[Candidate]:
        found = []
        for place, entry in enumerate(self.document.entries):
            source = entry.side(self.away)
            if source is None:
                continue
            globs = source if isinstance(source, tuple) else tuple(leaf.name for leaf in leaves(source))
            found.append(Candidate(f"entry {place}", globs, entry.slots))
        return found


_Made = list[tuple[Shape, list[tuple[int, Move]]]]
"""For each atom that is made, its shape, and what it takes of the source at each place."""


def _carried_parts(
    sources: tuple[Tensor, ...], shapes: tuple[tuple[Shape, ...], ...], target: Tensor
) -> _Made:
    source, *others = (hub_map(tensor, mine) for tensor, mine in zip(sources, shapes, strict=True))
    if any(other.shape != source.shape for other in others):
        raise error("UCP-E-MISMATCH", "atoms that are to be one have different shapes")
    target_shapes = tuple(shapes_from_hub(target, source.shape))
    made: _Made = [(shape, []) for shape in target_shapes]
    for copy in compose_atoms(source, hub_map(target, target_shapes)):
        made[int(copy.target)][1].append((int(copy.source), copy.move))
    return made


def _form(tensor: Tensor) -> tuple[object, ...]:
    """Return what decides the geometry of a side beside the shapes of its atoms."""
    if isinstance(tensor, Group):
        return (tensor.kind, tensor.dim, *map(_form, tensor.of))
    return tensor.shape, tensor.view, tensor.order
