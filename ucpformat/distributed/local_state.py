"""What one process has to save: slots of which it holds a part, and what is not a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ucpformat.model.state import StateDocument

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ucpformat.jsonio import JsonValue
    from ucpformat.writer import AtomSpec

__all__ = ["ArraySource", "LocalState", "OwnValue", "SlotName"]

SlotName = tuple[str, str]
"""An atom's name and a slot's."""
ArraySource = Callable[[], "NDArray[np.generic]"]
"""Gives a local tensor in host memory when it is about to be written; it may copy it there."""


@dataclass(frozen=True, slots=True)
class OwnValue:
    """An encoded value of the process at ``position`` of ``size`` along an axis; None for its place in the group."""

    value: JsonValue
    position: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class LocalState:
    """One process's part of what is to be saved.

    ``atoms`` have logical shapes; the layout of a slot says how the ranks of its mesh hold it, and without one
    every rank that lists the slot holds all of it. ``arrays`` give the local tensors, of the shapes that the layouts
    say; that of a slot whose layout puts it into a buffer is the buffer. ``state`` has values, optimizers and
    annotations; what ranks list alike has to be equal. ``devices`` has the torch tensors of slots that lie on an
    accelerator: what their ``arrays`` would give copies of. ``own`` are
    the values of this process's own, of which ``state`` has what is alike on all ranks. ``digest_on_device`` gives
    digests of eight bytes of tensors of ``devices``, where they lie. ``changed`` says of slots which indices of their
    first dimension may differ from the base of an increment. ``fences`` has slots that nothing changes but behind one
    of these fences (`ucpformat.distributed.later_copies`).
    """

    atoms: Sequence[AtomSpec]
    arrays: Mapping[SlotName, ArraySource]
    state: StateDocument = field(default_factory=StateDocument)
    devices: Mapping[SlotName, Any] = field(default_factory=dict)
    own: Mapping[str, OwnValue] = field(default_factory=dict)
    digest_on_device: Callable[[Sequence[Any]], Sequence[bytes]] | None = None
    changed: Mapping[SlotName, NDArray[np.bool_]] = field(default_factory=dict)
    fences: Mapping[SlotName, frozenset[int]] = field(default_factory=dict)
