"""What keeps tensors from lying in one buffer (SPEC section 12.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from ucpformat.errors import UcpError
from ucpformat.geometry.box import row_major_strides
from ucpformat.geometry.buffer import BufferPlace, compiled_place
from ucpformat.geometry.layout import Layout
from ucpformat.geometry.lower import Lowering, lower
from ucpformat.geometry.mesh import Coordinate, Mesh
from ucpformat.geometry.program import Place, projections
from ucpformat.geometry.steps import Concat, Only, Step

__all__ = ["PlacedTensor", "buffer_faults", "buffer_head", "buffer_tail"]


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """One tensor of a buffer: a layout with a `Concat`, the logical shape, and where it lies."""

    layout: Layout
    shape: tuple[int, ...]
    place: BufferPlace


def buffer_head(layout: Layout) -> Layout | None:
    """Return the layout up to its `Concat`, which gives what is put into the buffer; None without one.

    Where an `Only` behind it leaves nothing, nothing is put there.
    """
    number = _concat(layout)
    if number is None:
        return None
    only = tuple(step for step in layout.steps[number:] if isinstance(step, Only))
    return Layout(layout.mesh, layout.steps[:number] + only)


def buffer_tail(layout: Layout) -> tuple[str, tuple[Step, ...]] | None:
    """Return the group of the `Concat` of a layout and the steps behind it, None without one."""
    number = _concat(layout)
    if number is None:
        return None
    concat = layout.steps[number]
    return (concat.group if isinstance(concat, Concat) else ""), layout.steps[number + 1 :]


def _concat(layout: Layout) -> int | None:
    return next((number for number, step in enumerate(layout.steps) if isinstance(step, Concat)), None)


def buffer_faults(tensors: Sequence[PlacedTensor]) -> Iterator[tuple[int, str]]:
    """Yield the index of a tensor that does not lie in the buffer beside those before it, and why.

    The layouts have one mesh. A tensor is named once. The time is linear, up to sorting, in the number of
    tensors times that of the coordinates at which one lies, where those that split alike count once.

    Raises what lowering a layout up to its `Concat` raises.
    """
    if not tensors:
        return
    mesh = tensors[0].layout.mesh
    heads: dict[tuple[int, tuple[int, ...]], _Head] = {}
    entries: dict[tuple[tuple[int, frozenset[int]], ...], list[_Entry]] = {}
    axes: set[int] = set()
    for number, tensor in enumerate(tensors):
        key = (id(tensor.layout), tensor.shape)  # to hash a large mesh takes long
        if key not in heads:
            heads[key] = _head(tensor)
        head = heads[key]
        try:
            place = compiled_place(tensor.place, mesh, head.alike, "")
        except UcpError as refusal:
            yield number, refusal.message
            continue
        entries.setdefault(head.present, []).append(_Entry(number, head, place))
        axes.update(head.axes, place.axes)
    found: set[int] = set()
    for coordinate, _ in projections(mesh, axes, _somewhere(list(entries))):
        at_hand = [
            entry
            for present, group in entries.items()
            if all(coordinate[axis] in positions for axis, positions in present)
            for entry in group
        ]
        for number, message in _faults_at(coordinate, at_hand, mesh):
            if number not in found:
                found.add(number)
                yield number, message


def _somewhere(
    presents: Sequence[tuple[tuple[int, frozenset[int]], ...]],
) -> tuple[tuple[int, frozenset[int]], ...]:
    """Return where at least one of several is held at most: positions on the axes on which each is limited."""
    limits: dict[int, frozenset[int]] = dict(presents[0]) if presents else {}
    for present in presents[1:]:
        others = dict(present)
        limits = {axis: limits[axis] | others[axis] for axis in limits.keys() & others.keys()}
    return tuple(sorted(limits.items()))


def _faults_at(coordinate: Coordinate, entries: list[_Entry], mesh: Mesh) -> Iterator[tuple[int, str]]:
    where = dict(zip([axis.name for axis in mesh.axes], coordinate, strict=True))
    spans: list[tuple[int, int, int]] = []
    shared: int | None = None
    for entry in entries:
        offset, total = entry.place.entry(coordinate)
        stop = offset + entry.head.size_at(coordinate)
        if stop > total:
            yield entry.number, f"at {where}, [{offset}, {stop}) leaves a buffer of {total} elements"
        elif shared is not None and total != shared:
            yield entry.number, f"at {where}, the buffer has {total} elements here and {shared} elsewhere"
        elif offset < stop:
            spans.append((offset, stop, entry.number))
        shared = total if shared is None else shared
    spans.sort(key=itemgetter(0))
    end, before = 0, 0
    for start, stop, number in spans:
        if start < end:
            yield max(number, before), f"at {where}, it overlaps another tensor from element {start} on"
        if stop > end:
            end, before = stop, number


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    head: _Head
    place: Place


class _Head:
    """What a layout puts into the buffer: where it does, and how many elements at each coordinate."""

    def __init__(self, lowering: Lowering, alike: frozenset[str]) -> None:
        self.alike = alike
        self.present = lowering.present
        self.axes = tuple(sorted(lowering.used_axes))
        mesh = lowering.layout.mesh
        self._strides = row_major_strides(tuple(mesh.shape[axis] for axis in self.axes))
        self._sizes = [0] * math.prod(mesh.shape[axis] for axis in self.axes)
        for coordinate, _ in projections(mesh, set(self.axes), self.present):
            self._sizes[self._index(coordinate)] = lowering.size_at(coordinate) or 0

    def size_at(self, coordinate: Coordinate) -> int:
        return self._sizes[self._index(coordinate)]

    def _index(self, coordinate: Coordinate) -> int:
        return sum(coordinate[axis] * stride for axis, stride in zip(self.axes, self._strides, strict=True))


def _head(tensor: PlacedTensor) -> _Head:
    number, head = _concat(tensor.layout), buffer_head(tensor.layout)
    if number is None or head is None:
        raise AssertionError("a placed tensor has a concat")
    return _Head(lower(head, tensor.shape), tensor.layout.axes_of_buffer(number))
