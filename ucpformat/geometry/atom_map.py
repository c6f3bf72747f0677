"""Many atoms for one: per-expert or per-layer tensors against stacked ones, fused against split (SPEC-ATOM-MAPS).

A hub is a tensor that need not be stored anywhere; its members are atoms, each a box of some view of it.
`select` and `stack` are the two directions of one map. Mapping N atoms to M is the composition of two maps
with one hub; renaming is a map of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ucpformat.errors import error
from ucpformat.geometry.box import Box, is_extents, row_major_strides
from ucpformat.geometry.cover import BoxIndex, exact_cover
from ucpformat.geometry.piece import LocalMap, Piece, Strided
from ucpformat.geometry.refine import common_refinement, seen_in
from ucpformat.geometry.transfer import Move

__all__ = [
    "AtomCopy",
    "AtomMap",
    "Member",
    "NameMap",
    "compose_atoms",
    "concatenated",
    "member_reads",
    "stacked",
]


@dataclass(frozen=True, slots=True)
class Member:
    """An atom of ``shape`` that is the box ``box`` of the hub's view, its elements in row-major order.

    ``order``, where given, lists the dims of the box in the order in which the member has them: a transposed
    member of a 2-d box has (1, 0).
    """

    name: str
    shape: tuple[int, ...]
    box: Box
    order: tuple[int, ...] | None = None

    def pieces(self) -> tuple[Piece, ...]:
        """Return where the cells of the hub's view sit in the member's own memory."""
        if self.box.is_empty:
            return ()
        order = tuple(range(self.box.ndim)) if self.order is None else self.order
        dense = row_major_strides(tuple(self.box.shape[dim] for dim in order))
        strides = [0] * len(order)
        for position, dim in enumerate(order):
            strides[dim] = dense[position] if self.box.shape[dim] > 1 else 0
        return (Piece(self.box, Strided(0, tuple(strides))),)


@dataclass(frozen=True, slots=True)
class AtomMap:
    """A hub of ``shape``, seen as ``view``, and the members whose boxes tile it.

    Raises, at a JSON pointer relative to the map, UCP-E-SHAPE where a view, a shape or an order does not fit,
    UCP-E-NAME where two members have one name, UCP-E-COVER where the boxes do not tile the view.
    """

    name: str
    shape: tuple[int, ...]
    view: tuple[int, ...]
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        if not (
            is_extents(self.shape) and is_extents(self.view) and math.prod(self.shape) == math.prod(self.view)
        ):
            raise error("UCP-E-SHAPE", f"{self.view!r} is no view of the shape {self.shape!r}", at="/view")
        seen: set[str] = set()
        for number, member in enumerate(self.members):
            at = f"/members/{number}"
            if member.name in seen:
                raise error("UCP-E-NAME", f"two members are called {member.name!r}", at=f"{at}/name")
            seen.add(member.name)
            if member.box.ndim != len(self.view):
                raise error("UCP-E-SHAPE", f"a box of the view has {len(self.view)} dims", at=f"{at}/box")
            if not is_extents(member.shape) or math.prod(member.shape) != member.box.size:
                raise error(
                    "UCP-E-SHAPE",
                    f"a box of {member.box.size} elements is no tensor of shape {member.shape!r}",
                    at=f"{at}/shape",
                )
            if member.order is not None and sorted(member.order) != list(range(member.box.ndim)):
                raise error("UCP-E-SHAPE", "an order names every dim of the box once", at=f"{at}/order")
        fault = exact_cover((member.box for member in self.members), self.view)
        if fault is not None:
            raise error(
                "UCP-E-COVER",
                f"members must tile {self.view}: {fault.kind} at {fault.box.offset} of shape {fault.box.shape}",
                at="/members",
            )


@dataclass(frozen=True, slots=True)
class AtomCopy:
    """A move from the row-major memory of one atom to that of another."""

    source: str
    target: str
    move: Move


def stacked(name: str, members: Sequence[str], shape: tuple[int, ...], *, dim: int = 0) -> AtomMap:
    """Return the hub in which ``members``, all of ``shape``, lie one after another along a new dim ``dim``."""
    if not 0 <= dim <= len(shape):
        raise error("UCP-E-SHAPE", f"members of shape {shape} cannot be stacked along dim {dim}")
    whole = (*shape[:dim], len(members), *shape[dim:])
    zeros = (0,) * len(shape)
    return AtomMap(
        name,
        whole,
        whole,
        tuple(
            Member(member, shape, Box((*zeros[:dim], number, *zeros[dim:]), (*shape[:dim], 1, *shape[dim:])))
            for number, member in enumerate(members)
        ),
    )


def concatenated(name: str, members: Sequence[tuple[str, tuple[int, ...]]], *, dim: int = 0) -> AtomMap:
    """Return the hub in which ``members``, given with their shapes, follow one another along ``dim``.

    Raises UCP-E-SHAPE where there are none or their other extents differ.
    """
    others = {(*shape[:dim], *shape[dim + 1 :]) for _, shape in members}
    if len(others) != 1 or any(not 0 <= dim < len(shape) for _, shape in members):
        raise error("UCP-E-SHAPE", f"members that follow one another along dim {dim} agree in all others")
    found: list[Member] = []
    position = 0
    for member, shape in members:
        offset = tuple(position if other == dim else 0 for other in range(len(shape)))
        found.append(Member(member, shape, Box(offset, shape)))
        position += shape[dim]
    (rest,) = others
    whole = (*rest[:dim], position, *rest[dim:])
    return AtomMap(name, whole, whole, tuple(found))


def compose_atoms(source: AtomMap, target: AtomMap) -> tuple[AtomCopy, ...]:
    """Return the copies that make the members of ``target`` from those of ``source``, by target member.

    Raises UCP-E-MISMATCH unless both have hubs of one shape, and as `seen_in`.
    """
    if source.shape != target.shape:
        raise error(
            "UCP-E-MISMATCH",
            f"the hubs have the shapes {source.shape} and {target.shape}: map one to the other",
        )
    return tuple(
        AtomCopy(name, member.name, move)
        for member in target.members
        for name, move in _moves(source, member.pieces(), target.view)
    )


def member_reads(source: AtomMap, local_map: LocalMap, view: tuple[int, ...]) -> tuple[tuple[str, Move], ...]:
    """Return the moves that fill a rank's part of the hub from the members, each with the member's name.

    ``view`` is that of the lowering of the hub. Raises UCP-E-MISMATCH where it is no view of the hub.
    """
    if math.prod(view) != math.prod(source.shape):
        raise error("UCP-E-MISMATCH", f"{view} is no view of a hub of shape {source.shape}")
    return tuple(_moves(source, local_map.pieces, view))


def _moves(source: AtomMap, wanted: Sequence[Piece], view: tuple[int, ...]) -> Iterator[tuple[str, Move]]:
    common = common_refinement(source.view, view)
    common = view if common is None else common
    held = [
        (member.name, piece)
        for member in source.members
        for piece in seen_in(member.pieces(), source.view, common)
    ]
    index = BoxIndex([piece.box for _, piece in held])
    for piece in seen_in(wanted, view, common):
        for number in index.overlapping(piece.box):
            name, mine = held[number]
            offset = tuple(map(max, mine.box.offset, piece.box.offset))
            stop = map(min, mine.box.stop, piece.box.stop)
            yield (
                name,
                Move(
                    tuple(map(int.__sub__, stop, offset)),
                    mine.local.shifted(tuple(map(int.__sub__, offset, mine.box.offset))),
                    piece.local.shifted(tuple(map(int.__sub__, offset, piece.box.offset))),
                    piece.scale,
                ),
            )


@dataclass(frozen=True, slots=True)
class NameMap:
    """A renaming of atoms: pairs of old and new names, each once on either side.

    Names without a pair stay as they are. Raises UCP-E-NAME, at the index of a pair.
    """

    pairs: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        for side in (0, 1):
            seen: set[str] = set()
            for number, pair in enumerate(self.pairs):
                if pair[side] in seen:
                    raise error("UCP-E-NAME", f"{pair[side]!r} is in two pairs", at=f"/{number}/{side}")
                seen.add(pair[side])

    def apply(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the new names, in order; UCP-E-NAME where two names become one or an old one is missing."""
        new = dict(self.pairs)
        missing = sorted(new.keys() - set(names))
        if missing:
            raise error("UCP-E-NAME", f"there is no atom {missing[0]!r} to rename")
        renamed = tuple(new.get(name, name) for name in names)
        if len(set(renamed)) < len(set(names)):
            raise error("UCP-E-NAME", "two atoms would have one name")
        return renamed
