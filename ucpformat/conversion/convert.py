"""Detect the format of a checkpoint, and convert checkpoints between formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ucpformat.conversion.contract.content import Content
from ucpformat.conversion.contract.foreign import ExportOptions, ImportOptions, Lost
from ucpformat.conversion.contract.job import refuse_unfinished
from ucpformat.conversion.contract.registry import (
    UCP,
    check_settings,
    format_to_write,
    registry,
    require_local,
)
from ucpformat.conversion.contract.weights import beside_weights
from ucpformat.conversion.engine.dropped_items import parts_of, remedy, told
from ucpformat.conversion.engine.exporting import Export
from ucpformat.conversion.engine.options import DEFAULT_MEMORY, EngineOptions
from ucpformat.conversion.engine.out_directory import storing
from ucpformat.conversion.engine.ranks import RankExecutor, together
from ucpformat.conversion.engine.work_order import Recipe, url_of
from ucpformat.conversion.engine.writing import Engine
from ucpformat.errors import error, naming
from ucpformat.model.root import ROOT_KEY
from ucpformat.state_dict.torch_group import group_of
from ucpformat.storage.stores.not_a_checkpoint import another_place
from ucpformat.storage.stores.urls import local_path, open_store, refuse_swapped, refuse_target

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ucpformat.conversion.contract.foreign import ForeignObjects
    from ucpformat.conversion.contract.job import Job
    from ucpformat.conversion.engine.pool import PoolKind
    from ucpformat.model.compressor import Compression
    from ucpformat.model.root import Storage

__all__ = ["ConversionReport", "convert", "convert_checkpoint", "detect_format"]


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion carried, or would carry.

    Attributes:
        source_format: the format that was read.
        destination_format: the format that was written.
        tensors: how many.
        nbytes: their logical bytes.
        objects: how many values, optimizers and blobs, or what the destination has of them.
        digest: the root digest of a universal checkpoint that was written.
        renamed: by ``ATOM/SLOT``, the name at the destination where that is another one.
        dropped: what was left out, and why: it was allowed to be, or does not matter.
        cast: by ``ATOM/SLOT``, the data type that elements were rounded to, as a setting asks.
        warnings: what the destination's own software will not take up.

    >>> report = ucp.save("run.ucp", {"model": {"w": np.ones((2, 3), np.float32)}, "epoch": 3})
    >>> report = ucp.convert("run.ucp", "w.safetensors", weights_only=True, dry_run=True)
    >>> [loss.what for loss in report.dropped]
    ['values/epoch']
    """

    source_format: str
    destination_format: str
    tensors: int
    nbytes: int
    objects: int
    digest: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Sequence[Lost] = ()
    cast: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def detect_format(path: str | os.PathLike[str]) -> str:
    """Detect the format of the checkpoint at ``path``.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` if it is none that is known, with what lies there instead.
    """
    with naming(path):
        store = open_store(path)
        try:
            if store.size(ROOT_KEY) is not None:
                return UCP
        finally:
            store.close()
    local = local_path(path)
    if local is not None:
        refuse_unfinished(local)
        for foreign in registry().in_order():
            if foreign.detect(local):
                return foreign.name
    broken = "".join(
        f"; the format {entry.name!r} of {entry.distribution!r} cannot be used: {entry.broken}"
        for entry in registry().broken()
    )
    unknown = f"no checkpoint of a known format ({', '.join(registry().names)}) lies here; check the path or say --from"
    raise error("UCP-E-SOURCE", f"{another_place(str(path)) or unknown}{broken}", at=str(path))


