"""``ucp convert``."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from ucpformat.cli.report import human_bytes, progress_bar
from ucpformat.frameworks.kinds import KINDS, convert_checkpoint, detect_kind
from ucpformat.model.compressor import Compressor

if TYPE_CHECKING:
    from ucpformat.frameworks.torch_dcp.importer import ForeignObjects
    from ucpformat.model.root import Storage

__all__ = ["convert"]

_COMPRESSORS = {
    "gzip": Compressor("gzip", {"level": 5}),
    "zstd": Compressor("zstd", {"level": 1, "checksum": False}),
}


@click.command()
@click.argument("source")
@click.argument("destination")
@click.option("--from", "source_kind", type=click.Choice(KINDS), help="Kind of SOURCE. [default: detected]")
@click.option(
    "--to", "destination_kind", type=click.Choice(KINDS), help="Kind to write. [default: the other one]"
)
@click.option(
    "--storage",
    type=click.Choice(["plain", "packed"]),
    default="packed",
    show_default=True,
    help="How a universal checkpoint keeps its chunks: Zarr objects, or few large packs.",
)
@click.option(
    "--compressor",
    type=click.Choice(sorted(_COMPRESSORS)),
    help="Compress all chunks. [default: as a universal SOURCE does, else no]",
)
@click.option(
    "--foreign-objects",
    type=click.Choice(["refuse", "opaque"]),
    default="refuse",
    show_default=True,
    help="Python objects that are not plain data: refuse by name, or carry as bytes that nobody executes.",
)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting of the kind to write, such as world_size=4; repeatable.",
)
@click.option(
    "--shards",
    type=click.IntRange(1),
    help="How many ranks saved a Hugging Face directory of DCP shards, which does not record it.",
)
def convert(
    source: str,
    destination: str,
    source_kind: str | None,
    destination_kind: str | None,
    storage: str,
    compressor: str | None,
    foreign_objects: str,
    shards: int | None,
    settings: tuple[str, ...],
) -> None:
    """Convert the checkpoint SOURCE into DESTINATION, which must not exist. Nothing in SOURCE is executed."""
    pairs = [setting.partition("=") for setting in settings]
    if bad := [name for name, equals, _ in pairs if not equals]:
        raise click.UsageError(f"--set takes NAME=VALUE, not {bad[0]!r}")
    kind = source_kind or detect_kind(source)
    target = destination_kind or ("ucp" if kind != "ucp" else "dcp")
    with progress_bar("converting") as progress:
        report = convert_checkpoint(
            source,
            destination,
            source_kind=kind,
            destination_kind=target,
            storage=cast("Storage", storage),
            compressor=None if compressor is None else _COMPRESSORS[compressor],
            foreign_objects=cast("ForeignObjects", foreign_objects),
            shard_count=shards,
            settings={name: value for name, _, value in pairs},
            progress=progress,
            expect=progress.expect,
        )
    click.echo(
        f"{source} ({kind}) -> {destination} ({target}): {report.tensors} tensors, "
        f"{human_bytes(report.nbytes)}, {report.objects} values"
    )
    if report.digest:
        click.echo(f"digest {report.digest}")
