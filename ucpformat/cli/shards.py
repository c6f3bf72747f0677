"""``ucp shards``: a drawing of who holds what of one tensor."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ucpformat.cli.explain import explained_slots, explanations_json
from ucpformat.cli.report import format_option
from ucpformat.cli.sides import open_side, open_sides, settings_option
from ucpformat.drawing.shards import draw
from ucpformat.errors import error
from ucpformat.planning import about
from ucpformat.text import printable

if TYPE_CHECKING:
    from ucpformat.drawing.picture import Paint

__all__ = ["shards"]

_COLOURS: Final = ("cyan", "yellow", "green", "magenta", "blue", "red", "white")


@click.command()
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.argument("name", metavar="NAME")
@click.option("--slot", help="The slot to draw; by default, every group of slots that are held alike.")
@click.option("--layout", metavar="PATTERNS", help="Draw it as these patterns or this arrangement spread it.")
@click.option(
    "-o",
    "--svg",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the drawing to this file as well.",
)
@settings_option
@format_option
def shards(
    checkpoint: str,
    name: str,
    slot: str | None,
    layout: str | None,
    svg: Path | None,
    settings: tuple[tuple[str, int | list[int]], ...],
    output: str,
) -> None:
    """Draw which ranks hold what of the atom NAME, as its job held it or as another layout would spread it.

    CHECKPOINT is a checkpoint or an arrangement document. No tensor is read.
    """
    with ExitStack() as stack:
        if layout is None:
            side = open_side(checkpoint, settings, stack)
        else:
            _, side = open_sides(checkpoint, layout, settings, stack)
        explained = explained_slots(side, name, None)
        if slot is not None:
            explained = [entry for entry in explained if slot in [found.name for found in entry.slots]]
            if not explained:
                raise error(
                    "UCP-E-MISMATCH",
                    f"{name!r} has no slot {slot!r}; leave out --slot to draw all",
                    at=side.label,
                )
        known = [entry for entry in explained if entry.explanation is not None]
        if not known:
            message = f"nothing says which ranks hold {name!r}; say how to spread it with --layout"
            raise error("UCP-E-LAYOUT", message, at=side.label)
        if svg is not None and len(known) > 1:
            raise click.UsageError("the slots are held in different ways: choose one for --svg with --slot")
        drawings = []
        for entry in known:
            first = entry.slots[0]
            index = first.layout
            if index is None:
                continue
            with about((name, first.name)):
                drawings.append((entry, draw(side.layouts[index], first.shape, first.place)))
        if svg is not None:
            svg.write_text(drawings[0][1].svg(), encoding="utf-8")
        if output == "json":
            click.echo(json.dumps(explanations_json(name, [(side, explained)]), indent=2))
            return
        for entry, drawing in drawings:
            click.echo(printable(f"{name}: {', '.join(found.name for found in entry.slots)}"))
            for line in drawing.lines(_paint()):
                click.echo(line)


def _paint() -> Paint:
    """Return what colours cells by their holders; `click.echo` removes colours where output is no terminal."""
    colours: dict[tuple[int, ...], str] = {}

    def paint(ranks: tuple[int, ...], text: str) -> str:
        colour = colours.setdefault(ranks, _COLOURS[len(colours) % len(_COLOURS)])
        return click.style(text, fg=colour) if ranks else text

    return paint
