"""A nested state dict as this process's part of a checkpoint (SPEC sections 10, 11 and 15)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ucpformat.distributed.local_state import LocalState, OwnValue
from ucpformat.errors import error
from ucpformat.model.compressor import compressor_of, require_compression
from ucpformat.model.pipeline import version_slot
from ucpformat.model.values import encode
from ucpformat.state_dict.changed_rows import changed_rows
from ucpformat.state_dict.keys.names import Assignment, recognise
from ucpformat.state_dict.keys.origins import alias_annotations, key_path, slot_annotations, state_document
from ucpformat.state_dict.keys.paths import NumberKey, StatePath, dotted, named_leaves
from ucpformat.state_dict.objects import extend
from ucpformat.state_dict.per_rank import PerRank, encoded_own
from ucpformat.state_dict.tensor_parts import LiveTensor, taken_apart
from ucpformat.state_dict.tensors.device_digests import digests_on_device
from ucpformat.state_dict.tensors.local_tensors import LocalTensor, TensorLayout, is_tensor, local_tensor
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ucpformat.distributed.kept import Kept
    from ucpformat.distributed.local_state import SlotName
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.compressor import Compression
    from ucpformat.model.pipeline import Pipeline
    from ucpformat.state_dict.fences import TrainingFences
    from ucpformat.state_dict.keys.names import Names
    from ucpformat.state_dict.keys.paths import KeyPath

__all__ = ["StateForm", "live_state"]


VERSIONS: Final = "versions"


@dataclass(frozen=True, slots=True)
class StateForm:
    """What a state is apart from its values.

    ``slots`` has the slot of each tensor that this process holds, by its name, in the order of the state, but for those
    that share memory with one of these.
    """

    names: Names
    object_paths: Mapping[str, KeyPath]
    atoms: Sequence[AtomSpec]
    slots: Mapping[str, SlotName]


def live_state(
    state: Mapping[str, Any],
    *,
    rank: int = 0,
    layouts: Mapping[str, TensorLayout] | None = None,
    compressor: Compression | None = None,
    pipeline: Pipeline | None = None,
    changed: Mapping[str, Any] | None = None,
    fences: TrainingFences | None = None,
    kept: Kept[StateForm] | None = None,
) -> LocalState:
    """Return what this process, ``rank`` of the job, has to save of ``state``; tensors are looked at, not copied.

    ``changed`` has rows by glob, as `changed_rows` takes them; ``fences`` say what is copied behind the call of a save.
    Of a state like that of the last call with the same ``kept``, atoms are the same object.

    Raises:
        UcpError: ``UCP-E-OBJECT``, ``UCP-E-DTYPE``, ``UCP-E-MISMATCH`` or ``UCP-E-NAME``, naming the entry.
    """
    require_compression(compressor)
    names, leaves = named_leaves(state, is_tensor)
    declared = dict(layouts or {})
    tensors: dict[str, StatePath] = {}
    live: dict[str, LiveTensor] = {}
    values: dict[StatePath, JsonValue] = {}
    for name, leaf in names.items():
        if not is_tensor(leaves[leaf]):
            continue
        tensors[name] = leaf
        taken = taken_apart(leaf, leaves[leaf], declared)
        values.update(taken.descriptions)
        for one in taken.tensors:
            part = name + one.part
            if part in live or (one.part and part in names):
                raise error("UCP-E-NAME", "a part of a tensor has the name of another entry", at=part)
            live[part] = one
    unknown = sorted(declared.keys() - live.keys())
    if unknown:
        raise error("UCP-E-NAME", "a layout is given for what is no tensor of the state", at=unknown[0])
    held = {
        name: found
        for name, one in live.items()
        if (found := local_tensor(one.tensor, rank=rank, held=one.held or declared.get(name), at=name))
        is not None
    }
    objects = {name: leaf for name, leaf in names.items() if name not in tensors}
    make = partial(_form, tensors, objects, live, held, compressor, pipeline)
    if kept is None:
        form = make()
    else:
        places = [
            (live[name].path, one.dtype, one.shape, one.layout, one.place, one.memory())
            for name, one in held.items()
        ]
        key = ([*tensors.values()], [*objects.values()], places, compressor, pipeline is not None)
        form = kept.of(key, make)
    owned = {slot: held[name] for name, slot in form.slots.items()}
    encoded: dict[str, JsonValue] = {}
    own: dict[str, OwnValue] = {}
    for name, leaf in objects.items():
        value = leaves[leaf]
        if isinstance(value, PerRank):
            encoded[name], own[name] = encoded_own(value, at=name, extend=extend)
        else:
            encoded[name] = encode(value, at=name, extend=extend)
    rows = changed_rows(changed, {name: held[name] for name in form.slots}) if changed else {}
    return LocalState(
        form.atoms,
        {slot: tensor.array for slot, tensor in owned.items()},
        state_document(
            "state_dict",
            encoded | {dotted(path): value for path, value in values.items()},
            objects | {dotted(path): path for path in values},
            form.object_paths,
            form.names,
            frozenset(atom.name for atom in form.atoms),
        ),
        {slot: tensor.local.detach() for slot, tensor in owned.items() if not tensor.on_host},
        own,
        digests_on_device,
        {form.slots[name]: found for name, found in rows.items()},
        {} if fences is None else fences.slots(owned),
    )


def _form(
    tensors: Mapping[str, StatePath],
    objects: Mapping[str, StatePath],
    live: Mapping[str, LiveTensor],
    held: Mapping[str, LocalTensor],
    compressor: Compression | None,
    pipeline: Pipeline | None,
) -> StateForm:
    stashed = (
        {} if pipeline is None else {name: leaf for name, leaf in tensors.items() if leaf[0] == VERSIONS}
    )
    newest = {name: key_path(leaf) for name, leaf in tensors.items() if name not in stashed}
    object_paths = {name: key_path(path) for name, path in objects.items()}
    names = recognise(newest, object_paths)
    assignments = names.assignments
    if stashed:
        assignments = {**assignments, **_versions(stashed, assignments)}
    assigned = {
        name: Assignment(place.name, place.slot + one.part)
        for name, one in live.items()
        for place in (assignments[dotted(one.whole)],)
    }
    owners, tied = _tied(held, assigned)
    slots: dict[str, dict[str, SlotSpec]] = {}
    for name in owners:
        place, tensor = assigned[name], held[name]
        slots.setdefault(place.name, {})[place.slot] = SlotSpec(
            tensor.dtype,
            tensor.shape,
            tensor.layout,
            compressor_of(compressor, tensor.dtype, tensor.shape),
            slot_annotations(live[name].path),
            tensor.place,
        )
    atoms = []
    for atom, specs in slots.items():
        also = tied.get(atom, [])
        aliases = tuple(sorted({assigned[name].name for name in also} - {atom}))
        atoms.append(AtomSpec(atom, specs, aliases, alias_annotations([live[name].path for name in also])))
    return StateForm(
        names, object_paths, atoms, {name: (assigned[name].name, assigned[name].slot) for name in owners}
    )


def _versions(
    tensors: Mapping[str, StatePath], assignments: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Return the atoms and slots of stashed weights, which the state has below ``versions`` (SPEC 15.3).

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for a version of what the state does not have.
    """
    found = {}
    for name, path in tensors.items():
        number = path[1] if len(path) > 1 else None
        of = assignments.get(dotted(path[2:]))
        if not isinstance(number, NumberKey) or of is None or of.slot != "value":
            message = "versions are weights of the state by number of updates: versions, 8, then the path of a weight"
            raise error("UCP-E-MISMATCH", message, at=name)
        found[name] = Assignment(of.name, version_slot(number.number))
    return found


def _tied(
    tensors: Mapping[str, LocalTensor], places: Mapping[str, Assignment]
) -> tuple[list[str], dict[str, list[str]]]:
    """Return names that own their memory, and by owner's atom the names that share it.

    Only a value is ever tied, and only under a name that has no slots of its own.
    """
    stateful = {place.name for place in places.values() if place.slot != "value"}
    owners: list[str] = []
    tied: dict[str, list[str]] = {}
    by_memory: dict[tuple[object, ...], str] = {}
    for name, tensor in tensors.items():
        place = places[name]
        key = tensor.memory() if place.slot == "value" else None
        owner = place.name if key is None else by_memory.setdefault(key, place.name)
        if owner == place.name or place.name in stateful:
            owners.append(name)
        else:
            tied.setdefault(owner, []).append(name)
    return owners, tied
