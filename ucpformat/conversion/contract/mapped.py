"""Jobs under other names and in other tensors: atom maps (SPEC-ATOM-MAPS) carried out box by box, as sources are read.

Nothing is held beyond the box that is asked for and, one at a time, the boxes of the sources that it is made of, which
have at most twice its elements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ucpformat.conversion.contract.content import slot_blocks
from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.errors import UcpError, error
from ucpformat.geometry import Box, clipped_move, source_boxes
from ucpformat.model.dtype import dtype
from ucpformat.model.state import Optimizer, ParameterGroup, StateDocument
from ucpformat.patterns import AtomMapDocument, AtomMapping, MappedSlot, Settings, apply_atom_map
from ucpformat.patterns.carrying import strided
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.conversion.contract.job import ReadBox
    from ucpformat.patterns.atom_mapping import Direction

__all__ = ["mapped_job"]

_Key = tuple[str, str]


def mapped_job(
    job: Job, document: AtomMapDocument, parameters: Settings, *, towards: Direction
) -> tuple[Job, list[str]]:
    """Return ``job`` with the atoms that the map makes of its own, and every ``atom/slot`` that the map drops.

    Tied names go through the map as well, and what is made of the same elements of the same atom is tied again.
    Parameter groups list what is made of their atoms. Layouts are left behind: they are those of other tensors.

    Raises as `apply_atom_map`, and ``UCP-E-MISMATCH``: atoms that have to be equal are not, an atom is made of
    several data types, or of several parameter groups.
    """
    slots = {atom.name: dict(atom.slots) for atom in job.atoms}
    first = {alias: atom.name for atom in job.atoms for alias in atom.aliases}
    shapes = {
        name: {slot: spec.shape for slot, spec in slots[first.get(name, name)].items()}
        for name in (*slots, *first)
    }
    mapping = apply_atom_map(document, shapes, parameters, towards=towards)
    sources = {(source.atom, source.slot): source.read for source in job.sources}
    _check_equal(mapping, first, slots, sources)

    made: dict[str, dict[str, MappedSlot]] = defaultdict(dict)
    for mapped in mapping.slots:
        made[mapped.atom][mapped.slot] = mapped
    kept, aliases = _tied(made, first)
    atoms: list[AtomSpec] = []
    readers: list[SlotSource] = []
    origins: dict[str, set[str]] = {}
    for name in kept:
        specs = {}
        for slot, mapped in made[name].items():
            parts = [(first.get(part.source, part.source), part.move) for part in mapped.parts]
            kind = _dtype(mapped, [slots[source][slot] for source, _ in parts])
            specs[slot] = SlotSpec(kind, mapped.shape)
            parts_read = tuple(
                (slots[source][slot].shape, sources[source, slot], move) for source, move in parts
            )
            readers.append(SlotSource(name, slot, _MappedSource(mapped.shape, kind, parts_read)))
            origins.setdefault(name, set()).update(source for source, _ in parts)
        atoms.append(AtomSpec(name, specs, tuple(aliases.get(name, ()))))
    dropped = [f"{name}/{slot}" for name, slot in mapping.dropped]
    return replace(job, atoms=atoms, sources=readers, state=_state(job.state, origins)), dropped


@dataclass(frozen=True, slots=True)
class _MappedSource:
    """A slot that is made of parts: of each the shape of its source, how that is read, and the move."""

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[tuple[tuple[int, ...], ReadBox, Any], ...]

    def __call__(self, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out`` with a box."""
        for shape, read, whole in self.parts:
            for wanted in clipped_move(whole, self.shape, box):
                for needed, move in source_boxes(wanted, shape):
                    memory = np.empty(needed.shape, dtype(self.dtype).numpy)
                    read(needed, memory)
                    strided(out, move.shape, move.target)[...] = strided(memory, move.shape, move.source)


def _dtype(mapped: MappedSlot, sources: Sequence[SlotSpec]) -> str:
    kinds = {source.dtype for source in sources}
    if len(kinds) != 1:
        told = ", ".join(sorted(kinds)) or "no"
        raise error(
            "UCP-E-MISMATCH", f"the slot {mapped.slot!r} of {mapped.atom!r} would have {told} data types"
        )
    return kinds.pop()


def _check_equal(
    mapping: AtomMapping,
    first: Mapping[str, str],
    slots: Mapping[str, Mapping[str, SlotSpec]],
    sources: Mapping[_Key, ReadBox],
) -> None:
    for one, other, slot in mapping.equal:
        keys = [(first.get(name, name), slot) for name in (one, other)]
        if keys[0] == keys[1]:
            continue
        specs = [slots[name][slot] for name, _ in keys]
        same = (specs[0].dtype, specs[0].shape) == (specs[1].dtype, specs[1].shape) and all(
            a.tobytes() == b.tobytes()
            for (_, a), (_, b) in zip(
                *(
                    slot_blocks(spec.dtype, spec.shape, sources[key])
                    for spec, key in zip(specs, keys, strict=True)
                ),
                strict=True,
            )
        )
        if not same:
            message = f"{one!r} and {other!r} are to be one, and their slots {slot!r} hold different elements"
            raise error("UCP-E-MISMATCH", message)


def _tied(
    made: Mapping[str, Mapping[str, MappedSlot]], first: Mapping[str, str]
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the names that stay atoms, and those that are aliases of each."""
    owners: dict[object, str] = {}
    aliases: dict[str, list[str]] = {}
    tied = set(first)
    # An atom made of an atom's own name comes before one made of an alias.
    for name in sorted(
        made, key=lambda name: any(part.source in tied for slot in made[name].values() for part in slot.parts)
    ):
        content = tuple(
            (
                slot,
                mapped.shape,
                tuple((first.get(part.source, part.source), part.move) for part in mapped.parts),
            )
            for slot, mapped in sorted(made[name].items())
        )
        owner = owners.setdefault(content, name)
        if owner != name:
            aliases.setdefault(owner, []).append(name)
    return sorted(owners.values()), aliases


def _state(state: StateDocument, origins: Mapping[str, set[str]]) -> StateDocument:
    if state.pipeline is not None and state.pipeline.is_in_flight:
        message = "a pipeline was in flight when this was saved, and its stages know these names alone: save it drained"
        raise error("UCP-E-MISMATCH", message)
    optimizers = {}
    for name, optimizer in state.optimizers.items():
        group_of = {atom: number for number, group in enumerate(optimizer.groups) for atom in group.atoms}
        members: list[list[str]] = [[] for _ in optimizer.groups]
        order = {atom: at for at, atom in enumerate(group_of)}
        for made in sorted(
            origins, key=lambda made: (min(order.get(atom, -1) for atom in origins[made]), made)
        ):
            groups = {group_of.get(atom) for atom in origins[made]}
            if len(groups) > 1:
                raise _straddles(name, made, origins[made])
            for number in groups - {None}:
                members[number or 0].append(made)
        optimizers[name] = Optimizer(
            tuple(
                ParameterGroup(tuple(atoms), group.options)
                for atoms, group in zip(members, optimizer.groups, strict=True)
            )
        )
    return replace(state, optimizers=optimizers, pipeline=None)


def _straddles(optimizer: str, made: str, atoms: set[str]) -> UcpError:
    told = ", ".join(sorted(atoms)[:3])
    return error(
        "UCP-E-MISMATCH",
        f"{made!r} would be made of atoms in several parameter groups of {optimizer!r} ({told}); "
        "convert weights alone, or regroup",
    )
