"""The command line: ``ucp`` and ``python -m ucpformat``; docs/command-line.md has its exit codes."""

from __future__ import annotations

import errno
import json
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

import click

from ucpformat.cli.report import wants_json
from ucpformat.errors import UcpError, error
from ucpformat.gc_pause import paused
from ucpformat.text import printable

__all__ = ["main"]

_COMMANDS: Final = {
    "attach": ("process_images", "Add process images to a copy of a checkpoint."),
    "convert": ("convert", "Convert a checkpoint of one format into another."),
    "cp": ("copy", "Copy a checkpoint."),
    "diff": ("diff", "Compare what two checkpoints hold."),
    "digest": ("digest", "Print root digests, which name all of a checkpoint."),
    "extract": ("process_images", "Write a process image of a checkpoint to the disk."),
    "gc": ("runs", "Remove debris from a run, and checkpoints that nobody keeps."),
    "inspect": ("inspect", "Show what a checkpoint holds."),
    "formats": ("formats", "List the formats that can be read and written."),
    "log": ("update_log", "Say what the update log of a run has."),
    "ls": ("runs", "List the checkpoints of a run."),
    "plan": ("plan", "Say who moves what, and how much, between two layouts."),
    "recover": ("recover", "Say where a recovery from an update log begins and ends."),
    "repair": ("repair", "Restore what is damaged or missing from others."),
    "serve": ("view", "Serve a page that shows a checkpoint or a run, to this machine."),
    "shards": ("shards", "Draw which ranks hold what of a tensor."),
    "validate": ("validate", "Say every problem of checkpoints."),
    "view": ("view", "Write one HTML page that shows a checkpoint."),
}
"""The module of each command, which is loaded for that command alone, and what the list of commands says of it."""


# What pip installs where a package is missing, by the package.
_REMEDIES: Final = {
    "torch": "ucpformat[torch]",
    "safetensors": "ucpformat[safetensors]",
    "tensorstore": "ucpformat[orbax]",
    "dask": "dask[distributed]",
}

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as shells have it."""


class _Group(click.Group):
    """Loads a command when it is wanted; turns what a user can mend, and nothing else, into one line and an exit code.

    That is registered errors, packages that are not installed, what the operating system refuses, and an interruption.
    """

    def list_commands(self, _: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        with paused:
            command: click.Command = getattr(import_module(f"{__name__}.{_COMMANDS[name][0]}"), name)
        return command

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(context, arguments)
        except click.UsageError:
            near = get_close_matches(arguments[0], _COMMANDS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(sorted(_COMMANDS))}."
            raise click.UsageError(f"No such command {arguments[0]!r}. {hint}", context) from None

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except UcpError as refusal:
            _refuse(context, refusal)
        except ModuleNotFoundError as missing:
            package = (missing.name or "").partition(".")[0]
            if package in ("", "ucpformat", *sys.stdlib_module_names):
                raise
            remedy = _REMEDIES.get(package, package)
            click.echo(
                f"error: this needs the package {package}, which is not installed; pip install '{remedy}'",
                err=True,
            )
            context.exit(1)
        except OSError as refused:
            if refused.errno is None or refused.errno == errno.EPIPE:
                raise
            from ucpformat.storage.stores.local_io import in_words

            at = "" if refused.filename is None else os.fsdecode(refused.filename)
            _refuse(context, error("UCP-E-STORE", in_words(refused), at=at))
        except KeyboardInterrupt as interrupted:
            note = " ".join(getattr(interrupted, "__notes__", ()))
            click.echo(printable(f"interrupted{note and ': '}{note}"), err=True)
            context.exit(INTERRUPTED)


def _refuse(context: click.Context, refusal: UcpError) -> None:
    if wants_json(context):
        problem = {**refusal.problem().to_json(), "path": refusal.path}
        click.echo(json.dumps({"problems": [problem]}, indent=2))
    click.echo(printable(f"error {refusal}"), err=True)
    context.exit(1)


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, and the answer is yes; 1 the answer is no, or an error, which is one line that names "
    "the object, the location and the remedy; 2 wrong usage; 130 interrupted.",
)
@click.version_option(package_name="ucpformat", prog_name="ucp")
def main() -> None:
    """Universal checkpoints: convert, copy, inspect, validate, repair, compare, plan."""
