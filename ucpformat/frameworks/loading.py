"""Filling a live state from a checkpoint, in place: what goes where, and whether it fits (SPEC section 17).

Everything is compared before anything is read, on all ranks of a job together, so that all go on or all raise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ucpformat.distributed.group import Group, agreed
from ucpformat.errors import error
from ucpformat.frameworks.destinations import copy_into, own_memory
from ucpformat.frameworks.live_objects import WITH_TORCH, WITHOUT_TORCH
from ucpformat.frameworks.live_values import destination_of, is_tensor
from ucpformat.frameworks.local_tensors import Held, LocalTensor, local_tensor
from ucpformat.frameworks.origins import alias_paths, group_origin, slot_path, value_paths
from ucpformat.frameworks.state_groups import expand_groups
from ucpformat.frameworks.state_paths import StatePath, dotted, flatten, replace
from ucpformat.geometry import Partial, Scale
from ucpformat.model.values import decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.jsonio import JsonValue
    from ucpformat.reader import Checkpoint
    from ucpformat.storage.part import StoredSlot
    from ucpformat.views import SlotView

__all__ = ["LoadOptions", "fill_state", "stored_slots", "stored_values"]

_T = TypeVar("_T")
_MAX_LISTED = 20
_STAGED_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What is asked for beyond filling a state with what has its names, shapes and data types; see `load`."""

    layouts: Mapping[str, Held]
    only: Callable[[str], bool]
    rename: Callable[[str], str]
    cast: bool
    strict: bool


def by_path(items: Iterable[tuple[StatePath, _T]]) -> dict[StatePath, _T]:
    """The items by path; ``UCP-E-NAME`` where two have one."""
    found: dict[StatePath, _T] = {}
    for path, item in items:
        if path in found:
            raise error("UCP-E-NAME", f"two parts of the checkpoint would be the state's {dotted(path)!r}")
        found[path] = item
    return found


def stored_slots(checkpoint: Checkpoint) -> dict[StatePath, SlotView]:
    """Slots by the paths that they had, or would have, in a state dict."""

    def found() -> Iterator[tuple[StatePath, SlotView]]:
        for view in checkpoint.values():
            for name, slot in view.items():
                yield slot_path(view.atom.name, name, slot.stored.slot.annotations), slot
            for path in alias_paths(view.atom) if "value" in view else ():
                yield path, view["value"]

    return by_path(found())


def stored_values(checkpoint: Checkpoint) -> dict[StatePath, JsonValue]:
    """Encoded values and parameter groups by path."""

    def found() -> Iterator[tuple[StatePath, JsonValue]]:
        state = checkpoint.state
        nested = value_paths(state)
        for name, value in state.values.items():
            yield nested.get(name, (name,)), value
        for name, optimizer in state.optimizers.items():
            yield from expand_groups(optimizer, group_origin(state, name)).values()

    return by_path(found())


@dataclass(slots=True)
class _Plan:
    """What this rank reads and replaces, what does not fit, and what the checkpoint has beyond that."""

    tensors: list[tuple[str, SlotView, LocalTensor]]
    values: list[tuple[StatePath, object]]
    problems: list[str]
    unexpected: list[str]


def fill_state(state: dict[str, Any], checkpoint: Checkpoint, group: Group, options: LoadOptions) -> None:
    """Fill the tensors of ``state`` and replace its other entries.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``, naming every entry that is missing, unexpected or differs.
    """
    plan: _Plan | None = None

    def compare() -> bytes:
        nonlocal plan
        plan = _plan(state, checkpoint, group.rank, options)
        if plan.problems:
            raise error("UCP-E-MISMATCH", _listed(plan.problems))
        return json.dumps(plan.unexpected).encode()

    extra = [set(json.loads(reply)) for reply in agreed(group, compare)]
    unexpected = sorted(set.intersection(*extra))
    if unexpected and options.strict:
        raise error(
            "UCP-E-MISMATCH",
            "the checkpoint has more than the state; ask for a part with only=, or give strict=False: "
            + _listed([f"{name}: unexpected" for name in unexpected]),
        )

    def read() -> bytes:
        if plan is not None:
            _read(plan.tensors, checkpoint, group.rank)
        return b""

    agreed(group, read)
    for path, value in plan.values if plan is not None else ():
        replace(state, path, value)


def _listed(problems: Sequence[str]) -> str:
    more = f" and {len(problems) - _MAX_LISTED} more" if len(problems) > _MAX_LISTED else ""
    return "; ".join(problems[:_MAX_LISTED]) + more


