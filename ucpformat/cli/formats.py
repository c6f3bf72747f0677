"""``ucp formats``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ucpformat.cli.report import format_option
from ucpformat.conversion.contract.registry import registry
from ucpformat.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.conversion.contract.foreign import Setting
    from ucpformat.conversion.contract.registry import Registered

__all__ = ["formats"]


@click.command()
@format_option
@click.pass_context
def formats(context: click.Context, output: str) -> None:
    """List the checkpoint formats that can be read and written, plug-ins included, with their settings.

    Exit code 1 where a plug-in cannot be used.
    """
    entries = registry().entries()
    if output == "json":
        click.echo(json.dumps({"formats": [_as_json(entry) for entry in entries]}, indent=2))
    else:
        click.echo("ucp (reads, writes): universal checkpoints")
        for entry in entries:
            _show(entry)
    context.exit(any(entry.broken for entry in entries))


def _show(entry: Registered) -> None:
    foreign = entry.format
    if foreign is None:
        click.echo(printable(f"{entry.name} ({entry.distribution}) cannot be used: {entry.broken}"))
        return
    ways = [
        way for way, action in (("reads", foreign.plan), ("writes", foreign.export)) if action is not None
    ]
    origin = "" if entry.distribution == "ucpformat" else f" [{entry.distribution}]"
    click.echo(printable(f"{entry.name} ({', '.join(ways)}){origin}: {foreign.title}"))
    for side, settings in (("read", foreign.import_settings), ("written", foreign.export_settings)):
        for setting in settings:
            click.echo(printable(f"    {setting.name}, where {side}: {setting.help}"))


def _as_json(entry: Registered) -> dict[str, object]:
    foreign = entry.format
    return {
        "name": entry.name,
        "distribution": entry.distribution,
        "broken": entry.broken,
        "title": "" if foreign is None else foreign.title,
        "reads": foreign is not None and foreign.plan is not None,
        "writes": foreign is not None and foreign.export is not None,
        "import_settings": [] if foreign is None else _settings(foreign.import_settings),
        "export_settings": [] if foreign is None else _settings(foreign.export_settings),
    }


def _settings(settings: Sequence[Setting]) -> list[dict[str, str]]:
    return [{"name": setting.name, "help": setting.help} for setting in settings]
