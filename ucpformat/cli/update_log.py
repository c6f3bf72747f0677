"""``ucp log``: what the update log of a run has, what is wrong with it, and where a recovery would end."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import click

from ucpformat.cli.log_of_run import newest_cadence
from ucpformat.cli.recover import brief_recovery, recovery_json
from ucpformat.cli.report import format_option, table
from ucpformat.cli.survey import lines_of_problems
from ucpformat.errors import naming
from ucpformat.manager.run_directory import open_run
from ucpformat.replay.plan import log_url, plan_or_problem
from ucpformat.storage.stores.urls import name_of
from ucpformat.text import counted, human_bytes, printable
from ucpformat.update_log.overview import overview
from ucpformat.update_log.place import SUFFIX, has_log
from ucpformat.update_log.reading import StoredLog
from ucpformat.update_log.validation import problems_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ucpformat.update_log.documents import Epoch
    from ucpformat.update_log.overview import EpochOverview

__all__ = ["log", "show_log"]

_RIGHT = frozenset({"epoch", "from", "to", "ranks", "batches", "bytes", "a step"})


@click.command()
@click.argument("run")
@format_option
@click.pass_context
def log(context: click.Context, run: str, output: str) -> None:
    """Say what the update log of RUN has, what is wrong with it, and where a recovery ends; RUN may be the log itself.

    How often full checkpoints are saved is shown where the run has decided it by what it measured.
    `ucp recover --dry-run` says more of a recovery. Every byte of the log that counts is looked at. The exit code is 1
    if anything is wrong with it; what a crash has cut off at its end is a warning.
    """
    is_log = name_of(run.rstrip("/")).endswith(SUFFIX) or has_log(run)
    with naming(run), StoredLog(run if is_log else log_url(run)) as stored:
        found = list(overview(stored))
        identity = stored.document.id
        problems = [*problems_of(stored)]
        plan = cadence = None
        if not is_log:
            cadence = newest_cadence(open_run(run))
            plan, refusal = plan_or_problem(run, stored)
            problems += refusal
    if output == "json":
        report = {
            "id": identity,
            "epochs": [one.to_json() for one in found],
            "problems": [problem.to_json() for problem in problems],
            "cadence": None if cadence is None else cadence.to_json(),
            "recovery": None if plan is None else recovery_json(plan),
        }
        click.echo(json.dumps(report, indent=2))
    else:
        often = [] if cadence is None else [f"full checkpoints {cadence}"]
        recovery = [] if plan is None else [brief_recovery(plan)]
        for line in (*_epochs(identity, found), *often, *lines_of_problems(problems), *recovery):
            click.echo(printable(line))
    if any(problem.severity == "error" for problem in problems):
        context.exit(1)


def _epochs(identity: str, epochs: Iterable[EpochOverview]) -> Iterator[str]:
    yield f"log {identity}"
    rows = [
        [
            str(one.epoch),
            str(one.first_step),
            str(one.stop_step),
            str(one.ranks),
            str(one.batches),
            human_bytes(one.bytes),
            human_bytes(one.bytes // one.steps_written) if one.steps_written else "",
            one.optimizer,
            one.exactness if one.counts else "given up",
        ]
        for one in epochs
    ]
    headings = ["epoch", "from", "to", "ranks", "batches", "bytes", "a step", "optimizer", "exactness"]
    yield from table(headings, rows, right=_RIGHT)


def show_log(url: str, output: str) -> None:
    """Show what a log holds, as `ucp inspect` does: its epochs, and what the newest one follows."""
    with StoredLog(url, verify=False) as stored:
        found = list(overview(stored))
        branch = stored.branch()
        identity = stored.document.id
    epoch = branch[-1].stored.epoch if branch else None
    if output == "json":
        told = {
            "id": identity,
            "epochs": [one.to_json() for one in found],
            "newest": None if epoch is None else epoch.to_json(),
        }
        click.echo(json.dumps(told, indent=2))
        return
    for line in (*_epochs(identity, found), *(() if epoch is None else _followed(epoch))):
        click.echo(printable(line))


def _followed(epoch: Epoch) -> Iterator[str]:
    """Yield the tensors that an epoch follows, and what its steps are made by."""
    profile = ", ".join(f"{name} {value}" for name, value in sorted(epoch.profile.items()))
    groups = counted(len(epoch.groups), "group")
    yield ""
    yield f"epoch {epoch.epoch}: {epoch.optimizer}, {groups}{profile and '; '}{profile}"
    group_of = {tensor: number for number, members in enumerate(epoch.groups) for tensor in members}
    pieces = Counter(piece.tensor for piece in epoch.pieces)
    rows = [
        [
            tensor.atom,
            tensor.role,
            str(group_of.get(number, "")),
            tensor.dtype,
            "x".join(map(str, tensor.shape)) or "scalar",
            str(pieces[number]),
        ]
        for number, tensor in enumerate(epoch.tensors)
    ]
    headings = ["atom", "role", "group", "dtype", "shape", "pieces"]
    yield from table(headings, rows, right=frozenset({"group", "pieces"}))