def _plan(state: dict[str, Any], checkpoint: Checkpoint, rank: int, options: LoadOptions) -> _Plan:
    slots_by_path, values_by_path = stored_slots(checkpoint), stored_values(checkpoint)
    slots = {dotted(path): slot for path, slot in slots_by_path.items()}
    values = {dotted(path): value for path, value in values_by_path.items()}
    restore = WITH_TORCH if "torch" in sys.modules else WITHOUT_TORCH
    plan = _Plan([], [], [], [])
    asked: set[str] = set()
    tops: set[str] = set()
    for path, leaf in flatten(state, is_tensor).items():
        name = dotted(path)
        source = options.rename(name)
        asked.add(source)
        if not options.only(name):
            continue
        tops.add(dotted(path[:1]))
        if is_tensor(leaf) and source in slots:
            slot = slots[source]
            tensor = local_tensor(leaf, rank=rank, held=options.layouts.get(name), at=name)
            if tensor is None:
                continue
            if tensor.on_host:
                destination_of(tensor.local, at=name)
            problem = _misfit(tensor, slot, cast=options.cast)
            if problem is None:
                plan.tensors.append((name, slot, tensor))
            else:
                plan.problems.append(f"{name}: {problem}")
        elif not is_tensor(leaf) and source in values:
            plan.values.append((path, decode(values[source], at=name, restore=restore)))
        else:
            plan.problems.append(f"{name}: missing" + (f" (as {source!r})" if source != name else ""))
    # Whoever leaves out a whole entry asks for a part; whoever leaves out a part of one does not.
    plan.unexpected = [
        name
        for path in (*slots_by_path, *values_by_path)
        if (name := dotted(path)) not in asked and dotted(path[:1]) in tops and options.only(name)
    ]
    return plan


def _misfit(tensor: LocalTensor, slot: SlotView, *, cast: bool) -> str | None:
    if tensor.shape != slot.shape or (tensor.dtype != slot.dtype.name and not cast):
        return (
            f"is {tensor.dtype}{list(tensor.shape)}, the checkpoint has {slot.dtype.name}{list(slot.shape)}"
        )
    if tensor.in_buffer and tensor.dtype != slot.dtype.name:
        return f"is a part of a buffer of {tensor.dtype}, into which {slot.dtype.name} cannot be cast"
    steps = () if tensor.layout is None else tensor.layout.steps
    if any(isinstance(step, Partial | Scale) for step in steps):
        return "its layout has a pending reduction or a factor, which nothing can be read into"
    return None


def _read(tensors: Sequence[tuple[str, SlotView, LocalTensor]], checkpoint: Checkpoint, rank: int) -> None:
    """Read straight into the memory of tensors, or by way of staging where that is elsewhere or of another kind."""
    batch = _Batch(checkpoint)
    for name, slot, tensor in tensors:
        local_map = tensor.local_map(rank)
        if local_map is None:  # pragma: no cover - `local_tensor` leaves such tensors out
            continue
        memory = own_memory(tensor, slot.dtype.name, at=name)
        if memory is None:
            memory = batch.stage(tensor, slot)
        elif local_map.mapped != local_map.size and not tensor.in_buffer:
            memory[...] = np.zeros((), memory.dtype)
        item = slot.dtype.item_bytes
        raw = memory.reshape(-1).view(np.uint8)
        for piece in local_map.pieces:
            steps = tuple(step * item for step in piece.local.strides)
            place: NDArray[np.generic] = np.ndarray(
                piece.box.shape, slot.dtype.numpy, raw.data, piece.local.offset * item, steps
            )
            batch.targets.append((slot.stored, piece.box, place))
        batch.flush(least=_STAGED_BYTES)
    batch.flush()


class _Batch:
    """Reads that go together, and what is copied from host memory afterwards: bounded, however large the state."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.targets: list[tuple[StoredSlot, Box, NDArray[np.generic]]] = []
        self._checkpoint = checkpoint
        self._staged: dict[object, tuple[Any, NDArray[np.generic], str]] = {}
        self._nbytes = 0

    def stage(self, tensor: LocalTensor, slot: SlotView) -> NDArray[np.generic]:
        """Memory of the shape of the local tensor and the type of the slot; tensors of one buffer share it."""
        key: object = object()
        if tensor.in_buffer:
            key = tensor.storage()
            if key in self._staged:
                return self._staged[key][1]
            memory = tensor.array().copy()
        else:
            memory = np.zeros(tensor.local.shape, slot.dtype.numpy)
        self._staged[key] = (tensor.local, memory, slot.dtype.name)
        self._nbytes += memory.nbytes
        return memory

    def flush(self, *, least: int = 0) -> None:
        """Read, and copy, where at least so many bytes are staged."""
        if self._nbytes < least:
            return
        self._checkpoint.read_boxes(self.targets)
        for local, array, kind in self._staged.values():
            copy_into(local, array, kind)
        self.targets.clear()
        self._staged.clear()
        self._nbytes = 0
