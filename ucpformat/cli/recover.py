"""``ucp recover --dry-run``: where a recovery begins and ends, and what it reads; nothing is recovered here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ucpformat.cli.report import format_option
from ucpformat.cli.runs import existing_run
from ucpformat.errors import naming
from ucpformat.replay.plan import log_url, plan_recovery
from ucpformat.replay.replica.living import living_replicas
from ucpformat.storage.stores.urls import name_of
from ucpformat.text import counted, human_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.replay.plan import Candidate, RecoveryPlan
    from ucpformat.replay.replica.living import Living

__all__ = ["brief_recovery", "recover", "recovery_json"]


@click.command()
@click.argument("run")
@click.option(
    "--dry-run", is_flag=True, help="Say what a recovery does; without it there is nothing to recover."
)
@click.option("--allow-loss", is_flag=True, help="As where durable steps behind damage may be lost.")
@click.option(
    "--keep-residuals",
    is_flag=True,
    help="End with the last step whose residuals of error feedback are stored.",
)
@format_option
def recover(run: str, dry_run: bool, allow_loss: bool, keep_residuals: bool, output: str) -> None:
    """Say where a recovery of RUN from its update log begins and ends, what it reads, and how exact it is.

    The steps are made again by the optimizer of the job, so that `ucp.recover(run, model, optimizer)` in the training
    script recovers. With --dry-run root documents are read, and every byte of the log that a recovery reads; the data
    of checkpoints are not (`ucp validate`). The exit code is 1 where a recovery is refused.
    """
    if not dry_run:
        message = (
            "a recovery needs the model and the optimizer of the job: call ucp.recover(run, model, optimizer) in the "
            "training script, or give --dry-run to see what that would do."
        )
        raise click.UsageError(message)
    with naming(run):
        existing_run(run)
        living = living_replicas(log_url(run))
        plan = plan_recovery(run, allow_loss=allow_loss, keep_residuals=keep_residuals)
    if output == "json":
        faults = [problem.to_json() for problem in plan.faults]
        found = {
            "run": run,
            "replicas": None if living is None else living._asdict(),
            "recovery": recovery_json(plan),
            "faults": faults,
        }
        click.echo(json.dumps(found, indent=2))
        return
    for line in [*_living_lines(living), *_lines(plan)]:
        click.echo(printable(line))


def _living_lines(living: Living | None) -> Iterator[str]:
    """Yield what a recovery takes from memory, ahead of what it takes from the disk where it does not."""
    if living is None:
        return
    ranks = ", ".join(map(str, living.found))
    where = f"rank {ranks} of {living.ranks} here" if living.ranks > 1 else "this machine"
    if living.are_all:
        yield f"the replica of {where} has the state in memory: a recovery takes step {living.step} from it"
        yield "otherwise:"
    else:
        yield f"there are replicas of rank {ranks} of {living.ranks} here; those of other machines are not seen"


def recovery_json(plan: RecoveryPlan) -> dict[str, Any] | None:
    """Return what a recovery does, for programs; None where there is no checkpoint to begin with."""
    if not plan.candidates:
        return None
    first, *others = map(_candidate_json, plan.candidates)
    return {**first, "otherwise": others}


def _candidate_json(one: Candidate) -> dict[str, Any]:
    return {
        "checkpoint": one.path,
        "checkpoint_step": one.step,
        "step": one.stop_step,
        "exactness": one.exactness,
        "residuals_step": one.residuals_step,
        "bytes": {"checkpoint": one.nbytes, "log": one.log_bytes},
        "epochs": [steps._asdict() for steps in one.steps],
    }


def brief_recovery(plan: RecoveryPlan) -> str:
    """Return what a recovery does in one sentence."""
    if not plan.candidates:
        return "there is no checkpoint to begin with: a recovery changes nothing, and gives step 0"
    return f"a recovery {_path_of(plan.candidates[0])}"


def _path_of(one: Candidate) -> str:
    count = one.stop_step - one.step
    again = f"makes {counted(count, 'step')} again, and ends at step {one.stop_step}"
    return f"loads {name_of(one.path)}, {again if count else f'and ends at step {one.stop_step}'}"


def _lines(plan: RecoveryPlan) -> Iterator[str]:
    yield brief_recovery(plan)
    if plan.candidates:
        first, *others = plan.candidates
        for steps in first.steps:
            ranks = counted(steps.ranks, "rank")
            yield (
                f"  epoch {steps.epoch}: steps {steps.first_step} to {steps.stop_step} by {steps.optimizer}, "
                f"{human_bytes(steps.nbytes)} in {steps.batches} batches of {ranks}; {steps.exactness}"
            )
            if steps.exactness == "bitwise" and steps.profile:
                told = ", ".join(f"{name} {value}" for name, value in sorted(steps.profile.items()))
                yield f"    where the profile is the same, else tolerance: {told}"
        yield f"it is {first.exactness} at best, and reads {human_bytes(first.nbytes)} of the checkpoint" + (
            f", {human_bytes(first.log_bytes)} of the log" if first.steps else ""
        )
        if first.residuals_step is not None:
            yield _residuals_of(first.residuals_step, first.stop_step)
        for other in others:
            yield f"if that is damaged: {_path_of(other)}"
    for fault in plan.faults:
        yield f"{fault.code} at {fault.at}: {fault.message}"


def _residuals_of(stored: int, stop: int) -> str:
    if stored == stop:
        return f"the residuals of error feedback are stored of step {stop}"
    return (
        f"residuals of error feedback are stored up to step {stored}: training that goes on from step {stop} is lossy; "
        f"with --keep-residuals the recovery ends at step {stored}"
    )
