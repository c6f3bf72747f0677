"""``ucp log``: what the update log of a run has, what is wrong with it, and where a recovery would end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ucpformat.cli.recover import brief_recovery, recovery_json
from ucpformat.cli.report import format_option, table
from ucpformat.errors import UcpError, naming
from ucpformat.replay.plan import has_log, log_url, plan_recovery
from ucpformat.storage.stores.urls import name_of
from ucpformat.text import human_bytes, printable
from ucpformat.update_log.place import SUFFIX, batch_key
from ucpformat.update_log.reading import StoredLog
from ucpformat.update_log.validation import log_problems

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["log"]

_RIGHT = frozenset({"from", "to", "ranks", "batches", "bytes", "a step"})


@click.command()
@click.argument("run")
@format_option
@click.pass_context
def log(context: click.Context, run: str, output: str) -> None:
    """Say what the update log of RUN has, what is wrong with it, and where a recovery ends; RUN may be the log itself.

    `ucp recover --dry-run` says more of a recovery. Every byte of the log that counts is looked at. The exit code is 1
    if anything is wrong with it; what a crash has cut off at its end is a warning.
    """
    is_log = name_of(run.rstrip("/")).endswith(SUFFIX) or has_log(run)
    url = run if is_log else log_url(run)
    with naming(run):
        with StoredLog(url) as stored:
            found = list(_epochs(stored))
            identity = stored.document.id
        problems = log_problems(url)
        plan = None
        try:
            plan = None if is_log else plan_recovery(run)
        except UcpError as refusal:
            # A batch that is missing may have been removed with those before the oldest checkpoint, or be lost.
            problems.append(refusal.problem())
    is_valid = all(problem.severity == "warning" for problem in problems)
    if output == "json":
        report = {
            "id": identity,
            "epochs": found,
            "problems": [problem.to_json() for problem in problems],
            "recovery": None if plan is None else recovery_json(plan),
        }
        click.echo(json.dumps(report, indent=2))
    else:
        _print(identity, found)
        for problem in problems:
            click.echo(
                f"{problem.severity}: {problem.code} at {printable(problem.at)}: {printable(problem.message)}"
            )
        if plan is not None:
            click.echo(printable(brief_recovery(plan)))
    if not is_valid:
        context.exit(1)


def _epochs(stored: StoredLog) -> Iterator[dict[str, Any]]:
    counted = {one.stored.epoch.epoch: one.stop_step for one in stored.branch()}
    for number in stored.keys.epochs:
        try:
            epoch = stored.epoch(number).epoch
        except UcpError:
            continue
        keys = [key for key in stored.keys.batches if key.epoch == number]
        nbytes = sum(stored.store.size(batch_key(key)) or 0 for key in keys)
        first = min((stored.chain(number, rank).first_step for rank in range(epoch.ranks)), default=0)
        durable = min(stored.chain(number, rank).stop_step for rank in range(epoch.ranks))
        stop = counted.get(number)
        yield {
            "epoch": number,
            "first_step": max(first, epoch.first_step),
            "stop_step": durable if stop is None else min(durable, stop),
            "ranks": epoch.ranks,
            "batches": len(keys),
            "bytes": nbytes,
            "steps_written": durable - first,
            "optimizer": epoch.optimizer,
            "exactness": epoch.exactness,
            "counts": number in counted,
        }


def _print(identity: str, epochs: list[dict[str, Any]]) -> None:
    click.echo(f"log {identity}")
    rows = [
        [
            str(one["epoch"]),
            str(one["first_step"]),
            str(one["stop_step"]),
            str(one["ranks"]),
            str(one["batches"]),
            human_bytes(one["bytes"]),
            human_bytes(one["bytes"] // one["steps_written"]) if one["steps_written"] else "",
            printable(one["optimizer"]),
            one["exactness"] if one["counts"] else "given up",
        ]
        for one in epochs
    ]
    headings = ["epoch", "from", "to", "ranks", "batches", "bytes", "a step", "optimizer", "exactness"]
    for line in table(headings, rows, right=_RIGHT):
        click.echo(line)
