"""Descriptions of what ranks have to save, and the whole that they make.

A description is the same on all ranks that hold their tensors alike, wherever they stand on the mesh: such ranks
compare digests, and only what differs is sent. Of values it has digests, so that it stays small.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ucpformat.distributed.geometry_json import layout_from, place_from, to_json
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

__all__ = ["Described", "Source", "agree", "describe", "merged"]

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


def describe(local: LocalState, options: Mapping[str, JsonValue]) -> bytes:
    """A process's description; ``options`` are what all processes have to give alike."""
    layouts: dict[Layout, int] = {}

    def slot(spec: SlotSpec) -> JsonValue:
        return [
            spec.dtype,
            list(spec.shape),
            None if spec.layout is None else layouts.setdefault(spec.layout, len(layouts)),
            None if spec.place is None else to_json(spec.place),
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
        for spec in sorted(local.atoms, key=lambda spec: spec.name)
    ]
    value: dict[str, JsonValue] = {
        "options": dict(options),
        "atoms": atoms,
        "layouts": [to_json(layout) for layout in layouts],
        "values": {name: _digest(value) for name, value in sorted(local.state.values.items())},
        "optimizers": {
            name: optimizer.to_json() for name, optimizer in sorted(local.state.optimizers.items())
        },
        "annotations": dict(local.state.annotations),
    }
    return json.dumps(value, separators=(",", ":")).encode()


def _digest(value: JsonValue) -> str:
    return hashlib.sha256(dumps_canonical(value)).hexdigest()


def agree(group: Group, step: Callable[[], tuple[bytes, bytes]]) -> tuple[Described, list[bytes]]:
    """What all ranks describe, and some bytes of each; ``step`` gives this rank's description and bytes.

    Ranks compare digests, and send descriptions only where those differ.

    Raises:
        UcpError: as `merged`; what the step raises on any rank, all ranks raise.
    """
    description = b""

    def digest() -> bytes:
        nonlocal description
        description, extra = step()
        return hashlib.sha256(description).digest() + extra

    replies = agreed(group, digest)
    alike: dict[bytes, list[int]] = {}
    for rank, reply in zip(group.ranks, replies, strict=True):
        alike.setdefault(reply[:_DIGEST_BYTES], []).append(rank)
    texts = [description]
    if len(alike) > 1:
        speakers = [ranks[0] for ranks in alike.values()]
        sent = group.all_gather(description if group.rank in speakers else b"")
        texts = [sent[list(group.ranks).index(rank)] for rank in speakers]
    return merged(zip(texts, alike.values(), strict=True)), [reply[_DIGEST_BYTES:] for reply in replies]


def merged(descriptions: Iterable[tuple[bytes, Sequence[int]]]) -> Described:
    """Put distinct descriptions together, each with the ranks that gave it, in order of the first of them.

    Raises:
        UcpError: ``UCP-E-MISMATCH``, with name and ranks, where ranks contradict one another.
    """
    merger = _Merger()
    # Of many ranks these are many megabytes of small objects, in which there is nothing to collect.
    with paused():
        for data, ranks in descriptions:
            merger.add(json.loads(data), ranks)
    return merger.whole


class _Merger:
    """Puts descriptions together one by one. Equal layouts, and equal sets of ranks, become one object each.

    So the work for an atom does not grow with the number of ranks, nor do comparisons of what several atoms have.
    """

    def __init__(self) -> None:
        self.whole = Described()
        self._options: tuple[Any, int] | None = None
        self._digests: dict[str, str] = {}
        self._layouts: dict[Layout, Layout] = {}
        self._unions: dict[tuple[frozenset[int], frozenset[int]], frozenset[int]] = {}

    def add(self, found: Any, ranks: Sequence[int]) -> None:
        whole, first = self.whole, ranks[0]
        if self._options is not None and self._options[0] != found["options"]:
            message = f"ranks {self._options[1]} and {first} save with different options: give all the same"
            raise error("UCP-E-MISMATCH", message)
        self._options = (found["options"], first)
        layouts = [self._layouts.setdefault(one, one) for one in map(layout_from, found["layouts"])]
        together = frozenset(ranks)
        for atom in found["atoms"]:
            self._add_atom(atom, layouts, together, first)
        for name, digest in found["values"].items():
            owner = whole.owners.setdefault(name, first)
            if self._digests.setdefault(name, digest) != digest:
                raise error(
                    "UCP-E-MISMATCH",
                    f"the value differs between ranks {owner} and {first}; "
                    "give all ranks the same, or each a name of its own",
                    at=name,
                )
        for name, value in found["optimizers"].items():
            _add_optimizer(whole, name, Optimizer.from_json(value, at=name), first)
        _fill(whole.annotations, found["annotations"])

    def _add_atom(self, atom: Any, layouts: Sequence[Layout], ranks: frozenset[int], first: int) -> None:
        name, slots, aliases, annotations = atom
        known = self.whole.atoms.get(name)
        specs = {} if known is None else dict(known.slots)
        for slot, (kind, extents, number, place, compressor, notes) in slots.items():
            spec = SlotSpec(
                kind,
                tuple(extents),
                None if number is None else layouts[number],
                None if compressor is None else Compressor.from_json(compressor, at=name),
                notes,
                None if place is None else place_from(place),
            )
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
            self.whole.atoms[name] = AtomSpec(name, specs, tuple(sorted(set(aliases))), annotations)
        else:
            also = tuple(sorted({*known.aliases, *aliases}))
            self.whole.atoms[name] = AtomSpec(name, specs, also, known.annotations)

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
    """Groups are those of all ranks together: a stage of a pipeline lists only its own parameters."""
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
