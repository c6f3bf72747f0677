"""The sides of an atom map's entry for one set of captures (SPEC-ATOM-MAPS): which atoms, and where each lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final, Literal

from ucpformat.errors import UcpError, error
from ucpformat.geometry import AtomMap, Box, Member
from ucpformat.jsonio import pointer
from ucpformat.model.fields import integers, relocated
from ucpformat.patterns.atom_map_document import Each, Joined, Leaf, Node, Same
from ucpformat.patterns.expression import Environment

if TYPE_CHECKING:
    from ucpformat.patterns.glob import Captures
    from ucpformat.patterns.template import Template

__all__ = [
    "Group",
    "Part",
    "Shape",
    "Tensor",
    "expanded",
    "hub_map",
    "parts_of",
    "relocate",
    "shapes_from_hub",
]

Shape = tuple[int, ...]
MAX_PARTS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """An atom of a side, its templates filled: None where there is none."""

    name: str
    shape: Shape | None
    view: Shape | None
    order: Shape | None
    at: str

    def seen(self, shape: Shape) -> Shape:
        """Return the shape in which the side sees an atom of ``shape``.

        Raises UCP-E-MISMATCH: it is stated otherwise; UCP-E-PATTERN: its view or permutation does not fit.
        """
        if self.shape is not None and shape != self.shape:
            raise error(
                "UCP-E-MISMATCH",
                f"{self.name!r} has the shape {list(shape)}, and the map says {list(self.shape)}: check the "
                "parameters",
                at=self.at,
            )
        viewed = shape if self.view is None else self.view
        if prod(viewed) != prod(shape):
            raise error(
                "UCP-E-PATTERN", f"{list(viewed)} is no view of {list(shape)}", at=pointer(self.at, "view")
            )
        if self.order is None:
            return viewed
        self._check_order(len(viewed))
        return tuple(viewed[dim] for dim in self.order)

    def stated(self, hub: Shape) -> Shape:
        """Return the shape of the atom, where the side sees it as ``hub``."""
        if self.shape is not None:
            return self.shape
        if self.order is None:
            return hub
        self._check_order(len(hub))
        return tuple(extent for _, extent in sorted(zip(self.order, hub, strict=True)))

    def _check_order(self, ndim: int) -> None:
        if sorted(self.order or ()) != list(range(ndim)):
            message = f"'permute' has to name each of {ndim} dimensions once"
            raise error("UCP-E-PATTERN", message, at=pointer(self.at, "permute"))


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors one after another along ``dim``, which is new (``stack``) or one that they have (``concat``)."""

    kind: Literal["stack", "concat"]
    dim: int
    of: tuple[Tensor, ...]
    at: str


Tensor = Part | Group


def expanded(node: Node, captures: Captures, environment: Environment) -> tuple[Tensor, ...]:
    """Return the tensors that a side states, each of which is the whole: one, or with ``same`` several.

    Raises UCP-E-PATTERN, UCP-E-SCHEMA where a template has no fitting value, UCP-E-LIMIT over 2^20 atoms.
    """
    if isinstance(node, Same):
        return _items(node.of, captures, environment, [0], node.at)
    return (_expanded(node, captures, environment, [0]),)


def _items(
    of: tuple[Node, ...] | Each, captures: Captures, environment: Environment, count: list[int], at: str
) -> tuple[Tensor, ...]:
    if not isinstance(of, Each):
        return tuple(_expanded(item, captures, environment, count) for item in of)
    size = of.below.fill(environment)
    if type(size) is not int or size < 1:
        raise error("UCP-E-PATTERN", f"'below' has to be an integer from 1 on, not {size!r}", at=at)
    return tuple(
        _expanded(of.item, {**captures, of.index: place}, {**environment, of.index: place}, count)
        for place in range(size)
    )


def _expanded(node: Node, captures: Captures, environment: Environment, count: list[int]) -> Tensor:
    match node:
        case Leaf(name, shape, view, permute, at):
            count[0] += 1
            if count[0] > MAX_PARTS:
                raise error("UCP-E-LIMIT", f"an entry joins at most {MAX_PARTS} atoms", at=at)
            return Part(
                name.fill(captures),
                _extents(shape, environment, pointer(at, "shape")),
                _extents(view, environment, pointer(at, "view")),
                _extents(permute, environment, pointer(at, "permute")),
                at,
            )
        case Joined(kind, dim, of, at):
            return Group(kind, dim, _items(of, captures, environment, count, at), at)
        case Same():
            raise AssertionError("'same' is a whole side")


