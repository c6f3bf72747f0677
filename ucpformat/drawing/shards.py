"""Who holds what of a tensor, as text and as SVG (SPEC sections 12 and 13)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ucpformat.drawing.picture import Paint, Picture, label_of, lines_of, picture_of
from ucpformat.drawing.svg import FONT, hue, notes_height, svg_document
from ucpformat.geometry import lower
from ucpformat.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.geometry import BufferPlace, Layout, Lowering, Region

__all__ = ["Drawing", "draw"]

_REGIONS_SHOWN: Final = 16
_EXTENT: Final = 480  # of the grid, in pixels, without what small cells add
_LEAST_WIDTH: Final = 64
_LEAST_HEIGHT: Final = 28
_MARGIN: Final = 72
_NOBODY: Final = "#e0e0e0"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing of who holds what of a tensor: ``str`` gives it as text, and a notebook shows it as SVG.

    >>> print(ucp.draw(layout, (8, 4)))
    8x4 over dp 2 x tp 4
       0
      ┌─────┐
    0 │ 0,4 │
      ├─────┤
    2 │ 1,5 │
      ├─────┤
    4 │ 2,6 │
      ├─────┤
    6 │ 3,7 │
      └─────┘
    ranks 0, 4: 2x4
    ranks 1, 5: 2x4
    ranks 2, 6: 2x4
    ranks 3, 7: 2x4
    """

    title: str
    _lowering: Lowering
    _regions: tuple[Region, ...]
    _picture: Picture | None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return str(self)

    def lines(self, paint: Paint | None = None) -> Iterator[str]:
        """Yield the lines of text; ``paint`` gives the text of a cell a colour, by the ranks that hold it.

        >>> next(ucp.draw(layout, (8, 4)).lines())
        '8x4 over dp 2 x tp 4'
        """
        yield self.title
        yield from self._notes()
        if self._picture is not None:
            yield from lines_of(self._picture) if paint is None else lines_of(self._picture, paint)
        for region in self._regions[:_REGIONS_SHOWN]:
            held = region.local_map
            others = held.size - held.mapped
            rest = f", {others} of {held.size} elements are padding or of other tensors" if others else ""
            yield f"{_ranks(region.holders)}: {_extents(held.shape)}{rest}"
        if len(self._regions) > _REGIONS_SHOWN:
            yield f"and {len(self._regions) - _REGIONS_SHOWN} more parts"

    def svg(self) -> str:
        """Return the drawing as an SVG document, which refers to nothing outside.

        >>> ucp.draw(layout, (8, 4)).svg()[:4]
        '<svg'
        """
        return self._repr_svg_()

    def _repr_svg_(self) -> str:
        picture = self._picture
        notes = [self.title, *self._notes()]
        top = notes_height(notes)
        columns = (0,) if picture is None else _places(picture.columns, _LEAST_WIDTH)
        rows = (0,) if picture is None else _places(picture.rows, _LEAST_HEIGHT)
        width, height = columns[-1] + _MARGIN + 10, rows[-1] + top + 10
        return svg_document(
            notes, width, height, () if picture is None else _grid(picture, columns, rows, top)
        )

    def _notes(self) -> Iterator[str]:
        picture, shape = self._picture, self._lowering.shape
        if picture is None:
            yield "it has no elements"
            return
        if len(shape) > 2:
            dims = " and ".join(map(str, picture.dims))
            yield f"dims {dims} are shown, at index 0 of the others"
        if not picture.is_exact:
            yield "scaled down: each cell shows who holds its first element"


def draw(layout: Layout, shape: tuple[int, ...], place: BufferPlace | None = None) -> Drawing:
    """Draw which ranks hold what of a tensor of ``shape`` under ``layout``.

    ``place`` is where the tensor lies in its buffer, where the layout has a `Concat`. Cells with the same holders have
    the same colour; ``0 +3`` means rank 0 and three others.
    Raises UCP-E-LAYOUT where the layout does not fit the shape.

    >>> ucp.draw(layout, (8, 4)).title
    '8x4 over dp 2 x tp 4'
    """
    lowering = lower(layout, shape, place=place)
    regions = lowering.regions()
    axes = " x ".join(f"{printable(axis.name)} {axis.size}" for axis in layout.mesh.axes) or "one rank"
    return Drawing(f"{_extents(shape)} over {axes}", lowering, regions, picture_of(lowering, regions))


def _extents(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"


def _places(cuts: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Return where bands begin in pixels: as long as their extents, but no shorter than ``least``."""
    found = [0]
    for low, high in pairwise(cuts):
        found.append(found[-1] + max(least, _EXTENT * (high - low) // cuts[-1]))
    return tuple(found)


def _grid(picture: Picture, columns: tuple[int, ...], rows: tuple[int, ...], top: int) -> Iterator[str]:
    colours: dict[tuple[int, ...], str] = {(): _NOBODY}
    if len(picture.dims) > 1:
        for start, y in zip(picture.rows, rows[:-1], strict=False):
            yield f'<text x="{_MARGIN - 6}" y="{top + y + FONT}" text-anchor="end">{start}</text>'
    for start, x in zip(picture.columns, columns[:-1], strict=False):
        yield f'<text x="{_MARGIN + x}" y="{top - 4}">{start}</text>'
    for row, (low, high) in enumerate(pairwise(rows)):
        for column, (left, right) in enumerate(pairwise(columns)):
            ranks = picture.holders[row][column]
            colour = colours.setdefault(ranks, hue(len(colours) - 1))
            yield (
                f"<g><title>{_ranks(ranks) if ranks else 'no rank'}</title>"
                f'<rect x="{_MARGIN + left}" y="{top + low}" width="{right - left}" height="{high - low}" '
                f'fill="{colour}" stroke="#444444"/><text x="{_MARGIN + (left + right) // 2}" '
                f'y="{top + (low + high) // 2 + 4}" text-anchor="middle">{label_of(ranks) or "-"}</text></g>'
            )
