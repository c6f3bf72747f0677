"""Whether slots fit the layouts that they name, and lie beside each other in buffers (SPEC 12 and 12.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ucpformat.errors import UcpError, error
from ucpformat.geometry import (
    BlockRule,
    Blocks,
    BufferPlace,
    Concat,
    Layout,
    Lowering,
    Partial,
    PlacedTensor,
    Reduce,
    Scale,
    buffer_faults,
    buffer_tail,
    lower,
)

__all__ = ["SpreadFault", "SpreadSlot", "check_partial_dtype", "check_scale_dtype", "spread_faults"]

_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})
_COMPLEX: Final = frozenset({"complex64", "complex128"})
_INTEGERS: Final = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_FEW_BLOCKS: Final = 256
"""Up to here no offset in a buffer cuts a tensor into more boxes than the limit."""


@dataclass(frozen=True, slots=True)
class SpreadSlot:
    """What a slot says of how its tensor was spread."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: Layout | None
    place: BufferPlace | None = None


@dataclass(frozen=True, slots=True)
class SpreadFault:
    """What is wrong with the slot of a number: with its layout, at a pointer relative to it, or with the slot."""

    number: int
    of_layout: bool
    refusal: UcpError


class _Kinds:
    """Layouts by number, equal ones counted once; most slots share theirs, and to hash one takes long."""

    def __init__(self) -> None:
        self.layouts: list[Layout] = []
        self.buffers: list[tuple[int, str] | None] = []
        self.concats: list[int] = []
        self.many_blocks: list[bool] = []
        self._numbers: dict[Layout, int] = {}
        self._by_identity: dict[int, int] = {}
        self._meshes: dict[object, int] = {}

    def number(self, layout: Layout) -> int:
        found = self._by_identity.get(id(layout))
        if found is None:
            found = self._numbers.setdefault(layout, len(self.layouts))
            self._by_identity[id(layout)] = found
            if found == len(self.layouts):
                self._add(layout)
        return found

    def _add(self, layout: Layout) -> None:
        self.layouts.append(layout)
        tail = buffer_tail(layout)
        mesh = self._meshes.setdefault(layout.mesh, len(self._meshes))
        self.buffers.append(None if tail is None else (mesh, tail[0]))
        self.concats.append(
            next((number for number, step in enumerate(layout.steps) if isinstance(step, Concat)), 0)
        )
        sizes = (step.sizes for step in layout.steps if isinstance(step, Blocks))
        counts = (size.count if isinstance(size, BlockRule) else len(size) for size in sizes)
        self.many_blocks.append(math.prod(counts) > _FEW_BLOCKS)


def spread_faults(
    slots: Sequence[SpreadSlot],
    check: Callable[[Lowering], None] | None = None,
    *,
    admit: Callable[[Layout], bool] = lambda _: True,
) -> Iterator[SpreadFault]:
    """Yield what is wrong with how slots were spread; slots that are alike count once.

    Those of one name whose layouts have one mesh and one group lie in one buffer. ``check`` raises what else
    is wrong with a layout. ``admit`` is asked before a layout is applied to a shape, and refuses what would take
    too long: the slots that have it are passed over.
    """
    kinds = _Kinds()
    seen: set[object] = set()
    buffers: dict[tuple[int, str, str], list[int]] = {}
    passed: set[tuple[int, str, str]] = set()
    for number, slot in enumerate(slots):
        kind = None if slot.layout is None else kinds.number(slot.layout)
        buffer = None if kind is None else kinds.buffers[kind]
        if (buffer is None) != (slot.place is None):
            message = "a slot says where in a buffer it lies when, and only when, its layout has a concat"
            yield SpreadFault(number, False, error("UCP-E-LAYOUT", message))
            continue
        if slot.layout is None or kind is None:
            continue
        if buffer is not None:
            buffers.setdefault((*buffer, slot.name), []).append(number)
        try:
            _check_dtype(slot.layout, slot.dtype)
        except UcpError as refusal:
            yield SpreadFault(number, False, refusal)
        key = _alike(slot, kind, kinds.many_blocks[kind])
        if key in seen:
            continue
        if not admit(slot.layout):
            if buffer is not None:
                passed.add((*buffer, slot.name))
            continue
        try:
            lowering = lower(slot.layout, slot.shape, place=slot.place)
            if check is not None:
                check(lowering)
        except UcpError as refusal:
            step = f"/steps/{kinds.concats[kind]}"
            if buffer is not None and (refusal.at == step or refusal.at.startswith(f"{step}/")):
                continue  # of the place: that is said below
            yield SpreadFault(number, True, refusal)
        seen.add(key)
    for name, found in buffers.items():
        if name not in passed:
            yield from _buffer(slots, found)


def _check_dtype(layout: Layout, dtype: str) -> None:
    for step in layout.steps:
        if isinstance(step, Partial):
            check_partial_dtype(dtype, step.reduce)
        elif isinstance(step, Scale):
            check_scale_dtype(dtype)


def check_partial_dtype(dtype: str, reduce: Reduce, *, at: str = "") -> None:
    """Raise UCP-E-LAYOUT unless elements of the data type can be reduced so (UCP-D-078)."""
    if dtype not in (*_FLOATS, *_INTEGERS) and (reduce == "max" or dtype not in _COMPLEX):
        raise error("UCP-E-LAYOUT", f"no {reduce} of {dtype} is defined: reduce in a wider type", at=at)


def check_scale_dtype(dtype: str, *, at: str = "") -> None:
    """Raise UCP-E-LAYOUT unless elements of the data type have factors (UCP-D-082)."""
    if dtype not in (*_FLOATS, *_COMPLEX):
        raise error("UCP-E-LAYOUT", f"elements of {dtype} have no factor: leave the step out", at=at)


def _alike(slot: SpreadSlot, kind: int, many_blocks: bool) -> object:
    place = slot.place
    if place is None or many_blocks:
        return kind, slot.shape, place
    # Whether the offset fits is checked with the other tensors of the buffer.
    return kind, slot.shape, place.totals, place.axes


def _buffer(slots: Sequence[SpreadSlot], numbers: Sequence[int]) -> Iterator[SpreadFault]:
    tensors = [
        PlacedTensor(slot.layout, slot.shape, slot.place)
        for slot in (slots[number] for number in numbers)
        if slot.layout is not None and slot.place is not None
    ]
    try:
        for index, message in buffer_faults(tensors):
            yield SpreadFault(numbers[index], False, error("UCP-E-LAYOUT", message))
    except UcpError:
        return  # a layout does not fit its tensor, which was said above
