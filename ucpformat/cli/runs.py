"""``ucp ls`` and ``ucp gc``: what a run directory has, and removing what need not stay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ucpformat.cli.report import format_option, printable, table
from ucpformat.errors import UcpError
from ucpformat.manager.collection import DEBRIS_AGE, collect
from ucpformat.manager.retention import Retention
from ucpformat.manager.run_directory import RunDirectory, open_run

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["gc", "ls"]


@click.command()
@click.argument("run")
@format_option
def ls(run: str, output: str) -> None:
    """List the checkpoints of RUN, a directory of step-N.ucp: what is committed, and what is not."""
    directory = open_run(run)
    committed = {step: _metrics(directory, step) for step in directory.steps()}
    others = directory.uncommitted()
    if output == "json":
        found = [{"step": step, "metrics": metrics} for step, metrics in committed.items()]
        click.echo(json.dumps({"committed": found, "uncommitted": others}, indent=2))
        return
    names = sorted({name for metrics in committed.values() for name in metrics or ()})
    rows = [
        [str(step), "committed", *(_number(metrics, name) for name in names)]
        for step, metrics in committed.items()
    ]
    rows += [[str(step), "no root document", *("" for _ in names)] for step in others]
    rows.sort(key=lambda row: int(row[0]))
    for line in table(["step", "state", *names], rows, right=frozenset({"step", *names})):
        click.echo(printable(line))


def _metrics(directory: RunDirectory, step: int) -> Mapping[str, float] | None:
    try:
        return directory.metrics(step)
    except UcpError:
        return None


def _number(metrics: Mapping[str, float] | None, name: str) -> str:
    if metrics is None:
        return "unreadable"
    return f"{metrics[name]:g}" if name in metrics else ""


@click.command()
@click.argument("run")
@click.option("--keep-last", type=click.IntRange(1), metavar="N", help="Keep the newest N.")
@click.option("--keep-every", type=click.IntRange(1), metavar="N", help="Keep multiples of N steps.")
@click.option("--keep-best", type=click.IntRange(1), metavar="N", help="Keep the best N by --metric.")
@click.option("--metric", metavar="NAME", help="What is best.")
@click.option("--mode", type=click.Choice(["min", "max"]), default="min", show_default=True)
@click.option(
    "--debris-age",
    type=click.FloatRange(0),
    default=DEBRIS_AGE,
    show_default=True,
    metavar="SECONDS",
    help="Remove what was never committed, when nothing in it has changed for so long.",
)
@click.option("--dry-run", is_flag=True, help="Remove nothing, say what would go.")
@format_option
@click.pass_context
def gc(
    context: click.Context,
    run: str,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: int | None,
    metric: str | None,
    mode: str,
    debris_age: float,
    dry_run: bool,
    output: str,
) -> None:
    """Remove debris from RUN, and checkpoints that no --keep option keeps; without any, all are kept."""
    retention = Retention(keep_last, keep_every, keep_best, metric, "max" if mode == "max" else "min")
    found = collect(open_run(run), retention, debris_age=debris_age, dry=dry_run)
    if found.unjudged is not None:
        found.failed[run] = found.unjudged
    if output == "json":
        problems = [problem.problem().to_json() for problem in found.failed.values()]
        click.echo(json.dumps({"kept": found.kept, "removed": found.removed, "problems": problems}, indent=2))
    else:
        for name in found.removed:
            click.echo(printable(f"{'would remove' if dry_run else 'removed'} {name}"))
        click.echo(f"kept {len(found.kept)} checkpoints")
        for name, problem in found.failed.items():
            click.echo(printable(f"error {problem.code} at {name}: {problem.message}"), err=True)
    if found.failed:
        context.exit(1)
