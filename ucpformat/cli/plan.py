"""``ucp plan``: what moves between two arrangements of ranks, before anything does."""

from __future__ import annotations

import json
from contextlib import ExitStack
from glob import escape
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final, cast

import click

from ucpformat.cli.explain import explained_slots, explanation_lines, explanations_json
from ucpformat.cli.plan_json import detail_json, survey_json
from ucpformat.cli.plan_text import detail_lines, survey_lines
from ucpformat.cli.report import format_option
from ucpformat.cli.sides import open_side, open_sides, settings_option
from ucpformat.planning import Route, pair, rank_detail, survey
from ucpformat.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.planning import Side

__all__ = ["plan"]

_COLOURS: Final = ("green", "cyan", "yellow", "magenta")


@click.command()
@click.option("--from", "source", required=True, metavar="A", help="Who holds what now.")
@click.option("--to", "target", metavar="B", help="Who is to hold what.")
@click.option(
    "--atoms", default="*", show_default=True, metavar="GLOB", help="Only atoms whose name matches."
)
@click.option("--rank", type=click.IntRange(0), help="All that this rank does, slot by slot.")
@click.option(
    "--via",
    type=click.Choice(["storage", "ranks"]),
    help="Where ranks get what they lack: out of the checkpoint A, the default where A is one, or from the "
    "ranks that hold it under A's layouts.",
)
@click.option(
    "--explain",
    "name",
    metavar="NAME",
    help="Who holds what of this atom, in words and pictures; --to may be left out.",
)
@click.option("--picture", is_flag=True, help="Draw what each rank is to hold and has to move as bars.")
@click.option(
    "-o",
    "--svg",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the picture to this file as well.",
)
@settings_option
@format_option
def plan(
    source: str,
    target: str | None,
    atoms: str,
    rank: int | None,
    via: str | None,
    name: str | None,
    picture: bool,
    svg: Path | None,
    settings: tuple[tuple[str, int | list[int]], ...],
    output: str,
) -> None:
    """Say who moves what, and how much, from A to B. Nothing is moved.

    Each of A and B is a checkpoint with the layouts that it records, an arrangement document, or patterns, a
    document or a ready-made name, which say how the slots of the other are spread.
    """
    if name is not None and atoms != "*":
        raise click.UsageError(
            "--atoms chooses what is planned, and --explain names one atom: give one of them"
        )
    if via is not None and name is not None and (target is None or output == "json"):
        raise click.UsageError(
            "--via is about what moves, and this explains only who holds what: leave it out"
        )
    if (picture or svg is not None) and (name is not None or rank is not None):
        raise click.UsageError(
            "--picture and --svg show all ranks: leave out --rank, or draw one atom with `ucp shards`"
        )
    if picture and output == "json":
        raise click.UsageError("--picture is text: leave out --format json")
    with ExitStack() as stack:
        if target is None:
            if name is None:
                raise click.UsageError("say --to where, or --explain which atom of A")
            _explain((open_side(source, settings, stack),), name, rank, output)
            return
        sides = open_sides(source, target, settings, stack)
        if name is not None:
            _explain(sides, name, rank, output)
            if output == "json":
                return
            atoms, rank = escape(name), None
        pairing = pair(*sides, _route(via, sides[0]), atoms=atoms)
        if rank is None:
            totals = survey(pairing)
            if svg is not None:
                svg.write_text(totals.bars().svg(), encoding="utf-8")
            if output == "json":
                click.echo(json.dumps(survey_json(totals), indent=2))
            elif picture:
                for line in totals.bars().lines(get_terminal_size().columns, _paint):
                    click.echo(line)
            else:
                for line in survey_lines(totals):
                    click.echo(printable(line))
            return
        detail = rank_detail(pairing, rank)
        if output == "json":
            for text in detail_json(detail):
                click.echo(text, nl=False)
        else:
            for line in detail_lines(detail):
                click.echo(printable(line))


def _paint(column: int, text: str) -> str:
    """Colour the bars of a column; `click.echo` removes colours where output is no terminal."""
    return click.style(text, fg=_COLOURS[column % len(_COLOURS)]) if text else text


def _explain(sides: Sequence[Side], name: str, rank: int | None, output: str) -> None:
    explained = [(side, explained_slots(side, name, rank)) for side in sides]
    if output == "json":
        click.echo(json.dumps(explanations_json(name, explained), indent=2))
        return
    for side, slots in explained:
        for line in explanation_lines(side, name, slots):
            click.echo(printable(line))


def _route(via: str | None, source: Side) -> Route:
    if via is None:
        return "ranks" if source.checkpoint is None else "storage"
    return cast("Route", via)
