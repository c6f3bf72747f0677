"""The formats that come with ucpformat; pyproject.toml declares them as any plug-in declares its own.

Modules are imported when a function is called: torch, or what a format needs, is not loaded for the others.
"""

from __future__ import annotations

from typing import Final

from ucpformat.conversion.contract.foreign import ForeignFormat, Setting
from ucpformat.conversion.contract.registry import late
from ucpformat.conversion.formats.file_formats import MAPS, MASTER_COPIES

__all__ = ["DCP", "DEEPSPEED", "DEEPSPEED_UNIVERSAL", "MEGATRON", "MEGATRON_CLASSIC"]


DCP: Final = ForeignFormat(
    "dcp",
    late("dcp_files.directory:detect"),
    late("formats.dcp.importer:import_dcp", "foreign_objects", "shard_count"),
    late("formats.dcp.exporter:export_dcp", "settings"),
    export_settings=(MASTER_COPIES,),
    title="torch.distributed.checkpoint, in all its directory formats; written as files of up to 1 GiB",
    suffixes=(".dcp",),
)


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
    late("formats.deepspeed.files.directory:detect"),
    late("formats.deepspeed.importer:import_deepspeed", "settings"),
    late("formats.deepspeed.exporter:export_deepspeed", "settings"),
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


DEEPSPEED_UNIVERSAL: Final = ForeignFormat(
    "ds-universal",
    late("formats.deepspeed.universal.exporter:detect_universal"),
    late("formats.deepspeed.universal.importer:import_universal", "settings"),
    late("formats.deepspeed.universal.exporter:export_universal", "settings"),
    import_settings=(Setting("tied_layers", "layers of each tie, NAME:0,7, of what was a pipeline"),),
    title="DeepSpeed's universal checkpoints, for load_universal of either dialect",
    export_settings=(_TAG, _EP_SIZE),
    before=("deepspeed",),
)


MEGATRON_CLASSIC: Final = ForeignFormat(
    "megatron-classic",
    late("formats.megatron.classic_directory:detect"),
    late("formats.megatron.classic_importer:import_classic", "settings"),
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
    late("formats.megatron.torch_dist:detect"),
    late("formats.megatron.importer:import_torch_dist", "foreign_objects", "settings"),
    late("formats.megatron.exporter:export_torch_dist", "settings"),
    title="Megatron-core's torch_dist",
    import_settings=(*MAPS, _BUCKETS),
    export_settings=(*MAPS, _EXPERTS),
    before=("dcp",),
)
