"""``ucp convert``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, cast

import click

from ucpformat.cli.report import SIZE, format_option, progress_bar
from ucpformat.conversion.contract.registry import registry
from ucpformat.conversion.convert import convert as run
from ucpformat.conversion.engine.dropped_items import grouped
from ucpformat.model.compressor import AUTO, Compression, Compressor
from ucpformat.state_dict.torch_group import job_group, started_by_torchrun
from ucpformat.text import human_bytes, printable

if TYPE_CHECKING:
    from ucpformat.conversion.contract.foreign import ForeignObjects
    from ucpformat.conversion.convert import ConversionReport
    from ucpformat.conversion.engine.pool import PoolKind
    from ucpformat.model.root import Storage

__all__ = ["convert"]

_TORCHRUN = "torchrun"
_COMPRESSORS: Mapping[str, Compression] = {
    AUTO: AUTO,
    "gzip": Compressor("gzip", {"level": 5}),
    "zstd": Compressor("zstd", {"level": 1, "checksum": False}),
}


class _FormatName(click.ParamType):  # type: ignore[type-arg] # click before 8.2 has no arguments
    """The name of a format; plug-ins are looked for when one is given, and not before."""

    name = "format"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in registry().names:
            self.fail(f"{value!r} is none of {', '.join(registry().names)}.", param, ctx)
        return value


def _settings(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if bad := [name for name, equals, _ in pairs if not equals]:
        raise click.BadParameter(f"takes NAME=VALUE, not {bad[0]!r}")
    return {name: value for name, _, value in pairs}


@click.command()
@click.argument("source")
@click.argument("destination")
@click.option(
    "--from",
    "source_format",
    type=_FormatName(),
    help="Format of SOURCE (`ucp formats`). [default: detected]",
)
@click.option(
    "--to",
    "destination_format",
    type=_FormatName(),
    help="Format to write. [default: as DESTINATION's suffix says, or ucp]",
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
    help="Compress all chunks, or with `auto` those of large floats, each as pays best. "
    "[default: as a universal SOURCE does, else no]",
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
    callback=_settings,
    help="A setting of the format that is not ucp, such as world_size=4; repeatable. `ucp formats` lists them.",
)
@click.option(
    "--from-set",
    "source_settings",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_settings,
    help="A setting of the format of SOURCE, where neither format is ucp.",
)
@click.option(
    "--to-set",
    "destination_settings",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_settings,
    help="A setting of the format to write, where neither format is ucp.",
)
@click.option(
    "--drop",
    metavar="GLOB",
    multiple=True,
    help="Leave out what is called so: ATOM/SLOT, values/NAME, optimizers/NAME, blobs/NAME, images/NAME, files/NAME; "
    "repeatable.",
)
@click.option(
    "--expand",
    type=SIZE,
    help="Bytes that the tensors of SOURCE may have together: 64G. Views that repeat elements, and compressed chunks, "
    "can have far more than the files. [default: 64 times the files, at least 256M]",
)
@click.option(
    "--weights-only",
    is_flag=True,
    help="Leave out states of optimizers, values, and whatever else DESTINATION cannot hold; never a weight.",
)
@click.option(
    "--memory",
    type=SIZE,
    default="1G",
    show_default=True,
    help="Bytes of buffers over all workers: 512M, 2G.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="How many. [default: one per core, at most 8, and a thread that waits for the disk]",
)
@click.option(
    "--pool",
    type=click.Choice(["threads", "processes", "mpi", _TORCHRUN]),
    help="Where the work is done. [default: threads, or processes where there are very many small tensors; "
    "under torchrun, its ranks]",
)
@click.option("--dask", metavar="ADDRESS", help="Work on a dask cluster, by the address of its scheduler.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with what an interrupted conversion to DESTINATION has finished, and keep what this one finishes.",
)
@click.option("--dry-run", is_flag=True, help="Plan everything, report it, and write nothing.")
@format_option
@click.option(
    "--shards",
    type=click.IntRange(1),
    help="How many ranks saved a Hugging Face directory of DCP shards, which does not record it.",
)
def convert(
    source: str,
    destination: str,
    source_format: str | None,
    destination_format: str | None,
    storage: str,
    compressor: str | None,
    foreign_objects: str,
    shards: int | None,
    settings: dict[str, str],
    source_settings: dict[str, str],
    destination_settings: dict[str, str],
    drop: tuple[str, ...],
    expand: int | None,
    weights_only: bool,
    memory: int,
    workers: int | None,
    pool: str | None,
    dask: str | None,
    resume: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Convert the checkpoint SOURCE into DESTINATION, which must not exist. Nothing in SOURCE is executed.

    The suffix of DESTINATION says what is written: .ucp, .dcp, .safetensors, .pt; other formats need --to. To copy a
    universal checkpoint as it is, use `ucp cp`.
    """
    is_job = pool == _TORCHRUN or (pool is None and dask is None and started_by_torchrun())
    with job_group() if is_job else nullcontext() as group:
        is_first = group is None or group.rank == group.ranks[0]
        with progress_bar("converting", silent=not is_first) as progress, _saying_what_is_left(destination):
            report = run(
                source,
                destination,
                source_format=source_format,
                destination_format=destination_format,
                settings=settings,
                source_settings=source_settings,
                destination_settings=destination_settings,
                group=group,
                storage=cast("Storage", storage),
                compressor=None if compressor is None else _COMPRESSORS[compressor],
                foreign_objects=cast("ForeignObjects", foreign_objects),
                shard_count=shards,
                drop=drop,
                expand=expand,
                weights_only=weights_only,
                memory=memory,
                workers=workers,
                pool=None if pool == _TORCHRUN else cast("PoolKind | None", pool),
                dask=dask,
                resume=resume,
                dry_run=dry_run,
                progress=progress,
                expect=progress.expect,
            )
    if not is_first:
        return  # one of them says it
    if output == "json":
        click.echo(json.dumps(_as_json(report, dry_run), indent=2))
        return
    click.echo(
        f"{source} ({report.source_format}) -> {destination} ({report.destination_format}): {report.tensors} tensors, "
        f"{human_bytes(report.nbytes)}, {report.objects} values" + (", nothing written" if dry_run else "")
    )
    for losses in grouped(report.dropped):
        click.echo(printable(f"dropped {losses}"))
    for warning in report.warnings:
        click.echo(printable(f"warning {warning}"))
    for data_type, count in Counter(report.cast.values()).items():
        click.echo(f"cast {count} tensors to {data_type}")
    if dry_run:  # afterwards the destination shows its names itself, and --format json has them
        for what, name in report.renamed.items():
            click.echo(printable(f"renamed {what}: {name}"))
    if report.digest:
        click.echo(f"digest {report.digest}")


@contextmanager
def _saying_what_is_left(destination: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as interrupted:
        interrupted.add_note(
            f"nothing is visible at {destination}; run it again to begin anew, or with --resume to go on with what is "
            "finished"
        )
        raise


def _as_json(report: ConversionReport, dry_run: bool) -> dict[str, object]:
    return {
        "from": report.source_format,
        "to": report.destination_format,
        "written": not dry_run,
        "tensors": report.tensors,
        "bytes": report.nbytes,
        "values": report.objects,
        "digest": report.digest,
        "renamed": dict(report.renamed),
        "cast": dict(report.cast),
        "dropped": [{"what": loss.what, "why": loss.why} for loss in report.dropped],
        "warnings": list(report.warnings),
    }
