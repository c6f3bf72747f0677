"""Layouts, lowered cell by cell (SPEC 12), and canonical pieces by their definition (SPEC 13).

Every element of the local tensor is followed on its own: small shapes only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any

from ucp_conformance.oracle.buffers import check_place, entry_of
from ucp_conformance.oracle.bytes_of import linear
from ucp_conformance.oracle.layout_rules import check_mesh, check_steps, coordinates, positions, wrong
from ucp_conformance.oracle.problem import RefusalError
from ucp_conformance.oracle.views import view_of

__all__ = [
    "Local",
    "check_mesh",
    "check_steps",
    "coordinates",
    "holdings",
    "local_bytes",
    "lower",
    "pieces",
    "view_of",
]


_MOST = 1 << 20
_MOST_ELEMENTS = 2**53 - 1
_MOST_PADDING = 1 << 24


@dataclass(frozen=True)
class Local:
    """What a coordinate holds: the local shape, and the logical position of each local element."""

    shape: tuple[int, ...]
    cells: tuple[int, ...]


@dataclass(frozen=True)
class _Tensor:
    """A local tensor on its way; ``blocks`` of a dimension are ``(extent, free, axes of own steps)``.

    ``cells`` leave out padding behind all others that memory has no room for.
    """

    shape: tuple[int, ...]
    cells: tuple[int, ...]
    blocks: Mapping[int, tuple[tuple[int, bool], ...]] = field(default_factory=dict)


def lower(
    mesh: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    shape: Sequence[int],
    place: Mapping[str, Any] | None = None,
) -> dict[tuple[int, ...], Local | None]:
    """Return what every coordinate holds; refuses with UCP-E-LAYOUT what does not fit at some coordinate."""
    check_mesh(mesh)
    most = check_steps(mesh, steps)
    check_place(mesh, steps, place)
    view_of(steps, shape)
    _check_padding(steps, shape)
    if most > _MOST:
        _check_ranges(mesh, steps, shape)
    names = [axis["name"] for axis in mesh["axes"]]
    whole = _Tensor(tuple(shape), tuple(range(math.prod(shape))))
    found: dict[tuple[int, ...], Local | None] = {}
    for coordinate in coordinates(mesh):
        where = dict(zip(names, coordinate, strict=True))
        if any(step["kind"] == "only" and where[step["axis"]] not in step["coordinates"] for step in steps):
            found[coordinate] = None
            continue
        tensor = whole
        for step in steps:
            if step["kind"] in ("partial", "scale"):
                continue
            if step["kind"] == "local":
                tensor = _entry(tensor, len(found), mesh)
            elif step["kind"] == "concat":
                tensor = _buffer(tensor, *entry_of(mesh, place, where))
            elif step["kind"] != "only":
                tensor = _apply(tensor, step, mesh, where)
        found[coordinate] = Local(tensor.shape, tensor.cells)
    return found


def _check_padding(steps: Sequence[Mapping[str, Any]], shape: Sequence[int]) -> None:
    """Check UCP-D-064 of padding whose extent is known at once: what is too much is never lowered."""
    extents = _extents(steps, shape)
    for step in steps:
        if step["kind"] in ("shard", "blocks", "flatten"):
            return
        if step["kind"] == "pad" and step["dim"] < len(extents) and "multiple" in step:
            padded = -(-extents[step["dim"]] // step["multiple"]) * step["multiple"]
            if padded > _MOST_ELEMENTS:
                raise RefusalError("UCP-E-LIMIT", "", "an extent is padded too far")


def _entry(tensor: _Tensor, number: int, mesh: Mapping[str, Any]) -> _Tensor:
    if not tensor.shape or tensor.shape[0] != len(list(coordinates(mesh))):
        raise wrong("dimension 0 has not one entry for every coordinate")
    inner = math.prod(tensor.shape[1:])
    return _Tensor(tensor.shape[1:], tensor.cells[number * inner : (number + 1) * inner])


def _buffer(tensor: _Tensor, offset: int, total: int) -> _Tensor:
    behind = total - offset - len(tensor.cells)
    if behind < 0:
        raise wrong("the tensor leaves its buffer")
    return _Tensor((total,), (*[-1] * offset, *tensor.cells, *[-1] * behind))


def _check_ranges(mesh: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], shape: Sequence[int]) -> None:
    """Check UCP-D-066 before `flatten`, dimension by dimension: what is too much is never lowered."""
    kinds = [step["kind"] for step in steps]
    steps = steps[: kinds.index("flatten")] if "flatten" in kinds else steps
    names = [axis["name"] for axis in mesh["axes"]]
    for coordinate in coordinates(mesh):
        where = dict(zip(names, coordinate, strict=True))
        count = 1
        for dim, extent in enumerate(_extents(steps, shape)):
            tensor = _Tensor((extent,), tuple(range(extent)))
            for step in steps:
                if step.get("dim") == dim:
                    tensor = _apply(tensor, {**step, "dim": 0}, mesh, where)
            cells = [cell for cell in tensor.cells if cell >= 0]
            count *= sum(1 for before, cell in pairwise([-2, *cells]) if cell != before + 1)
        if count > _MOST:
            raise RefusalError("UCP-E-LIMIT", "", "too many ranges")


def _extents(steps: Sequence[Mapping[str, Any]], shape: Sequence[int]) -> list[int]:
    """Return the extents that views and permutations leave."""
    extents = list(shape)
    for step in steps:
        if step["kind"] == "view":
            extents = list(step["shape"])
        elif step["kind"] == "permute":
            extents = [extents[dim] for dim in step["order"]]
    return extents


def _apply(
    tensor: _Tensor, step: Mapping[str, Any], mesh: Mapping[str, Any], where: Mapping[str, int]
) -> _Tensor:
    if step["kind"] == "flatten":
        return _Tensor((len(tensor.cells),), tensor.cells)
    if step["kind"] == "view":
        return _Tensor(tuple(step["shape"]), tensor.cells)
    if step["kind"] == "permute":
        order = step["order"]
        shape = tuple(tensor.shape[dim] for dim in order)
        places = (
            [index[order.index(dim)] for dim in range(len(order))] for index in product(*map(range, shape))
        )
        return _Tensor(shape, tuple(tensor.cells[linear(place, tensor.shape)] for place in places))
    dim = step["dim"]
    if dim >= len(tensor.shape):
        raise wrong(f"there is no dimension {dim}")
    if step["kind"] == "join":
        return replace(tensor, blocks={at: found for at, found in tensor.blocks.items() if at != dim})
    if step["kind"] == "pad":
        extent = tensor.shape[dim]
        to = step["to"] if "to" in step else -(-extent // step["multiple"]) * step["multiple"]
        if to < extent:
            raise wrong("padding to less than the extent")
        others = (max(1, other) for at, other in enumerate(tensor.shape) if at != dim)
        if max(1, to) * math.prod(others) > _MOST_ELEMENTS:
            raise RefusalError("UCP-E-LIMIT", "", "a local tensor with too many elements")
        if to - extent > _MOST_PADDING and math.prod(tensor.shape[:dim]) == 1:
            return _Tensor((*tensor.shape[:dim], to, *tensor.shape[dim + 1 :]), tensor.cells)
        return _take(tensor, dim, [*range(extent), *[-1] * (to - extent)])
    if step["kind"] == "shard":
        blocks = tensor.blocks.get(dim, ((tensor.shape[dim], True),))
        kept: list[int] = []
        left, start = [], 0
        for extent, free in blocks:
            first, last = _part(extent, step, mesh, where) if free else (0, extent)
            kept += range(start + first, start + last)
            left.append((last - first, free))
            start += extent
        taken = _take(tensor, dim, kept)
        return replace(
            taken, blocks={**tensor.blocks, dim: tuple(left)} if dim in tensor.blocks else tensor.blocks
        )
    sizes = step["sizes"] if "sizes" in step else _sizes(tensor.shape[dim], step["count"], step["rule"])
    if sum(sizes) != tensor.shape[dim]:
        raise wrong("the sizes of blocks do not sum to the extent")
    kept = []
    left, start = [], 0
    for extent, entry in zip(sizes, step.get("steps", [None] * len(sizes)), strict=True):
        first, last = 0, extent
        for shard in entry or ():
            low, high = _part(last - first, shard, mesh, where)
            first, last = first + low, first + high
        kept += range(start + first, start + last)
        left.append((last - first, entry is None))
        start += extent
    return replace(_take(tensor, dim, kept), blocks={**tensor.blocks, dim: tuple(left)})


def _take(tensor: _Tensor, dim: int, kept: Sequence[int]) -> _Tensor:
    shape = (*tensor.shape[:dim], len(kept), *tensor.shape[dim + 1 :])
    inner = math.prod(tensor.shape[dim + 1 :])
    padding = (-1,) * inner
    cells: list[int] = []
    for outer in range(math.prod(tensor.shape[:dim])):
        for index in kept:
            place = (outer * tensor.shape[dim] + index) * inner
            # The index -1 is that of an element that is padding.
            cells += padding if index < 0 else tensor.cells[place : place + inner]
    return _Tensor(shape, tuple(cells), tensor.blocks)


def _part(
    extent: int, step: Mapping[str, Any], mesh: Mapping[str, Any], where: Mapping[str, int]
) -> tuple[int, int]:
    """Return where the part of this position begins and ends."""
    n = positions(mesh, step["axis"], where)
    i = where[step["axis"]]
    if "sizes" in step:
        if sum(step["sizes"]) != extent:
            raise wrong("the sizes of a shard do not sum to the extent")
        start = sum(step["sizes"][:i])
        return start, start + step["sizes"][i]
    lengths = _sizes(extent, n, step["rule"])
    return sum(lengths[:i]), sum(lengths[: i + 1])


def _sizes(extent: int, n: int, rule: str) -> list[int]:
    """Return the extents of ``n`` parts under a rule."""
    if rule == "even":
        if extent % n:
            raise wrong("an even split does not divide the extent")
        return [extent // n] * n
    if rule == "ceil":
        c = -(-extent // n)
        return [min(extent, (at + 1) * c) - min(extent, at * c) for at in range(n)]
    return [extent // n + (1 if at < extent % n else 0) for at in range(n)]


def holdings(lowered: Mapping[tuple[int, ...], Local | None]) -> set[int]:
    """Return every logical element that some coordinate holds."""
    return {cell for local in lowered.values() if local is not None for cell in local.cells if cell >= 0}


def local_bytes(data: bytes, item: int, local: Local) -> bytes:
    """Return the elements of a local tensor out of those of the whole one; padding is zero."""
    return b"".join(
        data[item * cell : item * cell + item] if cell >= 0 else bytes(item) for cell in local.cells
    )


@dataclass(frozen=True)
class _Piece:
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    local: int

    def structure(self) -> tuple[tuple[int, ...], ...]:
        return self.offset, self.shape, self.strides


def pieces(local: Local, view: Sequence[int]) -> list[dict[str, Any]]:
    """Return the canonical list of pieces, as the protocol shows it."""
    return [
        {"offset": list(p.offset), "shape": list(p.shape), "local": p.local, "strides": list(p.strides)}
        for p in _canonical({c: place for place, c in enumerate(local.cells) if c >= 0}, tuple(view), 0)
    ]


def _canonical(held: Mapping[int, int], shape: tuple[int, ...], base: int) -> list[_Piece]:
    """Apply section 13, rule by rule; ``base`` is the logical position of the first element of this sub-tensor."""
    if not shape:
        return [_Piece((), (), (), held[base])] if base in held else []
    if len(shape) == 1:
        return _runs(held, shape[0], base)
    width = math.prod(shape[1:])
    groups: list[tuple[int, list[list[_Piece]]]] = []
    before: list[_Piece] = []
    for i in range(shape[0]):
        now = _canonical(held, shape[1:], base + i * width)
        if now:
            if before and groups and _joins(groups[-1][1], now):
                groups[-1][1].append(now)
            else:
                groups.append((i, [now]))
        before = now
    found = []
    for start, members in groups:
        for number, piece in enumerate(members[0]):
            step = members[1][number].local - piece.local if len(members) > 1 else 0
            found.append(
                _Piece(
                    (start, *piece.offset), (len(members), *piece.shape), (step, *piece.strides), piece.local
                )
            )
    return found


def _runs(held: Mapping[int, int], extent: int, base: int) -> list[_Piece]:
    """Apply section 13 to the innermost dimension, where there are the most elements."""
    runs: list[tuple[int, int, int, int]] = []  # start, extent, stride, local
    before: int | None = None
    for i in range(extent):
        now = held.get(base + i)
        if now is not None:
            start, count, step, local = runs[-1] if before is not None else (i, 0, 0, now)
            distance = now - before if before is not None else 0
            if distance >= 1 and (count == 1 or distance == step):
                runs[-1] = (start, count + 1, distance, local)
            else:
                runs.append((i, 1, 0, now))
        before = now
    return [_Piece((start,), (count,), (step,), local) for start, count, step, local in runs]


def _joins(group: list[list[_Piece]], now: list[_Piece]) -> bool:
    last = group[-1]
    if [piece.structure() for piece in now] != [piece.structure() for piece in last]:
        return False
    steps = [new.local - old.local for new, old in zip(now, last, strict=True)]
    if any(step < 1 for step in steps):
        return False
    if len(group) < 2:
        return True
    return steps == [new.local - old.local for new, old in zip(group[1], group[0], strict=True)]
