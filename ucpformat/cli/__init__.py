"""The command line: ``ucp`` and ``python -m ucpformat``.

Exit codes: 0 good, 1 the answer is no or the input is bad, 2 usage.
"""

from __future__ import annotations

import json
from typing import Any

import click

from ucpformat.cli.convert import convert
from ucpformat.cli.diff import diff
from ucpformat.cli.inspect import inspect
from ucpformat.cli.kinds import kinds
from ucpformat.cli.plan import plan
from ucpformat.cli.report import printable, wants_json
from ucpformat.cli.runs import gc, ls
from ucpformat.cli.validate import validate
from ucpformat.errors import UcpError

__all__ = ["main"]


class _Group(click.Group):
    """Turns registered errors, and no others, into one line on standard error and exit code 1."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except UcpError as refusal:
            if wants_json(context):
                click.echo(json.dumps({"problems": [refusal.problem().to_json()]}, indent=2))
            place = f" at {refusal.at}" if refusal.at else ""
            click.echo(printable(f"error {refusal.code}{place}: {refusal.message}"), err=True)
            context.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ucpformat", prog_name="ucp")
def main() -> None:
    """Universal checkpoints: convert, inspect, validate, compare, plan."""


main.add_command(convert)
main.add_command(diff)
main.add_command(gc)
main.add_command(inspect)
main.add_command(kinds)
main.add_command(ls)
main.add_command(plan)
main.add_command(validate)
