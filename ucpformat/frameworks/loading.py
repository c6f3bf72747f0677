"""Filling a live state from a checkpoint, in place: what goes where, and whether it fits (SPEC section 17).

Everything is compared before anything is read, on all ranks of a job together, so that all go on or all raise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ucpformat.distributed.group import Group, agreed
from ucpformat.errors import error
from ucpformat.frameworks.destinations import copy_into, own_memory
from ucpformat.frameworks.matching import LoadOptions, Match, match_state, stored_slots, stored_values
from ucpformat.frameworks.mismatches import of_match, of_unexpected
from ucpformat.frameworks.state_paths import replace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.frameworks.local_tensors import LocalTensor
    from ucpformat.geometry import Box
    from ucpformat.reader import Checkpoint
    from ucpformat.storage.part import StoredSlot
    from ucpformat.views import SlotView

__all__ = ["LoadOptions", "fill_state", "stored_slots", "stored_values"]

_STAGED_BYTES = 1 << 28


def fill_state(state: dict[str, Any], checkpoint: Checkpoint, group: Group, options: LoadOptions) -> None:
    """Fill the tensors of ``state`` and replace its other entries.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``, naming every entry that is missing, unexpected or differs.
    """
    plan: Match | None = None

    def compare() -> bytes:
        nonlocal plan
        plan = match_state(state, checkpoint, group.rank, options)
        problem = of_match(plan)
        if problem is not None:
            raise error("UCP-E-MISMATCH", problem)
        return json.dumps(plan.unexpected).encode()

    extra = [set(json.loads(reply)) for reply in agreed(group, compare)]
    unexpected = sorted(set.intersection(*extra))
    if unexpected and options.strict:
        raise error("UCP-E-MISMATCH", of_unexpected(unexpected))

    def read() -> bytes:
        if plan is not None:
            _read(plan.tensors, checkpoint, group.rank)
        return b""

    agreed(group, read)
    for path, value in plan.values if plan is not None else ():
        replace(state, path, value)


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
