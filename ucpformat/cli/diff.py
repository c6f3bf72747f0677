"""``ucp diff``: what changed between two checkpoints, by logical content."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from ucpformat.cli.report import format_option, printable
from ucpformat.comparison import Difference, compare
from ucpformat.reader import open_checkpoint

__all__ = ["diff"]


@click.command()
@click.argument("first")
@click.argument("second")
@format_option
@click.pass_context
def diff(context: click.Context, first: str, second: str, output: str) -> None:
    """Compare two checkpoints: names, shapes, types, every logical byte, and values. Exit code 1 if they differ.

    Storage, chunks, compression and layouts do not count: they say how, not what.
    """
    with open_checkpoint(first) as a, open_checkpoint(second) as b:
        differences = list(compare(a, b))
    if output == "json":
        click.echo(
            json.dumps({"equal": not differences, "differences": [asdict(d) for d in differences]}, indent=2)
        )
    else:
        for difference in differences:
            click.echo(printable(_line(difference)))
        click.echo("equal" if not differences else f"{len(differences)} differences")
    if differences:
        context.exit(1)


def _line(difference: Difference) -> str:
    sign = {"removed": "-", "added": "+", "changed": "~"}[difference.kind]
    return (
        f"{sign} {difference.what}: {difference.detail}" if difference.detail else f"{sign} {difference.what}"
    )
