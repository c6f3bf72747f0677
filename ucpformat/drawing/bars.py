"""Bytes of each rank as bars, as text and as SVG (SPEC-ARRANGEMENTS)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from ucpformat.drawing.svg import FONT, hue, notes_height, svg_document
from ucpformat.text import human_bytes, printable, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["BarPaint", "Bars", "bars_of"]

_ROWS: Final = 32
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_MOST_BAR: Final = 40
_PIXELS: Final = 200
_ROW_PIXELS: Final = 18
_LABEL_PIXELS: Final = 96
_SIZE_PIXELS: Final = 80

BarPaint = Callable[[int, str], str]
"""Returns the text of a bar in a colour for the number of its column."""


def _plain(_: int, text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Bars:
    """Rows of bars, all on one scale: ``rows`` have a label, and bytes for each of ``headings``."""

    notes: tuple[str, ...]
    headings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def most(self) -> int:
        """The bytes of the longest bar, at least 1."""
        return max((nbytes for _, sizes in self.rows for nbytes in sizes), default=0) or 1

    def lines(self, width: int, paint: BarPaint = _plain) -> Iterator[str]:
        """Yield lines of at most ``width`` characters, bars without room left out; ``paint`` colours the bars."""
        for note in self.notes:
            yield shortened(note, width)
        margin = max(map(len, ("ranks", *(label for label, _ in self.rows))))
        numbers = max(
            map(len, (human_bytes(nbytes) for _, sizes in self.rows for nbytes in sizes)), default=0
        )
        each = (width - margin) // len(self.headings) - 2
        numbers = max(numbers, 8)
        bar = min(_MOST_BAR, each - numbers - 1)
        cell = numbers + 1 + bar if bar > 0 else numbers
        heads = "".join(f"  {shortened(f'{head:>{numbers}}', cell):<{cell}}" for head in self.headings)
        yield f"{'ranks':>{margin}}{heads}".rstrip()
        for label, sizes in self.rows:
            text = f"{label:>{margin}}"
            for column, nbytes in enumerate(sizes):
                text += f"  {human_bytes(nbytes):>{numbers}}"
                if bar > 0:
                    drawn = _bar(nbytes, self.most, bar)
                    last = column == len(sizes) - 1
                    text += f" {paint(column, drawn)}{'' if last else ' ' * (bar - len(drawn))}"
            yield text.rstrip()

    def svg(self) -> str:
        """Return the bars as an SVG document, which refers to nothing outside."""
        top = notes_height(self.notes)
        height = top + _ROW_PIXELS * len(self.rows) + 10
        width = _LABEL_PIXELS + (_SIZE_PIXELS + _PIXELS) * len(self.headings) + 10
        return svg_document(self.notes, width, height, self._shapes(top))

    def _shapes(self, top: int) -> Iterator[str]:
        for column, heading in enumerate(self.headings):
            x = _LABEL_PIXELS + column * (_SIZE_PIXELS + _PIXELS) + _SIZE_PIXELS
            yield f'<text x="{x}" y="{top - 4}" font-weight="bold">{escape(heading)}</text>'
        for row, (label, sizes) in enumerate(self.rows):
            y = top + row * _ROW_PIXELS
            base = y + FONT
            yield f'<text x="{_LABEL_PIXELS - 10}" y="{base}" text-anchor="end">{escape(label)}</text>'
            for column, nbytes in enumerate(sizes):
                x = _LABEL_PIXELS + column * (_SIZE_PIXELS + _PIXELS) + _SIZE_PIXELS
                told = human_bytes(nbytes)
                yield (
                    f"<g><title>{escape(f'{label}: {self.headings[column]} {told}')}</title>"
                    f'<text x="{x - 6}" y="{base}" text-anchor="end">{told}</text>'
                    f'<rect x="{x}" y="{y + 2}" width="{nbytes * (_PIXELS - 10) / self.most:.1f}" '
                    f'height="{_ROW_PIXELS - 4}" fill="{hue(column)}" stroke="#444444"/></g>'
                )


def bars_of(
    notes: Sequence[str], headings: Sequence[str], ranks: Sequence[tuple[int, tuple[int, ...]]]
) -> Bars:
    """Return bars of ranks in ascending order; of very many, neighbours share a row, which shows the most of each."""
    step = -(-len(ranks) // _ROWS) or 1
    rows = []
    for start in range(0, len(ranks), step):
        group = ranks[start : start + step]
        first, last = group[0][0], group[-1][0]
        sizes = tuple(max(column) for column in zip(*(sizes for _, sizes in group), strict=True))
        rows.append((str(first) if first == last else f"{first}..{last}", sizes))
    more = (f"{step} ranks share a row: the most of any one",) if step > 1 else ()
    return Bars((*map(printable, notes), *more), tuple(headings), tuple(rows))


def _bar(nbytes: int, most: int, width: int) -> str:
    """Return a bar of eighths of characters; what is not nothing has one at least."""
    eighths = max(nbytes * width * 8 // most, 1 if nbytes else 0)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
