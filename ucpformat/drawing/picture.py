"""A small picture of who holds what of a tensor: bands of cells with ranks in them (SPEC section 13)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ucpformat.geometry import Box, BoxIndex, row_major_strides

if TYPE_CHECKING:
    from ucpformat.geometry import Lowering, Region

__all__ = ["Paint", "Picture", "label_of", "lines_of", "picture_of"]

MAX_ROWS: Final = 16
MAX_COLUMNS: Final = 8
_LABEL_RANKS: Final = 3

# Corners by which of up, down, left, right a line leaves.
_CORNERS: Final = " ╵╷│╴┘┐┤╶└┌├─┴┬┼"


Paint = Callable[[tuple[int, ...], str], str]
"""Returns the text of a cell in a colour for the ranks that hold it."""


def _plain(_: tuple[int, ...], text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Picture:
    """Cells of a grid over a tensor, each with the ranks that hold its first element.

    ``rows`` and ``columns`` are where bands begin, and the extent at the end; ``dims`` are the dims that they divide,
    one or two, and a scalar has none. A tensor of one dim has one row. Of the other dims, index 0 is shown. Where
    ``is_exact``, all elements of a cell have the same holders; else the picture is scaled down, and says nothing of
    what lies between first elements.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    holders: tuple[tuple[tuple[int, ...], ...], ...]
    is_exact: bool
    dims: tuple[int, ...]


def picture_of(lowering: Lowering, regions: Sequence[Region]) -> Picture | None:
    """Return the picture of a tensor, or None where it has no elements.

    Of a tensor with more than two dims, it shows two along which ranks hold different parts, where there are two.
    """
    shape = lowering.shape
    if 0 in shape:
        return None
    boxes, ranks = _held(lowering, regions)
    index = BoxIndex(boxes)
    strides, view_strides = row_major_strides(shape), row_major_strides(lowering.view)
    edges = _edges(lowering, boxes)
    dims = _drawn(len(shape), edges)
    found = [
        _bands(
            shape[dim], None if edges is None else edges[dim], MAX_COLUMNS if dim == dims[-1] else MAX_ROWS
        )
        for dim in dims
    ]
    hidden = [dim for dim, extent in enumerate(shape) if dim not in dims and extent > 1]
    is_exact = all(exact for _, exact in found) and (
        not hidden or (edges is not None and all(len(edges[dim]) == 2 for dim in hidden))
    )
    bands = [(0, 1), (0, 1), *(cuts for cuts, _ in found)][-2:]
    shown = [strides[dim] for dim in dims]
    first = [
        sum(map(int.__mul__, (row, column)[2 - len(dims) :], shown))
        for row in bands[0][:-1]
        for column in bands[1][:-1]
    ]

    def holders(flat: int) -> tuple[int, ...]:
        seen = tuple(
            flat // stride % extent for stride, extent in zip(view_strides, lowering.view, strict=True)
        )
        found = index.overlapping(Box(seen, (1,) * len(seen)))
        return tuple(sorted({rank for place in found for rank in ranks[place]}))

    labels = [holders(flat) for flat in first]
    width = len(bands[1]) - 1
    grid = tuple(tuple(labels[start : start + width]) for start in range(0, len(labels), width))
    return Picture(bands[0], bands[1], grid, is_exact, dims)


def _drawn(ndim: int, edges: Sequence[set[int]] | None) -> tuple[int, ...]:
    """Return the dims to show, ascending: those that are cut before others, of which the first."""
    order = sorted(range(ndim), key=lambda dim: edges is not None and len(edges[dim]) == 2)
    return tuple(sorted(order[:2]))


def _held(lowering: Lowering, regions: Iterable[Region]) -> tuple[list[Box], list[tuple[int, ...]]]:
    boxes: list[Box] = []
    ranks: list[tuple[int, ...]] = []
    for region in regions:
        for piece in region.local_map.pieces:
            boxes.append(piece.box)
            ranks.append(region.holders)
    return boxes, ranks


def _bands(extent: int, edges: set[int] | None, most: int) -> tuple[tuple[int, ...], bool]:
    """Return where bands of a dim begin, and its extent, and whether all cells of each band are alike."""
    if edges is not None and len(edges) - 1 <= most:
        return tuple(sorted(edges)), True
    if extent <= most:
        return tuple(range(extent + 1)), True
    return (*(extent * step // most for step in range(most)), extent), False


def _edges(lowering: Lowering, boxes: Iterable[Box]) -> list[set[int]] | None:
    """Return where boxes begin and end per dim, or None where they are boxes of another view."""
    if lowering.view != lowering.shape:
        return None
    found = [{0, extent} for extent in lowering.shape]
    for box in boxes:
        for edges, low, high in zip(found, box.offset, box.stop, strict=True):
            edges.update((low, high))
    return found


def lines_of(picture: Picture, paint: Paint = _plain) -> Iterator[str]:
    """Yield the lines of a picture: lines part cells with other holders; bands are named at the edges.

    ``paint`` colours the text of a cell by its holders, without changing its width.
    """
    labels = [[label_of(ranks) for ranks in row] for row in picture.holders]
    heads = [str(start) for start in picture.columns[:-1]]
    widths = [max(len(head), *(len(row[column]) for row in labels)) + 2 for column, head in enumerate(heads)]
    sides = [str(start) for start in picture.rows[:-1]] if len(picture.rows) > 2 else [""]
    margin = max(map(len, sides))
    yield (
        " " * (margin + 2)
        + "".join(f"{head:<{width + 1}}" for head, width in zip(heads, widths, strict=True))
    ).rstrip()
    for row, side in enumerate(sides):
        yield f"{'':{margin}} {_rule(picture.holders, row, widths)}".rstrip()
        yield f"{side:>{margin}} {_cells(picture.holders[row], labels[row], widths, paint)}"
    yield f"{'':{margin}} {_rule(picture.holders, len(sides), widths)}".rstrip()


def label_of(ranks: tuple[int, ...]) -> str:
    """Return the ranks, or the first and how many others there are: ``0,1``, ``0 +3``."""
    if len(ranks) <= _LABEL_RANKS:
        return ",".join(map(str, ranks))
    return f"{ranks[0]} +{len(ranks) - 1}"


def _cells(
    holders: Sequence[tuple[int, ...]], labels: Sequence[str], widths: Sequence[int], paint: Paint
) -> str:
    text = ""
    for column, (label, width) in enumerate(zip(labels, widths, strict=True)):
        text += "│" if column == 0 or holders[column] != holders[column - 1] else " "
        text += paint(holders[column], label.center(width))
    return text + "│"


def _rule(holders: Sequence[Sequence[tuple[int, ...]]], row: int, widths: Sequence[int]) -> str:
    """Return the line above a row, or below the last one."""

    def cell(at_row: int, column: int) -> tuple[int, ...] | None:
        inside = 0 <= at_row < len(holders) and 0 <= column < len(widths)
        return holders[at_row][column] if inside else None

    text = ""
    for column in range(len(widths) + 1):
        above, below = (
            (cell(row - 1, column - 1), cell(row - 1, column)),
            (cell(row, column - 1), cell(row, column)),
        )
        up, down = above[0] != above[1], below[0] != below[1]
        left, right = above[0] != below[0], above[1] != below[1]
        text += _CORNERS[up + 2 * down + 4 * left + 8 * right]
        if column < len(widths):
            text += ("─" if right else " ") * widths[column]
    return text
