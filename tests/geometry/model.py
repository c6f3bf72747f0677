"""Slow and obvious counterparts of the geometry: every cell is spelled out in numpy arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucpformat.geometry import (
    BlockRule,
    Blocks,
    Box,
    BufferPlace,
    Concat,
    Coordinate,
    Flatten,
    Join,
    Layout,
    LocalMap,
    LocalOnly,
    Lowering,
    Move,
    Only,
    Pad,
    Partial,
    Permute,
    Piece,
    Rule,
    Scale,
    Shard,
    Strided,
    View,
    extract,
    invert,
)

Array = NDArray[Any]


def counter(shape: tuple[int, ...]) -> Array:
    """An array in which every cell holds its row-major position."""
    return np.arange(int(np.prod(shape, dtype=int))).reshape(shape)


def view(memory: Array, shape: tuple[int, ...], place: Strided) -> Array:
    """The strided view of a 1-D memory, checked against its bounds."""
    if 0 not in shape:
        last = place.offset + sum((n - 1) * stride for n, stride in zip(shape, place.strides, strict=True))
        assert 0 <= place.offset <= last < memory.size
    strides = tuple(stride * memory.itemsize for stride in place.strides)
    return np.lib.stride_tricks.as_strided(memory[place.offset :], shape, strides)


def apply(moves: Iterable[Move], source: Array, target: Array) -> None:
    """Carry out moves from one 1-D memory to another."""
    for move in moves:
        view(target, move.shape, move.target)[...] = view(source, move.shape, move.source)


def local_array(local_map: LocalMap, logical: Array) -> Array:
    """The local tensor that a map takes out of a logical one in the map's view; -1 where it says nothing."""
    memory = np.full(local_map.size, -1)
    apply(extract(local_map, logical.shape), logical.reshape(-1), memory)
    return memory.reshape(local_map.shape)


def local_of(lowering: Lowering, coordinate: Coordinate) -> Array | None:
    """The local tensor of a coordinate when the logical one is `counter`; -1 in padding."""
    local_map = lowering.at(coordinate)
    return None if local_map is None else local_array(local_map, counter(lowering.view))


def give_back(local_map: LocalMap, local: Array, logical: Array) -> None:
    """Write a local tensor to its cells of the logical one, which has the shape of the map's view."""
    apply(invert(local_map, logical.shape), local.reshape(-1), logical.reshape(-1))


