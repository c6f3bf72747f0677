"""Descriptions of what ranks have to save, and the whole that they make.

A description is the same on all ranks that hold their tensors alike, wherever they stand on the mesh: such ranks
compare digests, and only what differs is sent. Of values it has digests, so that it stays small.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from ucpformat import geometry
from ucpformat.distributed.group import Group, agreed
from ucpformat.errors import error
from ucpformat.gc_pause import paused
from ucpformat.jsonio import dumps_canonical
from ucpformat.model.compressor import Compressor
from ucpformat.model.state import Optimizer, ParameterGroup
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from ucpformat.distributed.local_state import LocalState, SlotName
    from ucpformat.geometry import BufferPlace, Layout
    from ucpformat.jsonio import JsonValue

__all__ = [
    "Described",
    "Description",
    "Source",
    "agree",
    "describe",
    "merged",
]

_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Source:
    """One way in which ranks hold a slot; ``layout`` None is all of it on each."""

    layout: Layout | None
    place: BufferPlace | None
    ranks: frozenset[int]


@dataclass(slots=True)
class Described:
    """What all ranks together are to save.

    ``owners`` gives for every value the first rank that lists it.
    """

    atoms: dict[str, AtomSpec] = field(default_factory=dict)
    sources: dict[SlotName, list[Source]] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    optimizers: dict[str, Optimizer] = field(default_factory=dict)
    annotations: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Description:
    """What one process has to save, as far as the others have to know it.

    ``atoms`` are in order of name; ``values`` has digests, and ``options`` what all processes have to give alike.
    """

    options: Mapping[str, JsonValue]
    atoms: Sequence[AtomSpec]
    values: Mapping[str, str]
    optimizers: Mapping[str, Optimizer]
    annotations: Mapping[str, JsonValue]

    def pack(self) -> bytes:
        """Return the bytes that `unpack` reads: those of equal descriptions are equal."""
        layouts: dict[Layout, int] = {}

        def slot(spec: SlotSpec) -> JsonValue:
            return [
                spec.dtype,
                list(spec.shape),
                None if spec.layout is None else layouts.setdefault(spec.layout, len(layouts)),
                None if spec.place is None else _geometry_to_json(spec.place),
                None if spec.compressor is None else spec.compressor.to_json(),
                dict(spec.annotations),
            ]

        atoms: JsonValue = [
            [
                spec.name,
                {name: slot(one) for name, one in sorted(spec.slots.items())},
                list(spec.aliases),
                dict(spec.annotations),
            ]
            for spec in self.atoms
        ]
        value: dict[str, JsonValue] = {
            "options": dict(self.options),
            "atoms": atoms,
            "layouts": [_geometry_to_json(layout) for layout in layouts],
            "values": dict(self.values),
            "optimizers": {name: optimizer.to_json() for name, optimizer in self.optimizers.items()},
            "annotations": dict(self.annotations),
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, data: bytes, known: dict[Layout, Layout]) -> Description:
        """Read the bytes of another process; layouts that are ``known`` are those objects, and others become so."""
        found = json.loads(data)
        layouts: list[Layout] = [known.setdefault(one, one) for one in map(_from_json, found["layouts"])]

        def slot(at: str, fields: Any) -> SlotSpec:
            kind, extents, number, place, compressor, notes = fields
            return SlotSpec(
                kind,
                tuple(extents),
                None if number is None else layouts[number],
                None if compressor is None else Compressor.from_json(compressor, at=at),
                notes,
                None if place is None else _from_json(place),
            )

        return cls(
            found["options"],
            [
                AtomSpec(
                    name, {one: slot(name, fields) for one, fields in slots.items()}, tuple(aliases), notes
                )
                for name, slots, aliases, notes in found["atoms"]
            ],
            found["values"],
            {name: Optimizer.from_json(value, at=name) for name, value in found["optimizers"].items()},
            found["annotations"],
        )


def describe(local: LocalState, options: Mapping[str, JsonValue]) -> Description:
    """Return a process's description; ``options`` are what all processes have to give alike."""
    return Description(
        options,
        sorted(local.atoms, key=attrgetter("name")),
        {
            name: hashlib.sha256(dumps_canonical(value)).hexdigest()
            for name, value in sorted(local.state.values.items())
        },
        dict(sorted(local.state.optimizers.items())),
        local.state.annotations,
    )


