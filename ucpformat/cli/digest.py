"""``ucp digest``."""

from __future__ import annotations

import json

import click

from ucpformat.cli.report import format_option, progress_bar
from ucpformat.errors import error, naming
from ucpformat.reader import open_checkpoint
from ucpformat.text import printable
from ucpformat.validation import validate_store

__all__ = ["digest"]


@click.command()
@click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...")
@click.option("--check", "expected", metavar="DIGEST", help="Exit code 1 unless the checkpoint has this one.")
@click.option("--verify", is_flag=True, help="Check every byte as well, as `ucp validate` does.")
@format_option
def digest(checkpoints: tuple[str, ...], expected: str | None, verify: bool, output: str) -> None:
    """Print the root digest of each CHECKPOINT, which names all of its bytes, and its path: a line for each.

    The root document alone is read, and checked against the digest. So this takes no time, and does not see damage of
    what the root document refers to: --verify does.
    """
    if expected is not None and len(checkpoints) > 1:
        raise click.UsageError("--check takes one checkpoint; name it alone.")
    digests = {checkpoint: _digest(checkpoint, verify=verify) for checkpoint in checkpoints}
    if output == "json":
        listed = [{"checkpoint": checkpoint, "digest": value} for checkpoint, value in digests.items()]
        click.echo(json.dumps({"digests": listed, "verified": verify}, indent=2))
    else:
        for checkpoint, value in digests.items():
            click.echo(printable(f"{value}  {checkpoint}"))
    for checkpoint, value in digests.items():
        if expected is not None and expected.strip() not in (value, value.partition(":")[2]):
            message = f"the checkpoint has the root digest {value}, not {expected}: it is another one"
            raise error("UCP-E-DIGEST", message, at=checkpoint)


def _digest(checkpoint: str, *, verify: bool) -> str:
    with open_checkpoint(checkpoint) as opened:
        if verify:
            with naming(checkpoint), progress_bar("verifying") as progress:
                for problem in validate_store(opened.store, progress=progress):
                    if problem.severity == "error":
                        message = f"{problem.message}; `ucp validate` says what is lost by it"
                        raise error(problem.code, message, at=problem.at)
        return opened.digest
