"""``ucp ls`` and ``ucp gc``: what a run directory has, and removing what need not stay."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from ucpformat.cadence import Cadence
from ucpformat.cli.log_of_run import LogOfRun, pruned
from ucpformat.cli.report import format_option, table
from ucpformat.errors import UcpError, error, naming
from ucpformat.manager.collection import DEBRIS_AGE, collect, is_damage
from ucpformat.manager.footprints import Footprint, Footprints
from ucpformat.manager.increments import INCREMENTS
from ucpformat.manager.pace import CADENCE
from ucpformat.manager.retention import Retention
from ucpformat.manager.run_directory import RunDirectory, metrics_of, open_run, step_of
from ucpformat.model.root import ROOT_KEY
from ucpformat.reader import open_checkpoint
from ucpformat.replay.plan import LOG_NAME, log_url
from ucpformat.storage.stores.not_a_checkpoint import not_a_checkpoint
from ucpformat.storage.stores.urls import local_path, open_store
from ucpformat.text import human_bytes, printable
from ucpformat.update_log.place import has_log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["existing_run", "gc", "ls"]

_NAMES: Final = 6


@click.command()
@click.argument("run")
@format_option
def ls(run: str, output: str) -> None:
    """List the checkpoints of RUN, a directory of step-N.ucp: what is committed, damaged, or was never committed.

    Of a run with an update log also: which of its epochs goes on from each, and what the log has, by the headers of its
    batches. In a file system also: which are increments, the bytes that the removal of each would free, and those that
    it shares with others; and how often the run saves, where its manager has measured that. Root documents are read,
    and no data: `ucp validate` looks at every byte of a checkpoint.
    """
    with naming(run):
        directory = existing_run(run)
        prints = Footprints.of(directory)
        log = LogOfRun.of(run)
        committed = {step: _look(directory, step, prints, log) for step in directory.steps()}
        others = directory.uncommitted()
    if output == "json":
        checkpoints = [
            {
                "step": step,
                "metrics": look.metrics,
                "increment": look.is_increment,
                "cadence": None if look.cadence is None else look.cadence.to_json(),
                "bytes": None if look.footprint is None else look.footprint.to_json(),
                "log": look.log,
                "problem": None if look.problem is None else look.problem.problem().to_json(),
            }
            for step, look in committed.items()
        ]
        of_log = None if log is None else log.to_json()
        click.echo(json.dumps({"committed": checkpoints, "uncommitted": others, "log": of_log}, indent=2))
        return
    names = sorted({name for look in committed.values() for name in look.metrics or ()})
    beside = [] if log is None else ["log"]
    rows = [
        [
            str(step),
            look.state,
            *look.sizes(),
            *(look.log or "" for _ in beside),
            *(_number(look.metrics, name) for name in names),
        ]
        for step, look in committed.items()
    ]
    rows += [[str(step), "no root document", "", "", "", *("" for _ in (*beside, *names))] for step in others]
    rows.sort(key=lambda row: int(row[0]))
    columns = ["step", "state", "frees", "shared", "with", *beside, *names]
    for line in table(columns, rows, right=frozenset({"step", "frees", "shared", *names})):
        click.echo(printable(line))
    cadence = next((look.cadence for look in reversed(committed.values()) if look.cadence), None)
    if cadence is not None:
        click.echo(printable(f"saved {cadence}"))
    if log is not None:
        click.echo(printable(log.line()))


def existing_run(run: str) -> RunDirectory:
    """Return a run directory, which must exist.

    Raises:
        StoreError: ``UCP-E-NOT-FOUND`` where there is none, with what lies there instead.
    """
    directory = open_run(run)
    path = local_path(run)
    if directory.steps() or directory.uncommitted() or directory.aside() or has_log(log_url(run)):
        return directory
    if directory.place.abort_uploads(0, dry=True):
        return directory  # nothing was ever completed
    if path is not None and os.path.isdir(path) and not os.listdir(path):
        return directory  # where no checkpoint was saved yet
    store = open_store(run)
    try:
        is_checkpoint = store.size(ROOT_KEY) is not None
    finally:
        store.close()
    if is_checkpoint:
        what = f"this is a checkpoint, and no run directory; look into it with `ucp inspect {run}`"
    else:
        what = not_a_checkpoint(run)
        if path is None or os.path.exists(path):
            what = f"no step-N.ucp lies there, so it is no run directory: {what}"
    raise error("UCP-E-NOT-FOUND", what, at=run)


@dataclass(frozen=True, slots=True)
class _Look:
    """What the root document of a committed checkpoint says: its metrics, or why it cannot be read."""

    metrics: Mapping[str, float] | None
    problem: UcpError | None = None
    is_increment: bool | None = None
    footprint: Footprint | None = None
    cadence: Cadence | None = None
    log: str | None = None

    @property
    def state(self) -> str:
        if self.problem is None:
            return "increment" if self.is_increment else "committed"
        return f"{'damaged' if is_damage(self.problem.code) else 'unreadable'} ({self.problem.code})"

    def sizes(self) -> list[str]:
        """Return what its removal frees, what it shares, and with which steps."""
        found = self.footprint
        if found is None:
            return ["", "", ""]
        if not found.shared:
            return [human_bytes(found.freed), "", ""]
        others = [*([_brief(found.shares_with)] if found.shares_with else [])]
        others += ["files outside the run"] if found.is_shared_elsewhere else []
        return [human_bytes(found.freed), human_bytes(found.shared), " and ".join(others)]


def _look(directory: RunDirectory, step: int, prints: Footprints, log: LogOfRun | None) -> _Look:
    footprint = prints.footprint(directory.name(step) or "")
    try:
        with open_checkpoint(directory.path(step)) as checkpoint:
            envelope, progress = checkpoint.root.envelope, checkpoint.root.progress
    except UcpError as problem:
        return _Look(None, problem, footprint=footprint)
    is_increment = "incremental" in envelope.read_features or INCREMENTS in envelope.annotations
    cadence = Cadence.from_json(envelope.annotations.get(CADENCE))
    position = None if log is None else log.position(progress, step)
    return _Look(metrics_of(envelope.annotations), None, is_increment, footprint, cadence, position)


def _brief(names: Sequence[str]) -> str:
    """Return entries of a run in few words: by their steps, where they have one."""
    words = [str(name if (step := step_of(name)) is None else step) for name in names]
    words.sort(key=lambda word: (not word.isdigit(), len(word), word))
    more = f" and {len(words) - _NAMES} more" if len(words) > _NAMES else ""
    return f"{', '.join(words[:_NAMES])}{more}"


def _freed(found: Footprint | None) -> str:
    if found is None:
        return ""
    words = f": frees {human_bytes(found.freed)}"
    if found.shared:
        names = [*([f"step {_brief(found.shares_with)}"] if found.shares_with else [])]
        names += ["files outside the run"] if found.is_shared_elsewhere else []
        words += f"; {human_bytes(found.shared)} stay for {' and '.join(names)}"
    return words


def _number(metrics: Mapping[str, float] | None, name: str) -> str:
    return f"{metrics[name]:g}" if metrics is not None and name in metrics else ""


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
    """Remove debris from RUN, and checkpoints that no --keep option keeps; without any, all are kept.

    Of an update log, batches go that end before the oldest checkpoint that is kept, and those of epochs that a recovery
    gave up.

    What increments that are kept share with those that go stays on the disk; `gc` says how much, and for which steps.

    On S3, multipart uploads that died are debris, too, of whatever step.
    """
    retention = Retention(keep_last, keep_every, keep_best, metric, "max" if mode == "max" else "min")
    with naming(run):
        directory = existing_run(run)
        prints = Footprints.of(directory)
        collection = collect(directory, retention, debris_age=debris_age, dry=dry_run)
        of_log = None
        try:
            of_log = pruned(directory, collection.kept, debris_age=debris_age, dry=dry_run)
        except UcpError as refusal:
            collection.failed[LOG_NAME] = refusal
    freed = {
        name: prints.footprint(name, collection.removed[:number])
        for number, name in enumerate(collection.removed)
    }
    if collection.unjudged is not None:
        collection.failed[run] = collection.unjudged
    if output == "json":
        problems = [problem.problem().to_json() for problem in collection.failed.values()]
        what = {
            "kept": collection.kept,
            "removed": collection.removed,
            "bytes": {name: None if one is None else one.to_json() for name, one in freed.items()},
            "uploads": collection.uploads,
            "log": None if of_log is None else of_log.to_json(),
            "problems": problems,
        }
        click.echo(json.dumps(what, indent=2))
    else:
        for name in collection.removed:
            click.echo(printable(f"{'would remove' if dry_run else 'removed'} {name}{_freed(freed[name])}"))
        for name, count in collection.uploads.items():
            done = "would give up" if dry_run else "gave up"
            click.echo(printable(f"{done} {count} unfinished upload{'s' if count > 1 else ''} to {name}"))
        for line in () if of_log is None else of_log.lines("would remove" if dry_run else "removed"):
            click.echo(line)
        click.echo(f"kept {len(collection.kept)} checkpoints")
        for name, problem in collection.failed.items():
            click.echo(printable(f"error {problem.code} at {name}: {problem.message}"), err=True)
    if collection.failed:
        context.exit(1)
