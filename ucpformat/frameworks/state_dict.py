"""Saving and loading a nested state dict in one process: `ucpformat.save` and `ucpformat.load`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from ucpformat.errors import UcpError, error
from ucpformat.frameworks.live_objects import WITH_TORCH, WITHOUT_TORCH, extend
from ucpformat.frameworks.live_values import (
    destination_of,
    elements_of,
    is_tensor,
    same_memory,
    tensor_dtype,
    to_torch,
)
from ucpformat.frameworks.origins import (
    alias_annotations,
    alias_paths,
    group_origin,
    key_path,
    slot_annotations,
    slot_path,
    state_annotations,
    value_paths,
)
from ucpformat.frameworks.state_groups import expand_groups, gather_groups
from ucpformat.frameworks.state_names import Assignment, recognise
from ucpformat.frameworks.state_paths import (
    KeyPath,
    StatePath,
    build,
    dotted,
    flatten,
    replace,
)
from ucpformat.model.state import StateDocument
from ucpformat.model.values import decode, encode
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.views import SlotView
from ucpformat.writer import DEFAULT_CHUNK_BYTES, AtomSpec, CheckpointWriter, SlotSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.jsonio import JsonValue
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.root import Storage

__all__ = ["load", "save"]

_T = TypeVar("_T")


def save(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    *,
    storage: Storage = "packed",
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    compressor: Compressor | None = None,
    step: int | None = None,
) -> str:
    """Save a nested state dict of numpy arrays, CPU torch tensors and plain values; returns the root digest.

    Values of ``model`` and states of ``optim`` (as ``get_state_dict`` gives them) share one atom per parameter.
    Tensors that are the same memory (tied weights) are stored once, with aliases.

    Raises:
        UcpError: ``UCP-E-EXISTS`` for a committed checkpoint at ``path``; ``UCP-E-OBJECT``, ``UCP-E-DTYPE``,
            ``UCP-E-MISMATCH`` or ``UCP-E-NAME``, naming the entry, for what cannot be stored.
    """
    leaves = flatten(state, is_tensor)
    paths = {dotted(leaf): leaf for leaf in leaves}
    tensors = {name: leaf for name, leaf in paths.items() if is_tensor(leaves[leaf])}
    objects = {name: leaf for name, leaf in paths.items() if name not in tensors}
    names = recognise(_key_paths(tensors), _key_paths(objects))
    arrays = {name: elements_of(leaves[leaf], at=name) for name, leaf in tensors.items()}
    owners, tied = _tied(arrays, names.assignments)

    slots: dict[str, dict[str, SlotSpec]] = {}
    for name in owners:
        place = names.assignments[name]
        kind = tensor_dtype(leaves[paths[name]], at=name)
        slots.setdefault(place.name, {})[place.slot] = SlotSpec(
            kind, arrays[name].shape, compressor=compressor, annotations=slot_annotations(paths[name])
        )
    atoms = []
    for atom, found in slots.items():
        also = tied.get(atom, [])
        aliases = tuple(sorted({names.assignments[name].name for name in also} - {atom}))
        atoms.append(AtomSpec(atom, found, aliases, alias_annotations([paths[name] for name in also])))

    encoded = {name: _encoded(leaves[leaf], name) for name, leaf in objects.items()}
    optimizers = {}
    origins = {}
    for optimizer in names.optimizers:
        gathered = gather_groups(optimizer, encoded, _key_paths(objects), frozenset(slots))
        if gathered is not None:
            optimizers[optimizer.name] = gathered
            origins[optimizer.name] = (optimizer.path, optimizer.form)
            for group in optimizer.groups:
                for _, key in group.options:
                    del encoded[key]
    annotations = state_annotations("state_dict", origins, {name: paths[name] for name in encoded})
    with CheckpointWriter(path, atoms, storage=storage, chunk_bytes=chunk_bytes, step=step) as writer:
        writer.set_state(StateDocument(encoded, optimizers, {}, annotations))
        for name in owners:
            place = names.assignments[name]
            writer.submit(place.name, place.slot, arrays[name])
        return writer.commit()


def _encoded(obj: object, name: str) -> JsonValue:
    try:
        return encode(obj, at=name, extend=extend)
    except UcpError as refusal:
        # What `extend` refuses does not know its place.
        raise refusal if refusal.at else error(refusal.code, refusal.message, at=name) from None


def _key_paths(paths: Mapping[str, StatePath]) -> dict[str, KeyPath | None]:
    """Paths as `recognise` takes them."""
    return {name: key_path(path) for name, path in paths.items()}


def _tied(
    arrays: Mapping[str, NDArray[np.generic]], places: Mapping[str, Assignment]
) -> tuple[list[str], dict[str, list[str]]]:
    """Names that own their memory, and by owner's atom the names that share it.

    Only a value is ever tied, and only under a name that has no slots of its own.
    """
    stateful = {place.name for place in places.values() if place.slot != "value"}
    owners: list[str] = []
    tied: dict[str, list[str]] = {}
    by_memory: dict[tuple[object, ...], str] = {}
    for name, array in arrays.items():
        place = places[name]
        key = same_memory(array) if place.slot == "value" else None
        owner = place.name if key is None else by_memory.setdefault(key, place.name)
        if owner == place.name or place.name in stateful:
            owners.append(name)
        else:
            tied.setdefault(owner, []).append(name)
    return owners, tied


def load(
    path: str | os.PathLike[str],
    state: dict[str, Any] | None = None,
    *,
    tensors: Literal["numpy", "torch"] = "numpy",
    verify: bool = True,
) -> dict[str, Any]:
    """Load a checkpoint into ``state``, in place, or as a new nested dict.

    With ``state``, its tensors are filled, its other entries replaced, and all of them must be in the checkpoint
    with the same shape and data type; what the checkpoint has beyond that stays there. Without, everything is
    loaded, tensors as ``tensors`` says. Returns the state.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``, naming every entry that is missing or differs.
        UcpError: what opening and reading raise.
    """
    with open_checkpoint(path, verify=verify) as checkpoint:
        slots = _by_path(_slots(checkpoint))
        values = _by_path(_values(checkpoint))
        if state is None:
            return _load_new(slots, values, tensors)
        _fill(state, slots, values)
        return state


def _by_path(items: Iterable[tuple[StatePath, _T]]) -> dict[StatePath, _T]:
    found: dict[StatePath, _T] = {}
    for path, item in items:
        if path in found:
            raise error("UCP-E-NAME", f"two parts of the checkpoint would be the state's {dotted(path)!r}")
        found[path] = item
    return found


def _slots(checkpoint: Checkpoint) -> Iterator[tuple[StatePath, SlotView]]:
    """Slots with the paths they had, or would have, in a state dict."""
    for view in checkpoint.values():
        for name, slot in view.items():
            yield slot_path(view.atom.name, name, slot.stored.slot.annotations), slot
        for path in alias_paths(view.atom):
            yield path, view["value"]


def _values(checkpoint: Checkpoint) -> Iterator[tuple[StatePath, JsonValue]]:
    """Encoded values and parameter groups with their paths."""
    state = checkpoint.state
    nested = value_paths(state)
    for name, value in state.values.items():
        yield nested.get(name, (name,)), value
    for name, optimizer in state.optimizers.items():
        yield from expand_groups(optimizer, group_origin(state, name)).values()


def _load_new(
    slots: Mapping[StatePath, SlotView],
    values: Mapping[StatePath, JsonValue],
    tensors: Literal["numpy", "torch"],
) -> dict[str, Any]:
    make: Callable[[SlotView], Any] = (
        (lambda slot: to_torch(slot.read(), slot.dtype.name)) if tensors == "torch" else SlotView.read
    )
    leaves: dict[StatePath, object] = {path: make(slot) for path, slot in slots.items()}
    restore = WITH_TORCH if tensors == "torch" else WITHOUT_TORCH
    leaves.update((path, decode(value, at=dotted(path), restore=restore)) for path, value in values.items())
    return build(leaves)


def _fill(
    state: dict[str, Any], slots: Mapping[StatePath, SlotView], values: Mapping[StatePath, JsonValue]
) -> None:
    slots_by_name = {dotted(path): slot for path, slot in slots.items()}
    values_by_name = {dotted(path): value for path, value in values.items()}
    restore = WITH_TORCH if "torch" in sys.modules else WITHOUT_TORCH
    problems = []
    tensors: list[tuple[SlotView, NDArray[np.generic]]] = []
    others: list[tuple[StatePath, object]] = []
    for path, leaf in flatten(state, is_tensor).items():
        name = dotted(path)
        if is_tensor(leaf) and name in slots_by_name:
            slot = slots_by_name[name]
            kind, target = tensor_dtype(leaf, at=name), destination_of(leaf, at=name)
            if (kind, target.shape) != (slot.dtype.name, slot.shape):
                problems.append(
                    f"{name}: is {kind}{list(target.shape)}, "
                    f"the checkpoint has {slot.dtype.name}{list(slot.shape)}"
                )
            tensors.append((slot, target))
        elif not is_tensor(leaf) and name in values_by_name:
            others.append((path, decode(values_by_name[name], at=name, restore=restore)))
        else:
            problems.append(f"{name}: missing")
    if problems:
        more = f" and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise error("UCP-E-MISMATCH", "; ".join(problems[:20]) + more)
    # Nothing is touched before everything is known to fit.
    for slot, target in tensors:
        slot.read(target)
    for path, value in others:
        replace(state, path, value)