def _extents(template: Template | None, environment: Environment, at: str) -> Shape | None:
    return None if template is None else integers(template.fill(environment), at)


def parts_of(tensor: Tensor) -> Iterator[Part]:
    """Yield the atoms of which ``tensor`` is made, in order."""
    if isinstance(tensor, Part):
        yield tensor
    else:
        for item in tensor.of:
            yield from parts_of(item)


def shapes_from_hub(tensor: Tensor, hub: Shape) -> Iterator[Shape]:
    """Yield the shapes of the atoms, in order, that make up a tensor of the shape ``hub``: as stated, or as follows."""
    if isinstance(tensor, Part):
        yield tensor.stated(hub)
        return
    inner = (*hub[: tensor.dim], *hub[tensor.dim + 1 :]) if tensor.kind == "stack" else hub
    for item in tensor.of:
        yield from shapes_from_hub(item, inner)


def hub_map(tensor: Tensor, shapes: Sequence[Shape]) -> AtomMap:
    """Return where the atoms of ``tensor``, of these shapes, lie in it; members are called by their place in order.

    Raises UCP-E-MISMATCH where shapes do not fit what is stated or one another, UCP-E-PATTERN where a view
    or permutation does not fit.
    """
    shape, members = _placed(tensor, enumerate(shapes))
    return AtomMap("", shape, shape, tuple(members))


def _placed(tensor: Tensor, shapes: Iterator[tuple[int, Shape]]) -> tuple[Shape, list[Member]]:
    if isinstance(tensor, Part):
        place, shape = next(shapes)
        seen = tensor.seen(shape)
        order = None
        if tensor.order is not None:
            order = tuple(tensor.order.index(dim) for dim in range(len(seen)))
        box = Box((0,) * len(seen), seen)
        return seen, [Member(str(place), shape, box, order)]
    parts = [_placed(item, shapes) for item in tensor.of]
    dim, first = tensor.dim, parts[0][0]
    if dim > len(first) - (tensor.kind == "concat"):
        message = f"tensors of shape {list(first)} cannot be joined along dim {dim}"
        raise error("UCP-E-PATTERN", message, at=pointer(tensor.at, "dim"))
    if tensor.kind == "stack":
        parts = [_with_new_dim(shape, members, dim) for shape, members in parts]
    others = {(*shape[:dim], *shape[dim + 1 :]) for shape, _ in parts}
    if len(others) > 1:
        told = ", ".join(str(list(shape)) for shape, _ in parts[:4])
        raise error("UCP-E-MISMATCH", f"what is joined along dim {dim} has the shapes {told}", at=tensor.at)
    placed: list[Member] = []
    position = 0
    for shape, members in parts:
        placed += [_moved(member, dim, position) for member in members]
        position += shape[dim]
    whole = parts[0][0]
    return (*whole[:dim], position, *whole[dim + 1 :]), placed


def _moved(member: Member, dim: int, by: int) -> Member:
    offset = tuple(start + by * (place == dim) for place, start in enumerate(member.box.offset))
    return Member(member.name, member.shape, Box(offset, member.box.shape), member.order)


def _with_new_dim(shape: Shape, members: list[Member], dim: int) -> tuple[Shape, list[Member]]:
    wider = []
    for member in members:
        offset, extents = member.box.offset, member.box.shape
        box = Box((*offset[:dim], 0, *offset[dim:]), (*extents[:dim], 1, *extents[dim:]))
        order = tuple(range(len(extents))) if member.order is None else member.order
        # The new dim has one position: where the member has it means nothing.
        wider.append(Member(member.name, member.shape, box, (dim, *(old + (old >= dim) for old in order))))
    return (*shape[:dim], 1, *shape[dim:]), wider


def relocate(refusal: UcpError, at: str) -> UcpError:
    """Return ``refusal`` with the place of the entry, where geometry gave none that means anything here."""
    return refusal if refusal.at.startswith(at) else relocated(error(refusal.code, refusal.message), at)
