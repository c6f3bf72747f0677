"""What the commands share: the output option, progress bars and tables."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from ucpformat.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["SIZE", "Bar", "format_option", "progress_bar", "table", "wants_json"]

_OUTPUT: Final = "ucpformat.output"
_LEAST_NAME: Final = 16
"""Characters of the first column of a table, however narrow the terminal is."""


def _remember(context: click.Context, _: click.Parameter, output: str) -> str:
    # Contexts of a group and of its commands share `meta`: so the group knows when it reports an error.
    context.meta[_OUTPUT] = output
    return output


format_option = click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    callback=_remember,
    is_eager=True,
    help="For people, or for programs.",
)


def wants_json(context: click.Context) -> bool:
    """Return whether the command that ran was told ``--format json``."""
    return context.meta.get(_OUTPUT) == "json"


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: frozenset[str],
    width: int | None = None,
) -> Iterator[str]:
    """Yield lines of aligned columns; names are neither cut nor interpreted, but control characters are spelled out.

    The first column is as wide as leaves the others room in ``width``; a longer name has a line of its own.
    """
    cells = [[printable(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        widths[0] = min(widths[0], max(_LEAST_NAME, width - sum(widths[1:]) - 2 * len(widths[1:])))
    for row in cells:
        if len(row[0]) > widths[0]:
            yield row[0]
            row[0] = ""
        aligned = [
            cell.rjust(extent) if heading in right else cell.ljust(extent)
            for heading, cell, extent in zip(headings, row, widths, strict=True)
        ]
        yield "  ".join(aligned).rstrip()


class _Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes, with a binary unit."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", str(value), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is no size such as 512M.", param, ctx)
        return int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")


SIZE: Final = _Size()


class Bar:
    """What advances a bar by bytes when it is called; shows nothing without one."""

    def __init__(self, bar: Progress | None = None, title: str = "", total: int | None = None) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task(title, total=total)

    def __call__(self, done: int) -> None:
        """Advance by so many bytes."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, done)

    def expect(self, total: int) -> None:
        """Say how many bytes there will be, once that is known."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total)


@contextmanager
def progress_bar(
    title: str, total: Callable[[], int] | None = None, *, silent: bool = False
) -> Iterator[Bar]:
    """Yield a bar of bytes; silent on request, and where standard error is not a terminal.

    ``total`` is asked only where there is a bar.
    """
    if silent or not sys.stderr.isatty():
        yield Bar()
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn(title),
        progress.BarColumn(),
        progress.DownloadColumn(True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Bar(bar, title, None if total is None else total())
