"""The command line: ``ucp`` and ``python -m ucpformat``.

Exit codes: 0 good, 1 the answer is no or the input is bad, 2 usage.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any, Final

import click

from ucpformat.cli.report import printable, wants_json
from ucpformat.collector import paused
from ucpformat.errors import UcpError

__all__ = ["main"]

# The module of each command, which is loaded for that command alone.
_COMMANDS: Final = {
    "convert": "convert",
    "cp": "copy",
    "diff": "diff",
    "gc": "runs",
    "inspect": "inspect",
    "kinds": "kinds",
    "ls": "runs",
    "plan": "plan",
    "validate": "validate",
}


class _Group(click.Group):
    """Loads a command when it is wanted; turns registered errors, and no others, into one line and exit code 1."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        with paused():
            command: click.Command = getattr(import_module(f"{__name__}.{_COMMANDS[name]}"), name)
        return command

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except UcpError as refusal:
            if wants_json(context):
                problem = {**refusal.problem().to_json(), "path": refusal.path}
                click.echo(json.dumps({"problems": [problem]}, indent=2))
            click.echo(printable(f"error {refusal}"), err=True)
            context.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ucpformat", prog_name="ucp")
def main() -> None:
    """Universal checkpoints: convert, inspect, validate, compare, plan."""
