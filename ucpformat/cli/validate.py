"""``ucp validate``."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import click

from ucpformat.cli.report import SIZE, format_option, progress_bar
from ucpformat.cli.survey import lines_of_problems, lines_of_survey
from ucpformat.errors import UcpError
from ucpformat.reader import open_checkpoint
from ucpformat.replay.plan import log_url, plan_or_problem
from ucpformat.text import counted, printable
from ucpformat.update_log.place import has_log
from ucpformat.update_log.reading import StoredLog
from ucpformat.update_log.validation import log_problems, problems_of
from ucpformat.validation import LEVELS, Examination, Level, examine

if TYPE_CHECKING:
    from collections.abc import Callable

    from ucpformat.errors import Problem
    from ucpformat.manager.run_directory import RunDirectory

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

    Of a run directory, every committed checkpoint is validated, and its update log, with which a recovery has to go on
    from one of them, and it is said which checkpoints share the damaged files. CHECKPOINT may also be an update log,
    which has one level alone.

    Warnings do not fail. At the level integrity every loss is named by tensor and rows, as slices of Python.
    """
    look = partial(_examined, level=cast("Level", level), layout_work=layout_work, expand=expand)
    run = _run_at(checkpoint)
    if run is not None:
        is_valid = _validate_run(checkpoint, run, look, level, output)
    else:
        examined = _of_log(checkpoint) if has_log(checkpoint) else look(checkpoint)
        is_valid = not _errors(examined)
        if output == "json":
            click.echo(json.dumps(_report(checkpoint, level, examined), indent=2))
        else:
            _print(checkpoint, level, examined)
    if not is_valid:
        context.exit(1)


def _examined(checkpoint: str, *, level: Level, layout_work: int | None, expand: int | None) -> Examination:
    with progress_bar("validating", partial(_stored_bytes, checkpoint)) as progress:
        return examine(checkpoint, level, layout_work=layout_work, expand=expand, progress=progress)


def _of_log(url: str) -> Examination:
    return Examination(log_problems(url), None)


def _log_of_run(run: str) -> Examination:
    """Examine the log of a run, and whether a recovery goes on from one of its checkpoints."""
    try:
        with StoredLog(log_url(run)) as log:
            _, refusal = plan_or_problem(run, log)
            return Examination([*problems_of(log), *refusal], None)
    except UcpError as problem:
        return Examination([problem.problem()], None)


def _errors(examined: Examination) -> list[Problem]:
    return [problem for problem in examined.problems if problem.severity == "error"]


def _is_unanswered(errors: list[Problem]) -> bool:
    return bool(errors) and all(problem.code == _NO_ANSWER for problem in errors)


def _report(checkpoint: str, level: str, examined: Examination) -> dict[str, object]:
    errors = _errors(examined)
    return {
        "checkpoint": checkpoint,
        "level": level,
        "valid": None if _is_unanswered(errors) else not errors,
        "problems": [problem.to_json() for problem in examined.problems],
        **({} if examined.survey is None else examined.survey.to_json()),
    }


def _print(checkpoint: str, level: str, examined: Examination) -> None:
    errors = _errors(examined)
    for line in lines_of_problems(examined.problems):
        click.echo(printable(line))
    for line in () if examined.survey is None else lines_of_survey(examined.survey):
        click.echo(printable(line))
    verdict = "valid" if not errors else f"not valid, {counted(len(errors), 'error')}"
    if _is_unanswered(errors):
        verdict = "not checked to the end, since the store failed"
    warnings = len(examined.problems) - len(errors)
    tail = f", {counted(warnings, 'warning')}" if warnings else ""
    click.echo(f"{checkpoint}: {verdict}{tail} (level {level})")


def _run_at(path: str) -> RunDirectory | None:
    """Return the run directory at a path that has committed checkpoints, and is none itself."""
    from ucpformat.manager.run_directory import open_run

    with suppress(UcpError):
        run = open_run(path)
        return run if not run.is_checkpoint() and run.steps() else None
    return None


def _validate_run(
    path: str, run: RunDirectory, look: Callable[[str], Examination], level: str, output: str
) -> bool:
    """Examine every committed checkpoint of a run, and say which others have the files that are damaged."""
    from ucpformat.manager.footprints import Footprints

    prints = Footprints.of(run)
    reports = []
    valid = 0
    steps = run.steps()
    for step in steps:
        name = run.name(step)
        if name is None:  # removed meanwhile
            continue
        place = f"{path.rstrip('/')}/{name}"
        examined = look(place)
        errors = _errors(examined)
        valid += not errors
        keys = dict.fromkeys(problem.at.partition("#")[0] for problem in errors)
        files = {key: found for key in keys if (found := prints.having(name, key)) is not None}
        if output == "json":
            shared = {key: found.to_json() for key, found in files.items()}
            reports.append({"step": step, **_report(place, level, examined), "files": shared})
            continue
        _print(place, level, examined)
        for key, found in files.items():
            if found.same:
                click.echo(printable(f"the same file {key} is in {', '.join(found.same)}: lost for them too"))
            if found.others:
                click.echo(
                    printable(f"another file {key} is in {', '.join(found.others)}: `ucp repair` may use it")
                )
    log = log_url(path)
    of_log = _log_of_run(path) if has_log(log) else None
    is_valid = valid == len(steps) and not (of_log and _errors(of_log))
    if output == "json":
        found_all = {"run": path, "level": level, "valid": is_valid, "checkpoints": reports}
        if of_log is not None:
            found_all["log"] = _report(log, level, of_log)
        click.echo(json.dumps(found_all, indent=2))
    else:
        if of_log is not None:
            _print(log, level, of_log)
        click.echo(f"{path}: {valid} of {len(steps)} checkpoints valid (level {level})")
    return is_valid


def _stored_bytes(checkpoint: str) -> int:
    """Return roughly what integrity reads, for the bar alone: a broken checkpoint has no total."""
    try:
        with open_checkpoint(checkpoint) as opened:
            return sum(stored.nbytes for stored in opened.slots())
    except UcpError:
        return 0
