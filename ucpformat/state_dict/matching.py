"""What of a state goes where in a checkpoint, and what does not fit, in words that say what to do.

Nothing is read here but the index: a state is compared before any of it is touched.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from ucpformat.distributed.values import OPAQUE_MEDIA, opaque_value
from ucpformat.errors import MismatchError, error
from ucpformat.geometry import Partial, Scale
from ucpformat.jsonio import equal
from ucpformat.model.values import PerRankValues, decode
from ucpformat.state_dict.keys.groups import expand_groups
from ucpformat.state_dict.keys.origins import alias_paths, group_origin, slot_path, value_paths
from ucpformat.state_dict.keys.paths import StatePath, dotted, flatten
from ucpformat.state_dict.load_options import Fits, LoadOptions, Named, fits
from ucpformat.state_dict.objects import WITH_TORCH, WITHOUT_TORCH, refusal_of
from ucpformat.state_dict.per_rank import PerRank, own_value
from ucpformat.state_dict.tensor_parts import DESCRIPTION, taken_apart, told
from ucpformat.state_dict.tensors.local_tensors import (
    LocalTensor,
    destination_of,
    is_tensor,
    local_tensor,
    to_torch,
)

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.pipeline import Pipeline
    from ucpformat.model.values import Restore
    from ucpformat.reader import Checkpoint
    from ucpformat.views import SlotView

__all__ = ["Match", "Missing", "match_state", "stored_slots", "stored_values"]

_T = TypeVar("_T")
_MASTER: Final = "master"
_EXTRA_STATE: Final = "_extra_state"  # the key that torch.nn.Module gives what get_extra_state returns


def by_path(items: Iterable[tuple[StatePath, _T]]) -> dict[StatePath, _T]:
    """Return the items by path; ``UCP-E-NAME`` where two have one."""
    found: dict[StatePath, _T] = {}
    for path, item in items:
        if path in found:
            raise error("UCP-E-NAME", f"two parts of the checkpoint would be the state's {dotted(path)!r}")
        found[path] = item
    return found


def stored_slots(checkpoint: Checkpoint) -> dict[StatePath, SlotView]:
    """Return slots by the paths that they had, or would have, in a state dict."""

    def found() -> Iterator[tuple[StatePath, SlotView]]:
        for view in checkpoint.values():
            for name, slot in view.items():
                yield slot_path(view.atom.name, name, slot.stored.annotations), slot
            for path in alias_paths(view.atom) if "value" in view else ():
                yield path, view["value"]

    return by_path(found())


def stored_values(checkpoint: Checkpoint) -> dict[StatePath, JsonValue]:
    """Return encoded values, opaque bytes and parameter groups by path; without pickles that an importer kept."""

    def found() -> Iterator[tuple[StatePath, JsonValue]]:
        state = checkpoint.state
        nested = value_paths(state)
        for name, value in state.values.items():
            yield nested.get(name, (name,)), value
        for name, blob in state.blobs.items():
            if blob.media_type == OPAQUE_MEDIA:
                yield nested.get(name, (name,)), opaque_value(checkpoint.blobs[name])
        for name, optimizer in state.optimizers.items():
            yield from expand_groups(optimizer, group_origin(state, name)).values()

    return by_path(found())


@dataclass(frozen=True, slots=True)
class Missing:
    """An entry of the state that the checkpoint lacks; ``source`` is the name that it would have there.

    ``refusal`` says why it could not be there.
    """

    name: str
    source: str
    is_tensor: bool
    refusal: str = ""


@dataclass(slots=True)
class Match:
    """What this rank reads and replaces, what does not fit, and what the checkpoint has beyond that.

    ``problems`` are (name in the state, what is wrong). ``wanted`` counts the entries that were asked for, ``fits``
    says whether what was given by name fits any. ``slots`` and ``stored_values`` are all names of the checkpoint.
    """

    tensors: list[tuple[str, SlotView, LocalTensor]] = field(default_factory=list)
    values: list[tuple[StatePath, object]] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    filled: set[str] = field(default_factory=set)
    """The top-level entries of the state of which something is read or replaced."""
    wanted: int = 0
    fits: Fits = field(default_factory=dict)
    slots: frozenset[str] = frozenset()
    stored_values: frozenset[str] = frozenset()


def match_state(state: dict[str, Any], checkpoint: Checkpoint, rank: int, options: LoadOptions) -> Match:
    """Compare what ``rank`` has of a state with a checkpoint.

    Raises:
        UcpError: for tensors that nothing can be read into, as `local_tensor` and `destination_of`.
    """
    slots_by_path, values_by_path = stored_slots(checkpoint), stored_values(checkpoint)
    paths = {dotted(path): path for path in (*slots_by_path, *values_by_path)}
    stored = _Stored(
        {dotted(path): slot for path, slot in slots_by_path.items()},
        {dotted(path): value for path, value in values_by_path.items()},
        _masters(checkpoint, slots_by_path.values()),
    )
    restore = WITH_TORCH if "torch" in sys.modules else WITHOUT_TORCH
    match = Match(slots=frozenset(stored.slots), stored_values=frozenset(stored.values))
    named = Named()
    asked: set[str] = set()
    tops: set[str] = set()
    for path, leaf in flatten(state, is_tensor).items():
        name = dotted(path)
        source = options.rename(name)
        named.entries.append(name)
        asked.add(source)
        if is_tensor(leaf):
            named.tensors.append(name)
        if not options.only(name):
            continue
        match.wanted += 1
        tops.add(dotted(paths.get(source, path)[:1]))
        read = len(match.tensors) + len(match.values)
        if is_tensor(leaf):
            asked.update(_match_tensor(match, stored, path, leaf, source, rank, options, checkpoint.pipeline))
        else:
            _match_value(match, named, stored, path, leaf, source, restore, options)
        if len(match.tensors) + len(match.values) > read:
            match.filled.add(dotted(path[:1]))
    # Whoever leaves out a whole entry asks for a part; whoever leaves out a part of one does not.
    match.unexpected = [
        name
        for name, path in paths.items()
        if name not in asked and dotted(path[:1]) in tops and options.only(name)
    ]
    match.fits = fits(options, named, paths)
    return match


def _masters(checkpoint: Checkpoint, slots: Collection[SlotView]) -> dict[str, tuple[str, SlotView]]:
    """Return the optimizer's copy and its name, for each value that has one of another data type, by name."""
    found: dict[str, tuple[str, SlotView]] = {}
    for atom in (slot.stored.atom.name for slot in slots if slot.stored.name == _MASTER):
        view = checkpoint[atom]
        if "value" not in view:
            continue
        value, master = view["value"], view[_MASTER]
        if master.shape != value.shape or master.dtype == value.dtype:
            continue
        name = dotted(slot_path(view.atom.name, _MASTER, master.stored.annotations))
        own = slot_path(view.atom.name, "value", value.stored.annotations)
        found |= dict.fromkeys(map(dotted, (own, *alias_paths(view.atom))), (name, master))
    return found


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the checkpoint has, by dotted names; ``masters`` as `_masters` finds them."""

    slots: Mapping[str, SlotView]
    values: Mapping[str, JsonValue]
    masters: Mapping[str, tuple[str, SlotView]]

    def kind_of(self, name: str) -> str | None:
        """Return what it has under a name, in words."""
        if name in self.slots:
            return f"a tensor {_said(self.slots[name])}"
        if f"{name}.{DESCRIPTION}" in self.values:
            return told(self.values[f"{name}.{DESCRIPTION}"])
        return "a value that is no tensor" if name in self.values else None


def _match_value(
    match: Match,
    named: Named,
    stored: _Stored,
    path: StatePath,
    leaf: object,
    source: str,
    restore: Restore,
    options: LoadOptions,
) -> None:
    name = dotted(path)
    if source in stored.values:
        encoded = stored.values[source]
        value = decode(encoded, at=name, restore=restore)
        if isinstance(value, PerRankValues) or isinstance(leaf, PerRank):
            named.own.append(name)
            try:
                value = own_value(value, encoded, leaf, options.rule(name), options.position, at=name)
            except MismatchError as refusal:
                match.problems.append((name, refusal.message))
                return
        match.values.append((path, value))
    elif kind := stored.kind_of(source):
        match.problems.append((name, f"is no tensor, the checkpoint has {kind}"))
    else:
        match.missing.append(Missing(name, source, is_tensor=False, refusal=refusal_of(leaf)))


def _match_tensor(
    match: Match,
    stored: _Stored,
    path: StatePath,
    leaf: Any,
    source: str,
    rank: int,
    options: LoadOptions,
    pipeline: Pipeline | None,
) -> list[str]:
    """Return the names in the checkpoint that this asks for beyond ``source``."""
    name = dotted(path)
    also: list[str] = []
    taken = taken_apart(path, leaf, options.layouts)
    described = next(iter(taken.descriptions.values()), None)
    its_own = f"{source}.{DESCRIPTION}"
    if described is None and source not in stored.slots and (kind := stored.kind_of(source)):
        match.problems.append((name, f"is a tensor, the checkpoint has {kind}"))
        return [*_below(source, stored)]
    if described is not None and its_own not in stored.values and source in stored.slots:
        match.problems.append((name, f"is {told(described)}, the checkpoint has {stored.kind_of(source)}"))
        return []
    if described is not None and its_own in stored.values and not equal(stored.values[its_own], described):
        match.problems.append(
            (name, f"is {told(described)}, the checkpoint has {told(stored.values[its_own])}")
        )
        return [*_below(source, stored)]
    for one in taken.tensors:
        part, origin = name + one.part, source + one.part
        if origin not in stored.slots:
            match.missing.append(Missing(part, origin, is_tensor=True))
            continue
        slot = stored.slots[origin]
        tensor = local_tensor(one.tensor, rank=rank, held=one.held or options.layouts.get(part), at=part)
        if tensor is None:
            continue
        if tensor.on_host:
            destination_of(tensor.local, at=part)
        if tensor.dtype != slot.stored.dtype.name and origin in stored.masters:
            # The rounded copy is for whoever computes with its type; any other is given what it was rounded from.
            master_name, master = stored.masters[origin]
            if options.cast or tensor.dtype == master.stored.dtype.name:
                slot = master
                also.append(master_name)
        problem = _misfit(tensor, slot, cast=options.cast and not one.part)
        if pipeline is not None:
            problem = pipeline.misplaced(slot.stored.atom.name, tensor.layout) or problem
        if problem is not None and _is_extra_state(path, tensor, slot):
            match.values.append((path, to_torch(slot.read(), slot.stored.dtype.name)))
        elif problem is None:
            match.tensors.append((part, slot, tensor))
        else:
            match.problems.append((part, problem))
    return [its_own, *also, *(source + one.part for one in taken.tensors)]


def _is_extra_state(path: StatePath, tensor: LocalTensor, slot: SlotView) -> bool:
    """Return whether these are bytes of a module's own making, which may be more or fewer than in the checkpoint."""
    return (
        str(path[-1]).endswith(_EXTRA_STATE)
        and not isinstance(tensor.local, np.ndarray)
        and tensor.layout is None
        and tensor.dtype == slot.stored.dtype.name == "uint8"
        and len(tensor.shape) == len(slot.shape) == 1
    )


def _below(name: str, stored: _Stored) -> Iterator[str]:
    for table in (stored.slots, stored.values):
        yield from (other for other in table if other.startswith(f"{name}."))


def _said(slot: SlotView) -> str:
    return f"{slot.stored.dtype.name}{list(slot.shape)}"


def _misfit(tensor: LocalTensor, slot: SlotView, *, cast: bool) -> str | None:
    if tensor.shape != slot.shape or (tensor.dtype != slot.stored.dtype.name and not cast):
        remedy = "; cast=True converts" if tensor.shape == slot.shape else ""
        return f"is {tensor.dtype}{list(tensor.shape)}, the checkpoint has {_said(slot)}{remedy}"
    if tensor.in_buffer and tensor.dtype != slot.stored.dtype.name:
        return f"is a part of a buffer of {tensor.dtype}, into which {slot.stored.dtype.name} cannot be cast"
    if tensor.layout is not None and any(isinstance(step, Partial | Scale) for step in tensor.layout.steps):
        return "its layout has a pending reduction or a factor, which nothing can be read into"
    return None
