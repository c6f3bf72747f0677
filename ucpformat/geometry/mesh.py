"""Meshes: named axes whose coordinates are ranks (SPEC section 12)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ucpformat.errors import error
from ucpformat.geometry.box import is_extents, row_major_strides

__all__ = ["MAX_COORDINATES", "Axis", "Coordinate", "Mesh", "MeshAxis", "RaggedAxis"]

MAX_COORDINATES: Final = 1 << 20
"""Largest mesh (SPEC UCP-D-041): lowering may have to visit every coordinate."""

Coordinate = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One axis of a mesh: a name, and how many positions it has (>= 1).

    >>> ucp.MeshAxis("tp", 8)
    MeshAxis(name='tp', size=8)
    """

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class RaggedAxis:
    """An axis with another size at each position of an earlier axis ``by``: stages of unequal width.

    ``sizes[i]`` (>= 1) is its number of positions where the position on ``by`` is ``i``.
    """

    name: str
    by: str
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """The largest size."""
        return max(self.sizes)


Axis = MeshAxis | RaggedAxis


@dataclass(frozen=True, slots=True)
class Mesh:
    """A grid of ranks. A coordinate is one position per axis, in axis order.

    ``ranks`` lists the rank at every coordinate, last axis fastest; None means 0, 1, 2, ... in that order.
    A mesh without axes has the one coordinate ``()``.

    Raises UCP-E-LAYOUT, at a JSON pointer relative to the mesh; UCP-E-LIMIT over `MAX_COORDINATES`.

    >>> mesh = ucp.Mesh((ucp.MeshAxis("dp", 2), ucp.MeshAxis("tp", 4)))
    >>> mesh.size, mesh.rank_of((1, 2)), mesh.coordinate_of(6)
    (8, 6, (1, 2))
    """

    axes: tuple[Axis, ...]
    ranks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        seen: dict[str, Axis] = {}
        for place, axis in enumerate(self.axes):
            at = f"/axes/{place}"
            if not axis.name or axis.name in seen:
                raise error(
                    "UCP-E-LAYOUT",
                    f"the axis name {axis.name!r} is empty or used twice: name every axis once",
                    at=f"{at}/name",
                )
            if isinstance(axis, RaggedAxis):
                _check_ragged(axis, seen.get(axis.by), at)
            elif type(axis.size) is not int or axis.size < 1:
                raise error(
                    "UCP-E-LAYOUT",
                    f"axis {axis.name!r} has size {axis.size!r}, not an integer >= 1",
                    at=f"{at}/size",
                )
            seen[axis.name] = axis
        # The bounding grid is what has to be small, lest counting a ragged mesh be work.
        if math.prod(self.shape) > MAX_COORDINATES:
            raise error(
                "UCP-E-LIMIT",
                f"the mesh has {math.prod(self.shape)} coordinates, more than {MAX_COORDINATES}",
                at="/axes",
            )
        if self.ranks is None:
            return
        if not is_extents(self.ranks) or len(set(self.ranks)) != len(self.ranks):
            raise error("UCP-E-LAYOUT", "ranks must be distinct integers >= 0", at="/ranks")
        if len(self.ranks) != self.size:
            raise error("UCP-E-LAYOUT", f"{len(self.ranks)} ranks for {self.size} coordinates", at="/ranks")

    @property
    def shape(self) -> tuple[int, ...]:
        """The axis sizes, the largest one of a ragged axis.

        >>> mesh.shape
        (2, 4)
        """
        return tuple(axis.size for axis in self.axes)

    @property
    def is_ragged(self) -> bool:
        """Whether some axis is ragged, so that not every position per axis makes a coordinate.

        >>> mesh.is_ragged
        False
        """
        return any(isinstance(axis, RaggedAxis) for axis in self.axes)

    @property
    def size(self) -> int:
        """The number of coordinates.

        >>> mesh.size
        8
        """
        return len(_positions(self.axes)) if self.is_ragged else math.prod(self.shape)

    def axis_index(self, name: str) -> int | None:
        """Return the position of the axis called ``name``, or None.

        >>> mesh.axis_index("tp"), mesh.axis_index("pp")
        (1, None)
        """
        return next((place for place, axis in enumerate(self.axes) if axis.name == name), None)

    def coordinates(self) -> Iterator[Coordinate]:
        """Return every coordinate, last axis fastest.

        >>> list(mesh.coordinates())[:3]
        [(0, 0), (0, 1), (0, 2)]
        """
        return iter(_positions(self.axes)) if self.is_ragged else itertools.product(*map(range, self.shape))

    def size_at(self, axis: int, coordinate: Coordinate) -> int:
        """Return how many positions the axis with this index has where ``coordinate`` lies.

        >>> mesh.size_at(1, (0, 0))
        4
        """
        found = self.axes[axis]
        if isinstance(found, RaggedAxis):
            return found.sizes[coordinate[self.governing_axis(axis)]]
        return found.size

    def governing_axis(self, axis: int) -> int:
        """Return the index of the axis that decides the size of this one: itself where it is not ragged.

        >>> mesh.governing_axis(1)
        1
        """
        found = self.axes[axis]
        if isinstance(found, RaggedAxis):
            return [other.name for other in self.axes].index(found.by)
        return axis

    def position_of(self, coordinate: Coordinate) -> int:
        """Return the position of ``coordinate`` in `coordinates`; UCP-E-LAYOUT where it is off the mesh.

        >>> mesh.position_of((1, 2))
        6
        """
        self.check_coordinate(coordinate)
        if self.is_ragged:
            return _positions(self.axes)[coordinate]
        return sum(map(int.__mul__, coordinate, row_major_strides(self.shape)))

    def rank_at(self, position: int) -> int:
        """Return the rank at a coordinate given by its position in `coordinates`.

        >>> mesh.rank_at(6)
        6
        """
        return position if self.ranks is None else self.ranks[position]

    def rank_of(self, coordinate: Coordinate) -> int:
        """Return the rank at ``coordinate``; UCP-E-LAYOUT where that is off the mesh.

        >>> mesh.rank_of((1, 2))
        6
        """
        return self.rank_at(self.position_of(coordinate))

    def coordinate_of(self, rank: int) -> Coordinate:
        """Return the coordinate at which ``rank`` sits; UCP-E-LAYOUT where it is not in the mesh.

        >>> mesh.coordinate_of(6)
        (1, 2)
        """
        found = self.find(rank)
        if found is None:
            raise error("UCP-E-LAYOUT", f"rank {rank} is not in the mesh")
        return found

    def find(self, rank: int) -> Coordinate | None:
        """Return the coordinate at which ``rank`` sits, or None where it is not in the mesh.

        >>> mesh.find(6), mesh.find(8)
        ((1, 2), None)
        """
        if self.ranks is None:
            position = rank if 0 <= rank < self.size else None
        else:
            position = self.ranks.index(rank) if rank in self.ranks else None
        if position is None:
            return None
        if self.is_ragged:
            return next(itertools.islice(_positions(self.axes), position, None))
        return tuple(
            position // stride % size
            for stride, size in zip(row_major_strides(self.shape), self.shape, strict=True)
        )

    def check_coordinate(self, coordinate: Coordinate) -> None:
        """Raise UCP-E-LAYOUT unless ``coordinate`` is on the mesh.

        >>> mesh.check_coordinate((1, 3))
        """
        shape = self.shape
        if (
            not is_extents(coordinate)
            or len(coordinate) != len(shape)
            or not all(map(int.__lt__, coordinate, shape))
            or (self.is_ragged and coordinate not in _positions(self.axes))
        ):
            raise error("UCP-E-LAYOUT", f"{coordinate!r} is not a coordinate of a mesh of sizes {shape}")


def _check_ragged(axis: RaggedAxis, by: Axis | None, at: str) -> None:
    if not isinstance(by, MeshAxis):
        raise error(
            "UCP-E-LAYOUT",
            f"the sizes of {axis.name!r} go by {axis.by!r}, which is no earlier axis of one size",
            at=f"{at}/by",
        )
    if not is_extents(axis.sizes) or 0 in axis.sizes or len(axis.sizes) != by.size:
        raise error(
            "UCP-E-LAYOUT",
            f"axis {axis.name!r} needs {by.size} sizes >= 1, one for each position of {axis.by!r}",
            at=f"{at}/sizes",
        )


@lru_cache(maxsize=32)
def _positions(axes: tuple[Axis, ...]) -> Mapping[Coordinate, int]:
    """Return the coordinates of a ragged mesh in their order, each with its position."""
    names = [axis.name for axis in axes]
    found: list[Coordinate] = [()]
    for axis in axes:
        if isinstance(axis, RaggedAxis):
            by = names.index(axis.by)
            found = [(*head, index) for head in found for index in range(axis.sizes[head[by]])]
        else:
            found = [(*head, index) for head in found for index in range(axis.size)]
    return {coordinate: position for position, coordinate in enumerate(found)}
