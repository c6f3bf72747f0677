"""Lowering: from a layout and a shape to the pieces that each coordinate holds (SPEC section 13).

Views and permutations say which dims are spread. Before Flatten every such dim is spread on its own: what a
coordinate keeps of it is an interval list, and the pieces are the products of one interval per dim. After
Flatten the local tensor is one dim of linear positions; its intervals are decomposed into boxes of the local
tensor, which meet the same products. So the number of pieces follows blocks and shards, never extents.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ucpformat.errors import error
from ucpformat.geometry.box import Box, decompose_flat_range, is_extents, row_major_strides
from ucpformat.geometry.buffer import BufferPlace, compiled_place
from ucpformat.geometry.canonical import canonical
from ucpformat.geometry.intervals import HOLE, Interval, extent_of
from ucpformat.geometry.layout import Layout
from ucpformat.geometry.mesh import Axis, Coordinate
from ucpformat.geometry.piece import LocalMap, Piece, Region, Strided
from ucpformat.geometry.program import (
    Operation,
    Place,
    Program,
    axes_of,
    axis_of,
    compiled,
    projections,
    run,
    trials,
)
from ucpformat.geometry.reach import BufferReach
from ucpformat.geometry.refine import Part, assembled, check_count, refined
from ucpformat.geometry.reinterpret import Reinterpretation, reinterpret
from ucpformat.geometry.steps import (
    Blocks,
    Concat,
    Flatten,
    Join,
    LocalOnly,
    Only,
    Pad,
    Partial,
    Permute,
    Reduce,
    Scale,
    Shard,
    View,
)

__all__ = ["Lowering", "lower"]

MAX_ELEMENTS = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Lowering:
    """A layout applied to a shape; made and checked by `lower`, evaluated coordinate by coordinate.

    Pieces are boxes of ``view``, a shape of the same elements in the same row-major order as ``shape``, and
    equal to it for layouts without views and permutations. Local values are ``scale`` times logical ones.
    ``reduce`` says how the contributions of a source are to be reduced, where any are.
    """

    layout: Layout
    shape: tuple[int, ...]
    view: tuple[int, ...]
    scale: Fraction
    reduce: Reduce | None
    _seen: Reinterpretation
    _dims: tuple[Program, ...]
    _flat: Program | None
    _present: tuple[tuple[int, frozenset[int]], ...]
    _partial: tuple[int, ...]

    def at(self, coordinate: Coordinate) -> LocalMap | None:
        """Return what ``coordinate`` holds, or None where it holds nothing.

        Raises UCP-E-LAYOUT off the mesh, UCP-E-LIMIT over `MAX_PIECES` and over `MAX_ELEMENTS`.
        """
        self.layout.mesh.check_coordinate(coordinate)
        if any(coordinate[axis] not in positions for axis, positions in self._present):
            return None
        if self.own_axes is not None:
            return self._entry(self.layout.mesh.position_of(coordinate))
        dims = [
            run(program, extent, coordinate)
            for program, extent in zip(self._dims, self._seen.extents, strict=True)
        ]
        local_shape = tuple(map(extent_of, dims))
        _check_elements(local_shape)
        if self._flat is None:
            pieces = list(self._pieces(dims, Box.whole(local_shape), local_shape, 0))
            # Plain dims are spread one by one, and products of maximal intervals are canonical as they are.
            ordered = tuple(pieces) if self._seen.is_plain else canonical(pieces, self.view)
            return LocalMap(local_shape, ordered)
        ranges = run(self._flat, math.prod(local_shape), coordinate)
        pieces = []
        position = 0
        for start, length in ranges:
            if start != HOLE:
                for box in decompose_flat_range(local_shape, start, start + length):
                    pieces.extend(self._pieces(dims, box, local_shape, position - start))
                    check_count(len(pieces))
            position += length
        _check_elements((position,))
        # One range of a plain tensor decomposes canonically; boxes of several may continue each other, and so
        # may boxes that lose a part to padding.
        padded = any(start == HOLE for intervals in dims for start, _ in intervals)
        is_canonical = self._seen.is_plain and not padded and sum(start != HOLE for start, _ in ranges) <= 1
        return LocalMap((position,), tuple(pieces) if is_canonical else canonical(pieces, self.view))

    def size_at(self, coordinate: Coordinate) -> int | None:
        """Return how many elements the local tensor of ``coordinate`` has, or None where it holds nothing."""
        if any(coordinate[axis] not in positions for axis, positions in self._present):
            return None
        if self.own_axes is not None:
            return math.prod(self.shape[1:])
        dims = (
            extent_of(run(program, extent, coordinate))
            for program, extent in zip(self._dims, self._seen.extents, strict=True)
        )
        size = math.prod(dims)
        return size if self._flat is None else extent_of(run(self._flat, size, coordinate))

    @property
    def own_axes(self) -> tuple[Axis, ...] | None:
        """The axes of the mesh where every coordinate has an entry of its own, never merged; else None."""
        return self.layout.mesh.axes if self.layout.entries is not None else None

    @property
    def keeps_entries(self) -> bool:
        """Whether entries stay with their coordinates where another mesh has as many."""
        return self.layout.entries == LocalOnly("keep")

    def regions(self) -> tuple[Region, ...]:
        """Return the distinct local maps with their holders, by the first coordinate that holds each.

        Coordinates that hold nothing are in none. Each map is computed once for all positions of the axes
        that no step uses.
        """
        return self._grouped(self._copies(projections(self.layout.mesh, self.used_axes, self._present)))

    def filled(self) -> tuple[Region, ...]:
        """Return the regions whose maps have pieces; of a buffer, most ranks are never looked at."""
        regions = self._grouped(self._copies(self._reached())) if self._is_looked_up else self.regions()
        return tuple(region for region in regions if region.local_map.pieces)

    def _grouped(self, copies: Iterator[tuple[Coordinate, list[list[int]]]]) -> tuple[Region, ...]:
        mesh = self.layout.mesh
        holders: dict[LocalMap, list[list[int]]] = {}
        for coordinate, contributions in copies:
            local_map = self.at(coordinate)
            if local_map is not None:
                found = holders.setdefault(local_map, [[] for _ in contributions])
                for ranks, positions in zip(found, contributions, strict=True):
                    ranks.extend(map(mesh.rank_at, positions))
        return tuple(
            Region(
                local_map,
                tuple(sorted(itertools.chain(*found))),
                tuple(tuple(sorted(ranks)) for ranks in found) if self._partial else (),
            )
            for local_map, found in holders.items()
        )

    @property
    def _is_looked_up(self) -> bool:
        return not self.layout.mesh.is_ragged and any(isinstance(step, Place) for step in self._flat or ())

    def _reached(self) -> Iterator[tuple[Coordinate, int]]:
        """Yield what `projections` does, but for coordinates whose part of the buffer has nothing of the tensor."""
        reach = BufferReach(self.layout.mesh, self._flat or (), self.used_axes, self._present)
        for head in reach.heads():
            extents = (
                extent_of(run(program, extent, head))
                for program, extent in zip(self._dims, self._seen.extents, strict=True)
            )
            yield from reach.coordinates(head, run(reach.head, math.prod(extents), head))

    def _copies(
        self, used_coordinates: Iterator[tuple[Coordinate, int]]
    ) -> Iterator[tuple[Coordinate, list[list[int]]]]:
        """Yield one of the coordinates that hold the same, and per contribution the positions of all."""
        mesh = self.layout.mesh
        used = self.used_axes
        if mesh.is_ragged:
            summands = [coordinate for coordinate, _ in projections(mesh, set(self._partial))]
            numbers = {
                tuple(summand[axis] for axis in self._partial): number
                for number, summand in enumerate(summands)
            }
            alike: dict[tuple[int, ...], tuple[Coordinate, list[list[int]]]] = {}
            for position, coordinate in enumerate(mesh.coordinates()):
                key = tuple(coordinate[axis] for axis in sorted(used))
                _, found = alike.setdefault(key, (coordinate, [[] for _ in summands]))
                found[numbers[tuple(coordinate[axis] for axis in self._partial)]].append(position)
            yield from alike.values()
            return
        free = set(range(len(mesh.axes))) - used - set(self._partial)
        others = [position for _, position in projections(mesh, free)]
        starts = [position for _, position in projections(mesh, set(self._partial))]
        for coordinate, position in used_coordinates:
            yield coordinate, [[position + start + other for other in others] for start in starts]

    @property
    def present(self) -> tuple[tuple[int, frozenset[int]], ...]:
        """Indices of axes, each with the positions where anything is held at all."""
        return self._present

    @property
    def used_axes(self) -> set[int]:
        """The indices of the axes along which coordinates may hold different cells."""
        if self.own_axes is not None:
            return set(range(len(self.layout.mesh.axes)))
        programs = (*self._dims, self._flat or ())
        used = {axis for axis, _ in self._present}.union(*map(axes_of, itertools.chain(*programs)))
        return used.union(map(self.layout.mesh.governing_axis, used))

    def _entry(self, position: int) -> LocalMap:
        inner = self.shape[1:]
        if 0 in inner:
            return LocalMap(inner, ())
        strides = tuple(
            stride if extent > 1 else 0
            for stride, extent in zip(row_major_strides(inner), inner, strict=True)
        )
        box = Box((position, *(0 for _ in inner)), (1, *inner))
        return LocalMap(inner, (Piece(box, Strided(0, (0, *strides))),))

    def _pieces(
        self, dims: list[list[Interval]], box: Box, local_shape: tuple[int, ...], shift: int
    ) -> Iterator[Piece]:
        """Return the pieces inside ``box`` of a local tensor whose memory lies ``shift`` elements further on."""
        if 0 in self.shape:
            return
        strides = row_major_strides(local_shape)
        parts: list[list[Part]] = []
        for intervals, low, high, stride, group in zip(
            dims, box.offset, box.stop, strides, self._seen.dims, strict=True
        ):
            extents = tuple(self.view[dim] for dim in group)
            found: list[Part] = []
            position = 0
            for start, length in intervals:
                first, last = max(low, position), min(high, position + length)
                if first < last and start != HOLE:
                    found.extend(
                        (begin, shape, steps, first * stride + more)
                        for begin, shape, steps, more in refined(
                            extents, start + first - position, last - first, stride
                        )
                    )
                position += length
            parts.append(found)
        check_count(math.prod(map(len, parts)))
        for product in itertools.product(*parts):
            yield assembled(product, self._seen.dims, len(self.view), shift, self.scale)


def lower(layout: Layout, shape: tuple[int, ...], *, place: BufferPlace | None = None) -> Lowering:
    """Apply ``layout`` to a logical tensor of ``shape``.

    ``place`` is given where the layout has a `Concat`, and only there: where in the buffer this tensor lies.

    Raises UCP-E-SHAPE for a shape that is none, and UCP-E-LAYOUT, at a JSON pointer relative to the layout,
    for a dim that the tensor does not have, and for views, rules, block sizes, paddings and buffers that do
    not fit the extent as it stands at some coordinate.
    """
    if not is_extents(shape):
        raise error("UCP-E-SHAPE", f"a shape is a tuple of integers >= 0, not {shape!r}")
    mesh = layout.mesh
    seen = reinterpret(
        shape,
        [(step, f"/steps/{at}") for at, step in enumerate(layout.steps) if isinstance(step, View | Permute)],
    )
    dims: list[list[Operation]] = [[] for _ in seen.extents]
    flat: list[Operation] | None = None
    present: list[tuple[int, frozenset[int]]] = []
    partial: list[int] = []
    scale, reduce = Fraction(1), None
    for number, step in enumerate(layout.steps):
        at = f"/steps/{number}"
        match step:
            case Shard() | Blocks() | Join() | Pad():
                targets = dims if flat is None else [flat]
                if step.dim >= len(targets):
                    raise error(
                        "UCP-E-LAYOUT", f"a {len(dims)}-d tensor has no dim {step.dim}", at=f"{at}/dim"
                    )
                targets[step.dim].append(compiled(step, mesh, at))
            case Flatten():
                flat = []
            case Concat() if flat is not None:
                flat.append(compiled_place(place, mesh, layout.axes_of_buffer(number), at))
            case Only():
                present.append((axis_of(mesh, step.axis), frozenset(step.coordinates)))
            case Partial():
                partial.append(axis_of(mesh, step.axis))
                reduce = step.reduce
            case Scale():
                scale *= step.factor
            case LocalOnly() if not shape or shape[0] != mesh.size:
                raise error(
                    "UCP-E-LAYOUT",
                    f"a local tensor has one entry for each of {mesh.size} coordinates in dim 0, "
                    f"not the shape {shape}",
                    at=at,
                )
            case _:
                pass
    if place is not None and not any(isinstance(step, Concat) for step in layout.steps):
        raise error(
            "UCP-E-LAYOUT", "a place was given, but no step puts the tensor into a buffer", at="/steps"
        )
    programs = tuple(map(tuple, dims))
    program = None if flat is None else tuple(flat)
    lowering = Lowering(
        layout,
        shape,
        seen.view,
        scale,
        reduce,
        seen,
        programs,
        program,
        tuple(present),
        tuple(sorted(partial)),
    )
    _try(lowering)
    return lowering


def _check_elements(local_shape: tuple[int, ...]) -> None:
    """Raise UCP-E-LIMIT for a local tensor whose elements, padding included, other languages cannot count."""
    if math.prod(max(1, extent) for extent in local_shape) > MAX_ELEMENTS:
        raise error("UCP-E-LIMIT", f"a local tensor of shape {local_shape} has more than 2^53-1 elements")


def _try(lowering: Lowering) -> None:
    """Raise what some coordinate would raise."""
    mesh = lowering.layout.mesh
    programs, extents = lowering._dims, lowering._seen.extents
    for program, extent in zip(programs, extents, strict=True):
        for head, coordinate in trials(program, mesh, set(), lowering._present):
            run(head, extent, coordinate)
    if lowering._flat is not None:
        axes = set[int]().union(*map(axes_of, itertools.chain(*programs)))
        for head, coordinate in trials(lowering._flat, mesh, axes, lowering._present):
            kept = (
                run(program, extent, coordinate) for program, extent in zip(programs, extents, strict=True)
            )
            run(head, math.prod(tuple(map(extent_of, kept))), coordinate)
