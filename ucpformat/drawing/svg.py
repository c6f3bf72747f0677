"""SVG documents of drawings: a title, notes above, and shapes, without anything from outside."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from ucpformat.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["FONT", "hue", "notes_height", "svg_document"]

FONT: Final = 12
_LINE: Final = 20
_LETTER: Final = 8


def hue(number: int) -> str:
    """Return a colour by number: steps of the golden angle, so that neighbours differ well in hue."""
    return f"hsl({number * 137 % 360},60%,75%)"


def notes_height(notes: Sequence[str]) -> int:
    """Return how far down, in pixels, the notes above a drawing reach."""
    return _LINE * (len(notes) + 1)


def svg_document(notes: Sequence[str], width: int, height: int, parts: Iterable[str]) -> str:
    """Return a document of at least ``width`` by ``height`` pixels on white; the first note is its title too."""
    shown = [printable(note) for note in notes]
    width = max(width, *(_LETTER * len(note) + _LINE for note in shown))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="sans-serif" font-size="{FONT}">'
        f"<title>{escape(shown[0])}</title>"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    )
    texts = (
        f'<text x="10" y="{_LINE * number - 4}">{escape(note)}</text>' for number, note in enumerate(shown, 1)
    )
    return "".join([head, *texts, *parts, "</svg>"])