def agree(group: Group, step: Callable[[], tuple[Description, bytes]]) -> tuple[Described, list[bytes]]:
    """Return what all ranks describe, and some bytes of each; ``step`` gives this rank's description and bytes.

    Ranks compare digests, and send descriptions only where those differ. A rank alone has nobody to compare with.

    Raises:
        UcpError: as `merged`; what the step raises on any rank, all ranks raise.
    """
    own: list[Description] = []
    packed = b""

    def digest() -> bytes:
        nonlocal packed
        description, extra = step()
        own.append(description)
        if len(group.ranks) == 1:
            return bytes(_DIGEST_BYTES) + extra
        packed = description.pack()
        return hashlib.sha256(packed).digest() + extra

    replies = agreed(group, digest)
    alike: dict[bytes, list[int]] = {}
    for rank, reply in zip(group.ranks, replies, strict=True):
        alike.setdefault(reply[:_DIGEST_BYTES], []).append(rank)
    descriptions: Iterable[Description] = own
    if len(alike) > 1:
        speakers = [ranks[0] for ranks in alike.values()]
        sent = group.all_gather(packed if group.rank in speakers else b"")
        known: dict[Layout, Layout] = {}
        descriptions = (Description.unpack(sent[list(group.ranks).index(rank)], known) for rank in speakers)
    return merged(zip(descriptions, alike.values(), strict=True)), [
        reply[_DIGEST_BYTES:] for reply in replies
    ]


def merged(descriptions: Iterable[tuple[Description, Sequence[int]]]) -> Described:
    """Put distinct descriptions together, each with the ranks that gave it, in order of the first of them.

    Raises:
        UcpError: ``UCP-E-MISMATCH``, with name and ranks, where ranks contradict one another.
    """
    merger = _Merger()
    # Of many ranks these are many megabytes of small objects, in which there is nothing to collect.
    with paused:
        for description, ranks in descriptions:
            merger.add(description, ranks)
    return merger.whole


class _Merger:
    """Puts descriptions together one by one. Equal layouts, and equal sets of ranks, become one object each.

    So the work for an atom does not grow with the number of ranks, nor do comparisons of what several atoms have.
    """

    def __init__(self) -> None:
        self.whole = Described()
        self._options: tuple[Mapping[str, JsonValue], int] | None = None
        self._digests: dict[str, str] = {}
        self._layouts: dict[Layout, Layout] = {}
        self._known: dict[int, Layout] = {}
        """By the identity of a layout of the description that is being added, so that each is hashed once."""
        self._unions: dict[tuple[frozenset[int], frozenset[int]], frozenset[int]] = {}

    def add(self, found: Description, ranks: Sequence[int]) -> None:
        """Add what some ranks have described."""
        whole, first = self.whole, ranks[0]
        if self._options is not None and self._options[0] != found.options:
            message = f"ranks {self._options[1]} and {first} save with different options: give all the same"
            raise error("UCP-E-MISMATCH", message)
        self._options = (found.options, first)
        self._known = {}
        together = frozenset(ranks)
        for atom in found.atoms:
            self._add_atom(atom, together, first)
        for name, digest in found.values.items():
            owner = whole.owners.setdefault(name, first)
            if self._digests.setdefault(name, digest) != digest:
                raise error(
                    "UCP-E-MISMATCH",
                    f"the value differs between ranks {owner} and {first}; "
                    "give all ranks the same, or each a name of its own",
                    at=name,
                )
        for name, optimizer in found.optimizers.items():
            _add_optimizer(whole, name, optimizer, first)
        _fill(whole.annotations, found.annotations)

    def _add_atom(self, atom: AtomSpec, ranks: frozenset[int], first: int) -> None:
        name = atom.name
        known = self.whole.atoms.get(name)
        specs = {} if known is None else dict(known.slots)
        for slot, given in sorted(atom.slots.items()):
            spec = self._with_one_layout(given)
            other = specs.setdefault(slot, spec)
            if (other.dtype, other.shape, other.compressor) != (spec.dtype, spec.shape, spec.compressor):
                raise error(
                    "UCP-E-MISMATCH",
                    f"rank {first} has {spec.dtype}{list(spec.shape)}, "
                    f"another has {other.dtype}{list(other.shape)}",
                    at=f"{name}/{slot}",
                )
            self._add_source((name, slot), spec, ranks)
        if known is None:
            self.whole.atoms[name] = AtomSpec(name, specs, tuple(sorted(set(atom.aliases))), atom.annotations)
        else:
            also = tuple(sorted({*known.aliases, *atom.aliases}))
            self.whole.atoms[name] = AtomSpec(name, specs, also, known.annotations)

    def _with_one_layout(self, spec: SlotSpec) -> SlotSpec:
        """Return the same with the one object that all equal layouts become."""
        if spec.layout is None:
            return spec
        layout = self._known.get(id(spec.layout))
        if layout is None:
            layout = self._known[id(spec.layout)] = self._layouts.setdefault(spec.layout, spec.layout)
        return spec if layout is spec.layout else replace(spec, layout=layout)

    def _add_source(self, name: SlotName, spec: SlotSpec, ranks: frozenset[int]) -> None:
        sources = self.whole.sources.setdefault(name, [])
        for number, one in enumerate(sources):
            if one.layout is spec.layout and one.place == spec.place:
                pair = (one.ranks, ranks)
                if pair not in self._unions:
                    self._unions[pair] = one.ranks | ranks
                del sources[number]
                ranks = self._unions[pair]
                break
        sources.append(Source(spec.layout, spec.place, ranks))


