"""The picture of a plan: what each rank holds and what it has to move, on one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from ucpformat.drawing.bars import Bars, bars_of
from ucpformat.drawing.text import human_bytes, printable

if TYPE_CHECKING:
    from ucpformat.planning import Survey

__all__ = ["paint", "survey_bars"]

_COLOURS: Final = ("green", "cyan", "yellow", "magenta")


def survey_bars(survey: Survey) -> Bars:
    """Return bars: what a rank is to hold, what of it stays in place, what it receives and sends, or fetches."""
    pairing = survey.pairing
    storage = pairing.route == "storage"
    how = "out of the checkpoint" if storage else "from rank to rank"
    notes = [
        printable(f"from {pairing.source.label} to {pairing.target.label}, {how}"),
        f"{pairing.slots} slots, {human_bytes(pairing.nbytes)}",
    ]
    if storage:
        rows = [(rank, (entry.written, entry.fetched)) for rank, entry in survey.ranks.items()]
        return bars_of(notes, ("is to hold", "fetches"), rows)
    return bars_of(
        notes,
        ("is to hold", "has", "receives", "sends"),
        [
            (rank, (entry.written, entry.kept.nbytes, entry.received.nbytes, entry.sent.nbytes))
            for rank, entry in survey.ranks.items()
        ],
    )


def paint(column: int, text: str) -> str:
    """Colour the bars of a column; `click.echo` removes colours where output is no terminal."""
    return click.style(text, fg=_COLOURS[column % len(_COLOURS)]) if text else text
