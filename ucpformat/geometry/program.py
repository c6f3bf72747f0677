"""Interval programs: the steps on one dim, compiled, and run at a coordinate (SPEC section 13)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ucpformat.errors import error
from ucpformat.geometry.box import row_major_strides
from ucpformat.geometry.intervals import (
    HOLE,
    Interval,
    check_sum,
    cut_up,
    extent_of,
    merged,
    part,
    rule_sizes,
    taken,
)
from ucpformat.geometry.mesh import Coordinate, Mesh
from ucpformat.geometry.steps import BlockRule, Blocks, Join, Pad, Rule, Shard

__all__ = [
    "Operation",
    "Paste",
    "Place",
    "Program",
    "axes_of",
    "axis_of",
    "compiled",
    "projections",
    "run",
    "trials",
]


MAX_EXTENT: Final = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Split:
    """Shard: ``sizes`` of the axis at each position of the axis ``by``, or one size where that is None."""

    axis: int
    by: int | None
    sizes: tuple[int, ...]
    rule: Rule
    at: str

    def kept(self, block: list[Interval], coordinate: Coordinate) -> list[Interval]:
        """Return the part of a block that ``coordinate`` keeps; raises as `part`."""
        parts = self.sizes[0 if self.by is None else coordinate[self.by]]
        extent = extent_of(block)
        return taken(block, *part(extent, parts, self.rule, coordinate[self.axis], self.at))


@dataclass(frozen=True, slots=True)
class Cut:
    """Blocks, with the splits of those that carry their own steps."""

    sizes: tuple[int, ...] | BlockRule
    own: tuple[tuple[Split, ...] | None, ...]
    at: str

    def blocks(self, intervals: list[Interval], coordinate: Coordinate) -> list[tuple[list[Interval], bool]]:
        """Return each block, and whether later steps act on it; UCP-E-LAYOUT where sizes do not fit."""
        extent = extent_of(intervals)
        if isinstance(self.sizes, BlockRule):
            sizes = rule_sizes(extent, self.sizes.count, self.sizes.rule, self.at)
        else:
            check_sum(self.sizes, extent, self.at)
            sizes = self.sizes
        blocks: list[tuple[list[Interval], bool]] = []
        for block, own in zip(cut_up(intervals, sizes), self.own, strict=True):
            for split in own or ():
                block = split.kept(block, coordinate)
            blocks.append((block, own is None))
        return blocks


@dataclass(frozen=True, slots=True)
class Paste:
    """Join."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Pad."""

    to: int | None
    multiple: int
    at: str

    def padded(self, intervals: list[Interval]) -> list[Interval]:
        """Return the dim with its padding; UCP-E-LAYOUT where it is longer already."""
        extent = extent_of(intervals)
        full = -(-extent // self.multiple) * self.multiple if self.to is None else self.to
        if full < extent:
            raise error("UCP-E-LAYOUT", f"{extent} elements cannot be padded to {full}", at=f"{self.at}/to")
        if full > MAX_EXTENT:
            raise error("UCP-E-LIMIT", f"a padded extent of {full} is more than 2^53-1", at=self.at)
        return [*intervals, (HOLE, full - extent)]


@dataclass(frozen=True, slots=True)
class Place:
    """Concat: offset and total of the buffer at each position of ``axes``, row-major by ``strides``."""

    axes: tuple[int, ...]
    strides: tuple[int, ...]
    offsets: tuple[int, ...]
    totals: tuple[int, ...]
    at: str

    def entry(self, coordinate: Coordinate) -> tuple[int, int]:
        """Return the offset and the total at a coordinate."""
        entry = sum(coordinate[axis] * stride for axis, stride in zip(self.axes, self.strides, strict=True))
        return self.offsets[entry], self.totals[entry]

    def placed(self, intervals: list[Interval], coordinate: Coordinate) -> list[Interval]:
        """Return the buffer around the tensor; UCP-E-LAYOUT where that does not fit in."""
        offset, total = self.entry(coordinate)
        after = total - offset - extent_of(intervals)
        if after < 0:
            raise error(
                "UCP-E-LAYOUT",
                f"{extent_of(intervals)} elements at {offset} leave a buffer of {total}",
                at=self.at,
            )
        return [(HOLE, offset), *intervals, (HOLE, after)]


Operation = Split | Cut | Paste | Tail | Place
Program = tuple[Operation, ...]


def compiled(step: Shard | Blocks | Join | Pad, mesh: Mesh, at: str) -> Operation:
    """Compile a step that acts on one dim."""
    match step:
        case Shard():
            return _split(step, mesh, at)
        case Join():
            return Paste()
        case Pad():
            return Tail(step.to, step.multiple or 1, at)
        case _:
            count = step.sizes.count if isinstance(step.sizes, BlockRule) else len(step.sizes)
            own: list[tuple[Split, ...] | None] = []
            for block, shards in enumerate(step.steps or (None,) * count):
                if shards is None:
                    own.append(None)
                else:
                    own.append(
                        tuple(
                            _split(shard, mesh, f"{at}/steps/{block}/{number}")
                            for number, shard in enumerate(shards)
                        )
                    )
            return Cut(step.sizes, tuple(own), at)


def _split(step: Shard, mesh: Mesh, at: str) -> Split:
    axis = axis_of(mesh, step.axis)
    by = mesh.governing_axis(axis)
    if by == axis:
        return Split(axis, None, (mesh.shape[axis],), step.rule, at)
    coordinates = [
        tuple(position if other == by else 0 for other in range(axis)) for position in range(mesh.shape[by])
    ]
    return Split(axis, by, tuple(mesh.size_at(axis, head) for head in coordinates), step.rule, at)


def axis_of(mesh: Mesh, name: str) -> int:
    """Return the index of an axis that the mesh has."""
    return [axis.name for axis in mesh.axes].index(name)


def axes_of(operation: Operation) -> set[int]:
    """Return the axes that the outcome of an operation depends on."""
    match operation:
        case Split():
            return {operation.axis} | _failing_axes(operation)
        case Cut():
            return set[int]().union(*(axes_of(split) for splits in operation.own for split in splits or ()))
        case Place():
            return set(operation.axes)
        case _:
            return set()


def _failing_axes(operation: Operation) -> set[int]:
    """Return the axes on which it depends whether the operation fails, given what it acts on."""
    if isinstance(operation, Split):
        # A split fails at all of its own positions or at none.
        return set() if operation.by is None else {operation.by}
    return axes_of(operation)


def _can_fail(operation: Operation) -> bool:
    match operation:
        case Split():
            return operation.rule not in ("ceil", "balanced")
        case Tail():
            return operation.to is not None
        case _:
            return not isinstance(operation, Paste)


def trials(
    program: Program, mesh: Mesh, axes: set[int], present: tuple[tuple[int, frozenset[int]], ...]
) -> Iterator[tuple[Program, Coordinate]]:
    """Yield what must run without error for the program to run everywhere.

    That is the part that ends with the last operation that can fail, at every coordinate of the axes that its
    failing depends on: ``axes``, on which the extent before the program depends, and those of the operations.
    Coordinates that hold nothing, by the positions in ``present`` on some axes, are left out.
    """
    risky = [number for number, operation in enumerate(program) if _can_fail(operation)]
    if risky:
        last = risky[-1]
        depends = axes.union(*map(axes_of, program[:last])) | _failing_axes(program[last])
        for coordinate, _ in projections(mesh, depends, present):
            yield program[: last + 1], coordinate


def projections(
    mesh: Mesh, axes: set[int], present: tuple[tuple[int, frozenset[int]], ...] = ()
) -> Iterator[tuple[Coordinate, int]]:
    """Yield every coordinate over ``axes``, zero elsewhere, each with its position in the mesh's order.

    Of an axis in ``present``, where it is one of ``axes``, only these positions count. Where an axis is
    ragged, the axis that decides its size must be among them.
    """
    shape = mesh.shape
    spans: list[Sequence[int]] = [range(size) if axis in axes else (0,) for axis, size in enumerate(shape)]
    for axis, positions in present:
        if axis in axes:
            spans[axis] = sorted(positions)
    if mesh.is_ragged:
        for coordinate in itertools.product(*spans):
            if all(coordinate[axis] < mesh.size_at(axis, coordinate) for axis in axes):
                yield coordinate, mesh.position_of(coordinate)
        return
    strides = row_major_strides(shape)
    for coordinate in itertools.product(*spans):
        yield coordinate, sum(map(int.__mul__, coordinate, strides))


def run(program: Program, extent: int, coordinate: Coordinate) -> list[Interval]:
    """Return what ``coordinate`` keeps of a dim of ``extent``, maximally merged."""
    # Each block with its interval list, and whether later steps act on it.
    blocks: list[tuple[list[Interval], bool]] = [([(0, extent)], True)]
    for operation in program:
        match operation:
            case Split():
                blocks = [
                    (operation.kept(block, coordinate) if is_free else block, is_free)
                    for block, is_free in blocks
                ]
            case Cut():
                # The layout has no blocks within blocks, so that there is exactly one here and below.
                blocks = operation.blocks(blocks[0][0], coordinate)
            case Tail():
                blocks = [(operation.padded(blocks[0][0]), True)]
            case Place():
                blocks = [(operation.placed(blocks[0][0], coordinate), True)]
            case _:
                blocks = [(_concatenated(blocks), True)]
    return merged([interval for interval in _concatenated(blocks) if interval[1]])


def _concatenated(blocks: list[tuple[list[Interval], bool]]) -> list[Interval]:
    return [interval for block, _ in blocks for interval in block]
