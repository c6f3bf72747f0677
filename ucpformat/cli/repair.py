"""``ucp repair``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ucpformat.cli.report import format_option, progress_bar
from ucpformat.cli.survey import lines_of_problems, lines_of_survey
from ucpformat.repairing import repair as repair_checkpoint
from ucpformat.text import human_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.repairing import Repair, Restored

__all__ = ["repair"]

_SHOWN = 20


@click.command()
@click.argument("checkpoint")
@click.option(
    "--from",
    "others",
    multiple=True,
    required=True,
    metavar="OTHER",
    help="A checkpoint that may have the same bytes: a copy, or another step. May be given several times.",
)
@click.option(
    "--dry-run", is_flag=True, help="Say what would be restored, and what cannot be; write nothing."
)
@click.option(
    "--digest", help="The root digest of CHECKPOINT, where its root document does not tell any more."
)
@format_option
@click.pass_context
def repair(
    context: click.Context,
    checkpoint: str,
    others: tuple[str, ...],
    dry_run: bool,
    digest: str | None,
    output: str,
) -> None:
    """Restore what is damaged or missing of CHECKPOINT from others; exit code 1 where something stays lost.

    Bytes are found by the digests and checksums that CHECKPOINT records, in whatever storage and packs the others have
    them, and verified. What is good stays, byte for byte; an object appears whole, or stays what it was.
    """
    with progress_bar("looking for damage") as progress:
        done = repair_checkpoint(checkpoint, others, dry_run=dry_run, digest=digest, progress=progress)
    if output == "json":
        click.echo(json.dumps(_as_json(checkpoint, done, dry_run), indent=2))
    else:
        for line in _lines(checkpoint, done, dry_run):
            click.echo(printable(line))
    context.exit(0 if done.is_whole else 1)


def _as_json(checkpoint: str, done: Repair, dry_run: bool) -> dict[str, object]:
    return {
        "checkpoint": checkpoint,
        "digest": done.digest,
        "dry_run": dry_run,
        "whole": done.is_whole,
        "restored": [
            {"key": one.key, "bytes": one.nbytes, "from": list(one.sources), "whole": one.is_whole}
            for one in done.restored
        ],
        "problems": [problem.to_json() for problem in done.problems],
        **({} if done.survey is None else done.survey.to_json()),
    }


def _lines(checkpoint: str, done: Repair, dry_run: bool) -> Iterator[str]:
    verb = "would restore" if dry_run else "restored"
    for one in done.restored[:_SHOWN]:
        yield f"{verb} {_brief(one)}"
    rest = done.restored[_SHOWN:]
    if rest:
        yield f"{verb} {human_bytes(sum(one.nbytes for one in rest))} of {len(rest):,} more objects"
    yield from lines_of_problems(done.problems)
    if done.survey is not None:
        yield from lines_of_survey(done.survey)
    if not done.is_whole:
        verdict = "would still not be whole" if dry_run else "still not whole"
    elif done.restored:
        verdict = "would be whole again" if dry_run else "whole again"
    else:
        verdict = "nothing is damaged"
    yield f"{checkpoint}: {verdict}"


def _brief(one: Restored) -> str:
    part = "" if one.is_whole else ", in part"
    origin = f" from {', '.join(one.sources)}" if one.sources else ", which follows from the other documents"
    return f"{one.key}: {human_bytes(one.nbytes)}{origin}{part}"