def convert_checkpoint(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    source_format: str,
    destination_format: str,
    storage: Storage = "packed",
    compressor: Compression | None = None,
    foreign_objects: ForeignObjects = "refuse",
    shard_count: int | None = None,
    expand: int | None = None,
    settings: Mapping[str, str] | None = None,
    source_settings: Mapping[str, str] | None = None,
    drop: Sequence[str] = (),
    weights_only: bool = False,
    dry_run: bool = False,
    engine: EngineOptions | None = None,
    progress: Callable[[int], None] = lambda _: None,
    expect: Callable[[int], None] = lambda _: None,
) -> ConversionReport:
    """Convert a checkpoint; the destination must not exist.

    ``settings`` are those of the destination's format, ``source_settings`` those of the source's (`Setting`).
    ``drop`` are globs over ``atom/slot``, ``values/NAME``, ``optimizers/NAME``, ``blobs/NAME``, ``images/NAME`` and
    ``files/NAME``: what they match is left out. With ``weights_only`` states of optimizers and values stay behind, and
    whatever else the destination cannot hold, weights excepted. ``expand`` is how many bytes the source's tensors may
    have together (`ImportOptions`). A ``dry_run`` plans everything and writes nothing. ``engine`` says how a universal
    checkpoint is written (its storage is ``storage``).
    ``expect`` is told how many logical bytes there are, then ``progress`` of every so many that are done.

    Raises:
        UcpError: ``UCP-E-MISMATCH`` where the destination cannot hold what ``drop`` does not match, and for settings;
            what the importer, the reader, the exporter and the writer raise.
    """
    source = url_of(source)
    if shard_count is not None and source_format != "dcp":
        message = f"--shards (shard_count=) would be without effect: {source_format} is read, and not dcp"
        raise error("UCP-E-MISMATCH", message)
    if source_format != UCP:
        source = require_local(source, source_format, is_source=True)
    if destination_format != UCP:
        destination = require_local(destination, destination_format, is_source=False)
    else:
        refuse_target(destination)
    recipe = Recipe(
        source,
        source_format,
        ImportOptions(foreign_objects, shard_count, expand, dict(source_settings or {})),
        tuple(drop),
        compressor,
        is_rewritten=destination_format == UCP,
        weights=("master" if (settings or {}).get("slot") == "master" else "value") if weights_only else None,
    )
    with recipe.open() as opened, naming(destination):
        job = opened.job
        options = replace(engine or EngineOptions(), storage=storage)
        if destination_format == UCP:
            expect(job.nbytes)
            check_settings(UCP, (), settings or {}, "written")
            objects = len(job.state.values) + len(job.state.optimizers) + len(job.blobs) + len(job.images)
            digest = None
            if not dry_run:
                digest = Engine(job, destination, options, recipe, progress).run()
            return ConversionReport(
                source_format, UCP, len(job.sources), job.nbytes, objects, digest, {}, opened.dropped
            )
        _refuse_without_effect(
            destination_format, storage=storage != "packed", compressor=compressor is not None
        )
        foreign = registry().format(destination_format)
        if foreign.export is None:
            raise error("UCP-E-SOURCE", f"{destination_format} is read and not written")
        check_settings(foreign.name, tuple(foreign.export_settings), settings or {}, "written")
        plan = foreign.export(Content(job), destination, ExportOptions(progress, dict(settings or {})))
        unmissed = [] if recipe.weights is None else beside_weights(plan.dropped, job, recipe.weights)
        _refuse_losses(job, [one for one in plan.dropped if one not in unmissed], foreign.name)
        if plan.files is None and options.resume:
            raise error(
                "UCP-E-MISMATCH",
                f"{foreign.name} is no set of files, and cannot be resumed: remove what lies at the destination, and "
                "leave --resume out",
            )
        expect(job.nbytes if plan.files is None else plan.files.nbytes)
        if dry_run:
            pass
        elif plan.write is not None:
            with storing(destination):
                plan.write()
        elif plan.files is not None:
            Export(
                plan.files,
                destination,
                options,
                job=job,
                recipe=recipe,
                destination_format=foreign.name,
                settings=settings,
                progress=progress,
            ).run()
        return ConversionReport(
            source_format,
            destination_format,
            len(job.sources),
            job.nbytes,
            plan.objects,
            None,
            plan.renamed,
            (*opened.dropped, *plan.dropped),
            plan.cast,
            tuple(plan.warnings),
        )


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    source_format: str | None = None,
    destination_format: str | None = None,
    settings: Mapping[str, str] | None = None,
    source_settings: Mapping[str, str] | None = None,
    destination_settings: Mapping[str, str] | None = None,
    group: object = None,
    storage: Storage = "packed",
    compressor: Compression | None = None,
    foreign_objects: ForeignObjects = "refuse",
    shard_count: int | None = None,
    drop: Sequence[str] = (),
    expand: int | None = None,
    weights_only: bool = False,
    memory: int = DEFAULT_MEMORY,
    workers: int | None = None,
    pool: PoolKind | None = None,
    dask: str | None = None,
    executor: Executor | None = None,
    resume: bool = False,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda _: None,
    expect: Callable[[int], None] = lambda _: None,
) -> ConversionReport:
    """Convert a checkpoint of any format that is known into another one, as ``ucp convert`` does.

    In a torch.distributed job every rank calls this, takes part in the work and gets the report; source and
    destination lie where all ranks see them. With ``pool``, ``dask`` or ``executor`` this process hands out the work
    alone.

    Args:
        source: what is read, a local path, or the URL of a universal checkpoint; nothing in it is executed.
        destination: what is written, which must not exist.
        source_format: the format of the source, one of ``ucp formats``; found out where it is not given.
        destination_format: the format to write; where it is not given, what the destination's suffix says (``.ucp``,
            ``.dcp``, ``.safetensors``, ``.pt``), or a universal checkpoint.
        settings: settings of the format that is not ``ucp``, by name.
        source_settings: settings of the source's format, where neither is ``ucp``.
        destination_settings: settings of the destination's format, where neither is ``ucp``.
        group: the ranks that do the work; the default process group where it is not given.
        storage: how a universal checkpoint keeps its chunks, ``"packed"`` or ``"plain"``.
        compressor: how to compress a universal checkpoint; as a universal source does where it is not given.
        foreign_objects: what becomes of Python objects that are not plain data: ``"refuse"`` or ``"opaque"``.
        shard_count: how many ranks saved a Hugging Face directory of DCP shards, which does not record it.
        drop: globs over ``ATOM/SLOT``, ``values/NAME``, ``optimizers/NAME``, ``blobs/NAME``, ``images/NAME`` and
            ``files/NAME`` that say what to leave out.
        expand: bytes that the source's tensors may have together; 64 times its files where it is not given.
        weights_only: leave out whatever the destination cannot hold, weights excepted.
        memory: bytes of buffers over all workers.
        workers: how many; one per core, at most 8, and one that waits for the disk, where it is not given.
        pool: where the work is done: ``"threads"``, ``"processes"`` or ``"mpi"``.
        dask: the address of a dask scheduler.
        executor: anything that runs picklable calls.
        resume: go on with what an interrupted conversion has finished.
        dry_run: plan everything and write nothing.
        progress: is told of bytes that are done; in a job, on the first rank.
        expect: is told first how many bytes there are.

    Raises:
        UcpError: on all ranks the same: ``UCP-E-SOURCE`` for a source of no format that is known, ``UCP-E-MISMATCH``
            where the destination cannot hold what ``drop`` does not match, for settings, and where nothing says what
            to write; what reading and writing raise. Nothing is visible then.

    >>> report = ucp.save("run.ucp", {"model": {"w": np.ones((2, 3), np.float32)}})
    >>> report = ucp.convert("run.ucp", "w.safetensors")
    >>> report.source_format, report.destination_format, report.tensors, report.nbytes
    ('ucp', 'safetensors', 1, 24)
    >>> report = ucp.convert("w.safetensors", "again.ucp")
    """
    is_alone = pool is not None or dask is not None or executor is not None
    if is_alone and group is not None:
        message = "group= has its ranks do the work, which pool=, dask= and executor= do otherwise: give one of them"
        raise error("UCP-E-MISMATCH", message)

    def work(ranks: RankExecutor | None) -> ConversionReport:
        refuse_swapped(source, destination)
        read_as = source_format or detect_format(source)
        written_as = format_to_write(destination, destination_format, read_as)
        if settings and read_as != UCP != written_as:
            message = (
                f"settings may be of {read_as} or of {written_as}: give them as source_settings= or "
                "destination_settings= (--from-set or --to-set)"
            )
            raise error("UCP-E-MISMATCH", message)
        shared = dict(settings or {})
        of_source, of_destination = (shared, {}) if written_as == UCP else ({}, shared)
        return convert_checkpoint(
            source,
            destination,
            source_format=read_as,
            destination_format=written_as,
            storage=storage,
            compressor=compressor,
            foreign_objects=foreign_objects,
            shard_count=shard_count,
            expand=expand,
            settings={**of_destination, **(destination_settings or {})},
            source_settings={**of_source, **(source_settings or {})},
            drop=drop,
            weights_only=weights_only,
            dry_run=dry_run,
            engine=EngineOptions(
                memory=memory,
                workers=workers if ranks is None else ranks.workers,
                pool=pool,
                dask=dask,
                executor=executor if ranks is None else ranks,
                resume=resume,
            ),
            progress=progress,
            expect=expect,
        )

    return work(None) if is_alone else together(group_of(group), work)


def _refuse_without_effect(destination_format: str, **given: bool) -> None:
    """Refuse options that only a universal checkpoint has."""
    if names := [f"{name}=" for name, is_given in given.items() if is_given]:
        message = (
            f"{' and '.join(names)} would be without effect: {destination_format} is written, and not ucp"
        )
        raise error("UCP-E-MISMATCH", message)


def _refuse_losses(job: Job, lost: Sequence[Lost], destination_format: str) -> None:
    refused = [one for one in lost if one.matters]
    if refused:
        names = list(parts_of(job))
        ways = remedy(refused, names)
        if len(beside_weights(refused, job)) == len(refused):
            ways = f"carry the weights alone with --weights-only, or {ways}"
        raise error("UCP-E-MISMATCH", f"{destination_format} cannot hold {told(refused, names)}; {ways}")