def _add_optimizer(whole: Described, name: str, optimizer: Optimizer, rank: int) -> None:
    """Add parameter groups, merged over all ranks: a stage of a pipeline lists only its own parameters."""
    known = whole.optimizers.setdefault(name, optimizer)
    if known is optimizer or known == optimizer:
        return
    if [group.options for group in known.groups] != [group.options for group in optimizer.groups]:
        message = f"rank {rank} has other groups or options than an earlier one"
        raise error("UCP-E-MISMATCH", message, at=name)
    whole.optimizers[name] = Optimizer(
        tuple(
            ParameterGroup(tuple(dict.fromkeys((*mine.atoms, *theirs.atoms))), mine.options)
            for mine, theirs in zip(known.groups, optimizer.groups, strict=True)
        )
    )


def _fill(known: dict[str, JsonValue], more: Mapping[str, JsonValue]) -> None:
    """Add what is not there yet, at any depth."""
    for name, value in more.items():
        mine = known.setdefault(name, value)
        if mine is not value and isinstance(mine, dict) and isinstance(value, dict):
            _fill(mine, value)


_KINDS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        geometry.BlockRule,
        geometry.Blocks,
        geometry.BufferPlace,
        geometry.Concat,
        geometry.Flatten,
        geometry.Join,
        geometry.Layout,
        geometry.LocalOnly,
        geometry.Mesh,
        geometry.MeshAxis,
        geometry.Only,
        geometry.Pad,
        geometry.Partial,
        geometry.Permute,
        geometry.RaggedAxis,
        geometry.Scale,
        geometry.Shard,
        geometry.View,
    )
}
_FRACTION: Final = "Fraction"


def _geometry_to_json(value: object) -> JsonValue:
    """Return a layout or a place: dataclasses as an object of their name and fields, tuples as arrays."""
    if isinstance(value, tuple):
        return [_geometry_to_json(item) for item in value]
    if isinstance(value, Fraction):
        return {_FRACTION: [value.numerator, value.denominator]}
    if type(value).__name__ in _KINDS:
        found = cast("Any", value)
        return {
            type(value).__name__: [_geometry_to_json(getattr(found, item.name)) for item in fields(found)]
        }
    return cast("JsonValue", value)


def _from_json(value: JsonValue) -> Any:
    """Return the layout or place that `_geometry_to_json` was given."""
    if isinstance(value, list):
        return tuple(map(_from_json, value))
    if isinstance(value, dict):
        ((name, arguments),) = value.items()
        made = map(_from_json, cast("list[JsonValue]", arguments))
        return Fraction(*made) if name == _FRACTION else _KINDS[name](*made)
    return value
