"""The formats that come with ucpformat; pyproject.toml declares them as any plug-in declares its own.

Modules are imported when a function is called: torch, or what a format needs, is not loaded for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ucpformat.conversion.contract.foreign import (
    ExportOptions,
    ExportPlan,
    ForeignFormat,
    ImportOptions,
    Path,
    Setting,
)
from ucpformat.conversion.formats.file_formats import MAPS, MASTER_COPIES

if TYPE_CHECKING:
    from ucpformat.conversion.contract.content import Content
    from ucpformat.conversion.contract.job import Job

__all__ = ["DCP", "DEEPSPEED", "DEEPSPEED_UNIVERSAL", "MEGATRON", "MEGATRON_CLASSIC"]


def _detect_dcp(path: Path) -> bool:
    from ucpformat.conversion.dcp_files.directory import detect

    return detect(path)


def _plan_dcp(path: Path, options: ImportOptions) -> Job:
    from ucpformat.conversion.formats.dcp.importer import import_dcp

    return import_dcp(path, foreign_objects=options.foreign_objects, shard_count=options.shard_count)


def _export_dcp(content: Content, path: Path, options: ExportOptions) -> ExportPlan:
    from ucpformat.conversion.formats.dcp.exporter import export_dcp

    return export_dcp(content, path, settings=options.settings)


DCP: Final = ForeignFormat(
    "dcp",
    _detect_dcp,
    _plan_dcp,
    _export_dcp,
    export_settings=(MASTER_COPIES,),
    title="torch.distributed.checkpoint, in all its directory formats; written as files of up to 1 GiB",
    suffixes=(".dcp",),
)


def _detect_deepspeed(path: Path) -> bool:
    from ucpformat.conversion.formats.deepspeed.files.directory import detect

    return detect(path)


def _plan_deepspeed(path: Path, options: ImportOptions) -> Job:
    from ucpformat.conversion.formats.deepspeed.importer import import_deepspeed

    return import_deepspeed(path, options.settings)


def _export_deepspeed(content: Content, path: Path, options: ExportOptions) -> ExportPlan:
    from ucpformat.conversion.formats.deepspeed.exporter import export_deepspeed

    return export_deepspeed(content, path, settings=options.settings)


_PATTERNS: Final = (
    Setting(
        "patterns", "how tensor-parallel ranks split tensors: a ready-made pattern document, or a file *.json"
    ),
    Setting("pattern_parameters", "its parameters beside tp, NAME=INTEGER,NAME=INTEGER"),
)
_TAG: Final = Setting("tag", "name of the directory of the save, such as global_step100")

_EP_SIZE: Final = Setting(
    "ep_size", "expert-parallel ranks that share a mixture of experts; left out, those of the source"
)

DEEPSPEED: Final = ForeignFormat(
    "deepspeed",
    _detect_deepspeed,
    _plan_deepspeed,
    _export_deepspeed,
    import_settings=(
        *_PATTERNS,
        Setting(
            "pipeline",
            "first layer of each stage, 0,4, where a pipeline without ZeRO can be divided in several ways",
        ),
        Setting("tied_layers", "layers of each tie, NAME:0,7;NAME:1,6, of a pipeline without ZeRO"),
        Setting("frozen", "GLOB,GLOB, parameters that are not trained, where without ZeRO nothing says so"),
    ),
    title="DeepSpeed's own files: ZeRO-0 to 3 in, ZeRO-0 to 3 for a chosen number of ranks out",
    export_settings=(
        Setting("stage", "ZeRO stage, 0 to 3; left out, that of the source"),
        Setting("world_size", "data-parallel ranks to write for; left out, those of the source"),
        _TAG,
        Setting("sub_group_size", "elements per rank in a sub-group of ZeRO-3"),
        Setting("round_robin", "true for the order of round_robin_gradients"),
        Setting(
            "buffers", "names of the buffers, NAME,NAME, where the source does not tell them from parameters"
        ),
        Setting(
            "pipeline",
            "first layer of each stage, 0,4; left out, those of the source; empty for a plain module",
        ),
        Setting("ties", "stages that hold tied weights, NAME:0,3;NAME:0,3, where they are not known"),
        _EP_SIZE,
        Setting(
            "data_before_experts",
            "true where the job sets use_data_before_expert_parallelism; left out, as the source",
        ),
        Setting("tp_degree", "tensor-parallel ranks to write for; left out, whole tensors for one"),
        *_PATTERNS,
    ),
    before=("accelerate",),
)


def _detect_universal(path: Path) -> bool:
    from ucpformat.conversion.formats.deepspeed.universal.exporter import detect_universal

    return detect_universal(path)


def _plan_universal(path: Path, options: ImportOptions) -> Job:
    from ucpformat.conversion.formats.deepspeed.universal.importer import import_universal

    return import_universal(path, options.settings)


def _export_universal(content: Content, path: Path, options: ExportOptions) -> ExportPlan:
    from ucpformat.conversion.formats.deepspeed.universal.exporter import export_universal

    return export_universal(content, path, settings=options.settings)


DEEPSPEED_UNIVERSAL: Final = ForeignFormat(
    "ds-universal",
    _detect_universal,
    _plan_universal,
    _export_universal,
    import_settings=(Setting("tied_layers", "layers of each tie, NAME:0,7, of what was a pipeline"),),
    title="DeepSpeed's universal checkpoints, for load_universal of either dialect",
    export_settings=(_TAG, _EP_SIZE),
    before=("deepspeed",),
)


def _detect_megatron(path: Path) -> bool:
    from ucpformat.conversion.formats.megatron.torch_dist import detect

    return detect(path)


def _plan_megatron(path: Path, options: ImportOptions) -> Job:
    from ucpformat.conversion.formats.megatron.importer import import_torch_dist

    return import_torch_dist(path, foreign_objects=options.foreign_objects, settings=options.settings)


def _export_megatron(content: Content, path: Path, options: ExportOptions) -> ExportPlan:
    from ucpformat.conversion.formats.megatron.exporter import export_torch_dist

    return export_torch_dist(content, path, settings=options.settings)


def _detect_classic(path: Path) -> bool:
    from ucpformat.conversion.formats.megatron.classic_directory import detect

    return detect(path)


def _plan_classic(path: Path, options: ImportOptions) -> Job:
    from ucpformat.conversion.formats.megatron.classic_importer import import_classic

    return import_classic(path, options.settings)


MEGATRON_CLASSIC: Final = ForeignFormat(
    "megatron-classic",
    _detect_classic,
    _plan_classic,
    title="Megatron-LM's mp_rank_* directories",
    import_settings=_PATTERNS,
)


_EXPERTS: Final = Setting(
    "experts", "apart (with expert parallelism, as is usual) or together: the optimizers that the job has"
)
_BUCKETS: Final = Setting(
    "buckets", "resolved (left out) gives states in flat buffers to their parameters, kept leaves them there"
)
MEGATRON: Final = ForeignFormat(
    "megatron",
    _detect_megatron,
    _plan_megatron,
    _export_megatron,
    title="Megatron-core's torch_dist",
    import_settings=(*MAPS, _BUCKETS),
    export_settings=(*MAPS, _EXPERTS),
    before=("dcp",),
)
