"""``ucp validate``."""

from __future__ import annotations

import json
from functools import partial
from typing import Final, cast

import click

from ucpformat.cli.report import SIZE, format_option, printable, progress_bar
from ucpformat.cli.survey import lines_of_problems, lines_of_survey
from ucpformat.errors import UcpError
from ucpformat.reader import open_checkpoint
from ucpformat.validation import LEVELS, Level, examine

__all__ = ["validate"]

_NO_ANSWER: Final = "UCP-E-STORE"
"""What says nothing about the checkpoint."""


@click.command()
@click.argument("checkpoint")
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="integrity",
    show_default=True,
    help="structure: JSON Schemas; semantics: documents and tables agree; integrity: every stored byte.",
)
@click.option(
    "--layout-work",
    type=click.IntRange(min=0),
    help="Check layouts of so many ranges in all, coordinates times blocks. "
    "[default: 2^18, and more for checkpoints with long documents]",
)
@click.option(
    "--expand",
    type=SIZE,
    help="Look at so many bytes: 64G. Compressed chunks and shared segments can stand for far more than is stored. "
    "[default: 64 times what is stored, at least 256M]",
)
@format_option
@click.pass_context
def validate(
    context: click.Context,
    checkpoint: str,
    level: str,
    layout_work: int | None,
    expand: int | None,
    output: str,
) -> None:
    """Say every problem of CHECKPOINT, a path or an fsspec URL, what is lost by them, and what survives.

    Warnings do not fail. At the level integrity every loss is named by tensor and rows, as slices of Python.
    """
    with progress_bar("validating", partial(_stored_bytes, checkpoint)) as progress:
        examined = examine(
            checkpoint, cast("Level", level), layout_work=layout_work, expand=expand, progress=progress
        )
    problems = examined.problems
    errors = [problem for problem in problems if problem.severity == "error"]
    is_unanswered = bool(errors) and all(problem.code == _NO_ANSWER for problem in errors)
    if output == "json":
        report = {
            "checkpoint": checkpoint,
            "level": level,
            "valid": None if is_unanswered else not errors,
            "problems": [problem.to_json() for problem in problems],
            **({} if examined.survey is None else examined.survey.to_json()),
        }
        click.echo(json.dumps(report, indent=2))
    else:
        for line in lines_of_problems(problems):
            click.echo(printable(line))
        for line in () if examined.survey is None else lines_of_survey(examined.survey):
            click.echo(printable(line))
        verdict = "valid" if not errors else f"not valid, {len(errors)} errors"
        if is_unanswered:
            verdict = "not checked to the end, since the store failed"
        warnings = len(problems) - len(errors)
        tail = f", {warnings} warnings" if warnings else ""
        click.echo(f"{checkpoint}: {verdict}{tail} (level {level})")
    if errors:
        context.exit(1)


def _stored_bytes(checkpoint: str) -> int:
    """Return roughly what integrity reads, for the bar alone: a broken checkpoint has no total."""
    try:
        with open_checkpoint(checkpoint) as opened:
            return sum(stored.nbytes for stored in opened.slots())
    except UcpError:
        return 0