def split(indices: list[int], rule: Rule, parts: int) -> list[list[int]]:
    """One list of cells per part."""
    if rule == "ceil":
        chunk = -(-len(indices) // parts)
        return [indices[place * chunk : (place + 1) * chunk] for place in range(parts)]
    if isinstance(rule, tuple):
        edges = np.cumsum(rule)[:-1]
        return [list(part) for part in np.split(np.array(indices, dtype=int), edges)]
    return [list(part) for part in np.array_split(np.array(indices, dtype=int), parts)]


def held(
    layout: Layout, shape: tuple[int, ...], coordinate: Coordinate, place: BufferPlace | None = None
) -> Array | None:
    """The local tensor of a coordinate when the logical one is `counter`, or None where it holds nothing.

    Padding, and what belongs to others in a buffer, is -1.
    """
    names = [axis.name for axis in layout.mesh.axes]

    def mine(indices: list[int], step: Shard) -> list[int]:
        axis = names.index(step.axis)
        return split(indices, step.rule, layout.mesh.size_at(axis, coordinate))[coordinate[axis]]

    tensor = counter(shape)
    # Per dim, the cells of each block, and whether later steps act on it.
    dims: list[list[tuple[list[int], bool]]] = _whole(tensor)
    for step in layout.steps:
        match step:
            case Only():
                if coordinate[names.index(step.axis)] not in step.coordinates:
                    return None
            case View():
                tensor = tensor.reshape(step.shape)
                dims = _whole(tensor)
            case Permute():
                tensor = tensor.transpose(step.order)
                dims = _whole(tensor)
            case Shard():
                dims[step.dim] = [
                    (mine(cells, step) if free else cells, free) for cells, free in dims[step.dim]
                ]
            case Blocks():
                ((cells, _),) = dims[step.dim]
                sizes = step.sizes
                if isinstance(sizes, BlockRule):
                    parts = split(cells, sizes.rule, sizes.count)
                else:
                    parts = split(cells, sizes, len(sizes))
                blocks = []
                for number, part in enumerate(parts):
                    own = None if step.steps is None else step.steps[number]
                    for shard in own or ():
                        part = mine(part, shard)
                    blocks.append((part, own is None))
                dims[step.dim] = blocks
            case Join():
                dims[step.dim] = [(_joined(dims[step.dim]), True)]
            case Pad():
                tensor = _selected(tensor, dims)
                extent = tensor.shape[step.dim]
                to = step.to if step.multiple is None else -(-extent // step.multiple) * step.multiple
                assert to is not None
                tensor = _padded(tensor, step.dim, 0, to - extent)
                dims = _whole(tensor, dims, step.dim)
            case Flatten():
                tensor = _selected(tensor, dims).reshape(-1)
                dims = _whole(tensor)
            case Concat():
                assert place is not None
                tensor = _selected(tensor, dims)
                entry = 0
                for name in place.axes:
                    axis = names.index(name)
                    entry = entry * layout.mesh.axes[axis].size + coordinate[axis]
                before = place.offsets[entry]
                tensor = _padded(tensor, 0, before, place.totals[entry] - before - tensor.size)
                dims = _whole(tensor)
            case Partial() | Scale():
                pass
            case LocalOnly():
                return np.asarray(tensor[layout.mesh.position_of(coordinate)])
            case _:
                raise AssertionError(step)
    return _selected(tensor, dims)


def _padded(tensor: Array, dim: int, before: int, after: int) -> Array:
    widths = [(before, after) if place == dim else (0, 0) for place in range(tensor.ndim)]
    return np.pad(tensor, widths, constant_values=-1)


def _whole(
    tensor: Array, before: list[list[tuple[list[int], bool]]] | None = None, changed: int = 0
) -> list[list[tuple[list[int], bool]]]:
    """Every dim as one block; where ``before`` is given, the blocks of other dims than ``changed`` stay."""
    whole: list[list[tuple[list[int], bool]]] = [[(list(range(extent)), True)] for extent in tensor.shape]
    for dim, blocks in enumerate(before or ()):
        if dim != changed:
            position, found = 0, []
            for cells, free in blocks:
                found.append((list(range(position, position + len(cells))), free))
                position += len(cells)
            whole[dim] = found
    return whole


def _joined(blocks: list[tuple[list[int], bool]]) -> list[int]:
    return [cell for cells, _ in blocks for cell in cells]


def _selected(tensor: Array, dims: list[list[tuple[list[int], bool]]]) -> Array:
    for dim, blocks in enumerate(dims):
        tensor = np.take(tensor, np.array(_joined(blocks), dtype=int), axis=dim)
    return tensor


def marked(boxes: Iterable[Box], shape: tuple[int, ...]) -> Array:
    """How many boxes hold each cell."""
    count = np.zeros(shape, dtype=int)
    for box in boxes:
        count[slices(box)] += 1
    return count


def slices(box: Box) -> tuple[slice, ...]:
    """The numpy index of a box."""
    return tuple(slice(first, last) for first, last in zip(box.offset, box.stop, strict=True))


CellMap = dict[tuple[int, ...], tuple[int, Any]]


def cells_of(pieces: Iterable[Piece]) -> CellMap:
    """The local element and the scale of every logical cell."""
    cells: CellMap = {}
    for piece in pieces:
        for relative in np.ndindex(*piece.box.shape):
            cell = tuple(a + b for a, b in zip(piece.box.offset, relative, strict=True))
            assert cell not in cells
            cells[cell] = (piece.local.shifted(tuple(relative)).offset, piece.scale)
    return cells


def canonical_by_cells(cells: CellMap, ndim: int) -> list[Piece]:
    """The definition of the canonical form, word by word, index by index."""
    if ndim == 0:
        return [Piece(Box((), ()), Strided(local, ()), scale) for local, scale in cells.values()]
    groups: list[tuple[int, list[list[Piece]]]] = []
    for index in sorted({cell[0] for cell in cells}):
        row = canonical_by_cells(
            {cell[1:]: value for cell, value in cells.items() if cell[0] == index}, ndim - 1
        )
        if groups and _joins(groups[-1], index, row):
            groups[-1][1].append(row)
        else:
            groups.append((index, [row]))
    pieces: list[Piece] = []
    for start, rows in groups:
        for place, piece in enumerate(rows[0]):
            step = rows[1][place].local.offset - piece.local.offset if len(rows) > 1 else 0
            box = Box((start, *piece.box.offset), (len(rows), *piece.box.shape))
            pieces.append(Piece(box, Strided(piece.local.offset, (step, *piece.local.strides)), piece.scale))
    return pieces


def _joins(group: tuple[int, list[list[Piece]]], index: int, row: list[Piece]) -> bool:
    start, rows = group

    def structure(pieces: list[Piece]) -> list[object]:
        return [(piece.box, piece.local.strides, piece.scale) for piece in pieces]

    def steps(first: list[Piece], second: list[Piece]) -> list[int]:
        return [b.local.offset - a.local.offset for a, b in zip(first, second, strict=True)]

    if start + len(rows) != index or structure(rows[-1]) != structure(row):
        return False
    new = steps(rows[-1], row)
    return min(new) >= 1 and (len(rows) == 1 or new == steps(rows[0], rows[1]))
