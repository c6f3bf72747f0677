"""``ucp kinds``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ucpformat.cli.report import format_option, printable
from ucpformat.conversion.contract.registry import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.conversion.contract.foreign import Setting
    from ucpformat.conversion.contract.registry import Registered

__all__ = ["kinds"]


@click.command()
@format_option
@click.pass_context
def kinds(context: click.Context, output: str) -> None:
    """List the kinds of checkpoints that can be read and written, plug-ins included, with their settings.

    Exit code 1 where a plug-in cannot be used.
    """
    found = registry().entries()
    if output == "json":
        click.echo(json.dumps({"kinds": [_as_json(entry) for entry in found]}, indent=2))
    else:
        click.echo("ucp (reads, writes): universal checkpoints")
        for entry in found:
            _show(entry)
    context.exit(any(entry.broken for entry in found))


def _show(entry: Registered) -> None:
    kind = entry.kind
    if kind is None:
        click.echo(printable(f"{entry.name} ({entry.distribution}) cannot be used: {entry.broken}"))
        return
    ways = [way for way, action in (("reads", kind.plan), ("writes", kind.export)) if action is not None]
    origin = "" if entry.distribution == "ucpformat" else f" [{entry.distribution}]"
    click.echo(printable(f"{entry.name} ({', '.join(ways)}){origin}: {kind.title}"))
    for side, settings in (("read", kind.import_settings), ("written", kind.export_settings)):
        for setting in settings:
            click.echo(printable(f"    {setting.name}, where {side}: {setting.help}"))


def _as_json(entry: Registered) -> dict[str, object]:
    kind = entry.kind
    return {
        "name": entry.name,
        "distribution": entry.distribution,
        "broken": entry.broken,
        "title": "" if kind is None else kind.title,
        "reads": kind is not None and kind.plan is not None,
        "writes": kind is not None and kind.export is not None,
        "import_settings": [] if kind is None else _settings(kind.import_settings),
        "export_settings": [] if kind is None else _settings(kind.export_settings),
    }


def _settings(settings: Sequence[Setting]) -> list[dict[str, str]]:
    return [{"name": setting.name, "help": setting.help} for setting in settings]
