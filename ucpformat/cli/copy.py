"""``ucp cp``."""

from __future__ import annotations

import json

import click

from ucpformat.cli.report import format_option, progress_bar
from ucpformat.copying import copy_checkpoint
from ucpformat.storage.stores.urls import refuse_swapped
from ucpformat.text import human_bytes

__all__ = ["cp"]


@click.command()
@click.argument("source")
@click.argument("target")
@format_option
def cp(source: str, target: str, output: str) -> None:
    """Copy the checkpoint SOURCE to TARGET, which must not exist; each is a path or an fsspec URL.

    The copy is read back and verified before it is committed, and has the same digest; where anything is wrong, nothing
    is visible at TARGET. `ucp convert` makes a checkpoint with another storage, or of another format.
    """
    refuse_swapped(source, target)
    with progress_bar("copying and verifying") as progress:
        copied = copy_checkpoint(source, target, progress=progress, expect=progress.expect)
    if output == "json":
        report = {"objects": copied.objects, "bytes": copied.nbytes, "digest": copied.digest}
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo(
            f"{source} -> {target}: {copied.objects} objects, {human_bytes(copied.nbytes)}, copied and verified"
        )
        click.echo(f"digest {copied.digest}")
