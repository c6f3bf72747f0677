"""Groups: from the ordered members of a flat buffer to the place of each (SPEC section 12)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ucpformat.errors import error
from ucpformat.geometry.box import row_major_strides
from ucpformat.geometry.buffer import BufferPlace
from ucpformat.geometry.layout import Layout
from ucpformat.geometry.lower import Lowering, lower
from ucpformat.geometry.mesh import Mesh
from ucpformat.geometry.program import projections
from ucpformat.geometry.steps import Concat

__all__ = ["BufferMember", "buffer_places"]


@dataclass(frozen=True, slots=True)
class BufferMember:
    """One tensor of a group: its logical shape, and its layout, which has a `Concat`."""

    layout: Layout
    shape: tuple[int, ...]


def buffer_places(
    members: Sequence[BufferMember], *, align: int = 1, multiple: int = 1
) -> tuple[BufferPlace, ...]:
    """Return the place of every member of a group, in its order.

    At every coordinate the members follow one another, each begun at the next multiple of ``align`` elements;
    the buffer ends at the next ``multiple`` after the last. A member that a coordinate does not hold takes no
    room there. The places have an entry per position of those axes along which they differ, where any member
    is held.

    Raises UCP-E-LAYOUT, at the index of a member, where it has no `Concat`, another mesh than the others, or
    does not lower; and for an ``align`` or ``multiple`` below 1.
    """
    if align < 1 or multiple < 1:
        raise error("UCP-E-LAYOUT", f"align {align} and multiple {multiple} must be at least 1")
    if not members:
        return ()
    mesh = members[0].layout.mesh
    # Most members of a large group are alike.
    lowerings: dict[BufferMember, Lowering] = {}
    for number, member in enumerate(members):
        if member not in lowerings:
            lowerings[member] = _before_the_buffer(member, mesh, f"/{number}")
    names = [axis.name for axis in mesh.axes]
    used = set[int]().union(*(lowering.used_axes for lowering in lowerings.values()))
    rows: dict[tuple[int, ...], tuple[int, ...]] = {}
    held: set[tuple[int, ...]] = set()
    for coordinate, _ in projections(mesh, used):
        sizes_here = {member: lowering.size_at(coordinate) for member, lowering in lowerings.items()}
        row = _row([sizes_here[member] for member in members], align, multiple)
        rows[tuple(coordinate[axis] for axis in sorted(used))] = row
        if any(size is not None for size in sizes_here.values()):
            held.add(row)
    axes = sorted(used)
    # Where no member is held, any place will do.
    if len(held) <= 1:
        axes, rows = [], {(): next(iter(held or rows.values()))}
    sizes = tuple(mesh.shape[axis] for axis in axes)
    # Positions that a ragged mesh does not have are never looked up.
    table = [(0,) * (len(members) + 1)] * math.prod(sizes)
    for key, row in rows.items():
        table[sum(map(int.__mul__, key, row_major_strides(sizes)))] = row
    totals = tuple(row[-1] for row in table)
    return tuple(
        BufferPlace(tuple(row[number] for row in table), totals, tuple(names[axis] for axis in axes))
        for number in range(len(members))
    )


def _before_the_buffer(member: BufferMember, mesh: Mesh, at: str) -> Lowering:
    steps = member.layout.steps
    number = next((number for number, step in enumerate(steps) if isinstance(step, Concat)), None)
    if number is None or member.layout.mesh != mesh:
        raise error("UCP-E-LAYOUT", "members of a group have a concat, and one mesh for all", at=at)
    return lower(Layout(mesh, steps[:number]), member.shape)


def _row(lengths: list[int | None], align: int, multiple: int) -> tuple[int, ...]:
    """Return the offset of every member, and the total; lengths of what is not there are None."""
    row: list[int] = []
    end = 0
    for length in lengths:
        row.append(end if length is None else -(-end // align) * align)
        end = row[-1] + (length or 0)
    return (*row, -(-end // multiple) * multiple)
