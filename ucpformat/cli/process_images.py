"""``ucp attach`` and ``ucp extract``."""

from __future__ import annotations

import json

import click

from ucpformat.cli.report import format_option, progress_bar
from ucpformat.image_files import image_source
from ucpformat.process_images import attach as attach_images
from ucpformat.process_images import extract as extract_image
from ucpformat.storage.stores.urls import refuse_swapped
from ucpformat.text import human_bytes

__all__ = ["attach", "extract"]


def _pairs(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        name, separator, text = one.partition("=")
        if not separator or not name or name in found:
            raise click.BadParameter(f"{one!r} is no NAME=TEXT, or the second of that name")
        found[name] = text
    return found


@click.command()
@click.argument("checkpoint")
@click.argument("image")
@click.option(
    "-o", "--output", "target", required=True, help="Where the new checkpoint goes; must not exist."
)
@click.option(
    "--name", required=True, help="What to call the image; no other of the checkpoint has that name."
)
@click.option(
    "--producer", nargs=2, required=True, metavar="NAME VERSION", help="The software that wrote the image."
)
@click.option("--media-type", default="application/octet-stream", show_default=True)
@click.option(
    "--host",
    multiple=True,
    metavar="NAME=TEXT",
    callback=_pairs,
    help="What a host must have for the image to be restored there; repeatable. Without it: machine, system and "
    "release of this one.",
)
@click.option("--required", is_flag=True, help="The training state is incomplete without the process.")
@click.option("--rank", type=click.IntRange(0), help="The number of the process in the job.")
@format_option
def attach(
    checkpoint: str,
    image: str,
    target: str,
    name: str,
    producer: tuple[str, str],
    media_type: str,
    host: dict[str, str],
    required: bool,
    rank: int | None,
    output: str,
) -> None:
    """Copy CHECKPOINT, with the process image IMAGE (a file or a directory) added to it.

    On one file system the copy shares the stored tensors with CHECKPOINT by hard links. It is read back and verified
    before it is committed. Images are carried, and never executed.
    """
    refuse_swapped(checkpoint, target)
    source = image_source(
        image, producer=producer, media_type=media_type, host=host or None, is_required=required, rank=rank
    )
    with progress_bar("attaching and verifying") as progress:
        copied = attach_images(checkpoint, target, {name: source}, progress=progress, expect=progress.expect)
    if output == "json":
        click.echo(
            json.dumps({"objects": copied.objects, "bytes": copied.nbytes, "digest": copied.digest}, indent=2)
        )
    else:
        click.echo(f"{checkpoint} -> {target}: with {name}, {len(source.files)} files, verified")
        click.echo(f"digest {copied.digest}")


@click.command()
@click.argument("checkpoint")
@click.argument("name")
@click.option("-o", "--output", "target", required=True, help="The directory to make; must not exist.")
@format_option
def extract(checkpoint: str, name: str, target: str, output: str) -> None:
    """Write the process image NAME of CHECKPOINT into a new directory, for its owner alone to read.

    Every file is verified before the directory appears. Nothing is executed: restore the process with the software that
    wrote the image.
    """
    nbytes = extract_image(checkpoint, name, target)
    if output == "json":
        click.echo(json.dumps({"path": target, "bytes": nbytes}, indent=2))
    else:
        click.echo(f"{name} -> {target}: {human_bytes(nbytes)}, verified; nothing was executed")
