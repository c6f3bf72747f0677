"""Telling checkpoint formats apart, and conversion between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ucpformat.conversion.contract.content import Content
from ucpformat.conversion.contract.foreign import ExportOptions, ImportOptions, Lost
from ucpformat.conversion.contract.registry import UCP, check_settings, registry
from ucpformat.conversion.contract.weights import beside_weights
from ucpformat.conversion.direction import require_local
from ucpformat.conversion.engine.dropped_items import parts_of, remedy, told
from ucpformat.conversion.engine.exporting import Export
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.conversion.engine.out_directory import refuse_unfinished, storing
from ucpformat.conversion.engine.ranks import RankExecutor, together
from ucpformat.conversion.engine.work_order import Recipe, url_of
from ucpformat.conversion.engine.writing import Engine
from ucpformat.errors import error, naming
from ucpformat.model.root import ROOT_KEY
from ucpformat.state_dict.torch_group import group_of
from ucpformat.storage.stores.not_a_checkpoint import another_place
from ucpformat.storage.stores.store import open_store
from ucpformat.storage.stores.urls import local_path, refuse_target

if TYPE_CHECKING:
    from ucpformat.conversion.contract.foreign import ForeignObjects
    from ucpformat.conversion.contract.job import Job
    from ucpformat.model.compression_rule import Compression
    from ucpformat.model.root import Storage

__all__ = ["ConversionReport", "convert_checkpoint", "convert_together", "detect_format"]


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion carried, or would: tensors, their logical bytes, other values; the root digest of a ucp result.

    ``renamed``, ``dropped`` and ``cast`` are as `ExportPlan` has them; what is dropped was
    allowed to be, or does not matter (`Lost`). ``warnings`` as well.
    """

    tensors: int
    nbytes: int
    objects: int
    digest: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Sequence[Lost] = ()
    cast: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def detect_format(path: str | os.PathLike[str]) -> str:
    """The format of the checkpoint at ``path``.

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
    ``drop`` are globs over ``atom/slot``, ``values/NAME``, ``optimizers/NAME``, ``blobs/NAME`` and ``files/NAME``: what
    they match is left out. With ``weights_only`` states of optimizers and values stay behind, and whatever else the
    destination has no place for, weights excepted. ``expand`` is how many bytes the source's tensors may have together
    (`ImportOptions`). A ``dry_run`` plans everything and writes nothing. ``engine`` says how a universal checkpoint is
    written (its storage is ``storage``).
    ``expect`` is told how many logical bytes there are, then ``progress`` of every so many that are done.

    Raises:
        UcpError: ``UCP-E-MISMATCH`` where the destination cannot hold what ``drop`` does not match, and for settings;
            what the importer, the reader, the exporter and the writer raise.
    """
    source = url_of(source)
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
            objects = len(job.state.values) + len(job.state.optimizers) + len(job.blobs)
            digest = None
            if not dry_run:
                digest = Engine(job, destination, options, recipe, progress).run()
            return ConversionReport(len(job.sources), job.nbytes, objects, digest, {}, opened.dropped)
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
            len(job.sources),
            job.nbytes,
            plan.objects,
            None,
            plan.renamed,
            (*opened.dropped, *plan.dropped),
            plan.cast,
            tuple(plan.warnings),
        )


def convert_together(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    group: object = None,
    engine: EngineOptions | None = None,
    **options: Any,
) -> ConversionReport:
    """Convert with all ranks of a torch.distributed job, or of ``group``; every rank calls this and gets the report.

    Everything else is as for `convert_checkpoint`; what is told of progress, the first rank is told. Source and
    destination lie where all ranks see them. ``engine.memory`` is that of all ranks together.

    Raises:
        UcpError: on all ranks, what `convert_checkpoint` raises, or a rank as it does its part;
            ``UCP-E-RANK`` where one is gone. Nothing is visible then.
    """

    def convert(executor: RankExecutor | None) -> ConversionReport:
        chosen = engine or EngineOptions()
        if executor is not None:
            chosen = replace(chosen, executor=executor, workers=executor.workers)
        return convert_checkpoint(source, destination, engine=chosen, **options)

    return together(group_of(group), convert)


def _refuse_losses(job: Job, lost: Sequence[Lost], destination_format: str) -> None:
    refused = [one for one in lost if one.matters]
    if refused:
        names = list(parts_of(job))
        ways = remedy(refused, names)
        if len(beside_weights(refused, job)) == len(refused):
            ways = f"carry the weights alone with --weights-only, or {ways}"
        raise error("UCP-E-MISMATCH", f"{destination_format} cannot hold {told(refused, names)}; {ways}")
