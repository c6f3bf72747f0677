"""Formats that come with ucpformat and are files of a library rather than saves of a training framework.

Modules are imported when a function is called: torch, or what a format needs, is not loaded for the others.
"""

from __future__ import annotations

from typing import Final

from ucpformat.conversion.contract.foreign import ForeignFormat, Setting
from ucpformat.conversion.contract.registry import late

__all__ = ["ACCELERATE", "MAPS", "MASTER_COPIES", "ORBAX", "SAFETENSORS", "TORCH_RANKS", "TORCH_SAVE"]


MAPS: Final = (
    Setting(
        "map", "atom maps, MAP,MAP: names of ready-made ones or files, each with :left or :right if both fit"
    ),
    Setting("map_parameters", "parameters of the maps, NAME=INTEGER,...; left out, those of config.json"),
)
_WEIGHTS: Final = (
    Setting("slot", "value, or master for the copies of higher precision; left out, value"),
    Setting("dtype", "floating-point type to cast tensors to, such as bfloat16; left out, nothing is cast"),
)

SAFETENSORS: Final = ForeignFormat(
    "safetensors",
    late("formats.safetensors.importer:detect"),
    late("formats.safetensors.importer:import_safetensors", "settings"),
    late("formats.safetensors.exporter:export_safetensors", "settings"),
    title="Hugging Face model directories and single safetensors files: weights, and the files beside them",
    import_settings=(
        Setting("weights", "the file or index to read, where there are several"),
        *MAPS,
    ),
    export_settings=(
        *MAPS,
        *_WEIGHTS,
        Setting("max_shard_size", "bytes of a file, such as 5GB, which it is if left out"),
        Setting(
            "aliases", "copy, to write tied weights under each name, or leave, under one; left out, copy"
        ),
    ),
    suffixes=(".safetensors",),
)


MASTER_COPIES: Final = Setting(
    "slot",
    "master, to write the optimizer's copies of higher precision as the weights, or value, for the module's, with the "
    "copies as states of the optimizer; left out, master for what DeepSpeed or Megatron saved, else value",
)

_ORDER: Final = Setting(
    "order",
    "module, where optimizers that number parameters list them in the order of the model's state dict",
)


TORCH_SAVE: Final = ForeignFormat(
    "torch-save",
    late("formats.torch_save.importer:detect"),
    late("formats.torch_save.importer:import_torch_save", "order"),
    late("formats.torch_save.exporter:export_torch_save", "settings"),
    title="files of torch.save: state dicts, training states, Lightning's .ckpt",
    import_settings=(_ORDER,),
    export_settings=(
        Setting("numbered", "true, to number the parameters of optimizers as torch's own do"),
        MASTER_COPIES,
    ),
    suffixes=(".pt", ".pth", ".ckpt", ".bin"),
)


TORCH_RANKS: Final = ForeignFormat(
    "torch-ranks",
    late("formats.torch_save.rank_files:detect"),
    late("formats.torch_save.rank_files:import_rank_files", "order", "replicas"),
    title="directories of torch.save's files, one of each rank, with FSDP1's sharded state dicts",
    import_settings=(
        _ORDER,
        Setting(
            "replicas",
            "equal or first: whether whole tensors of a model have to be equal on all ranks; left out, equal",
        ),
    ),
)


ACCELERATE: Final = ForeignFormat(
    "accelerate",
    late("formats.torch_save.directories:detect"),
    late("formats.torch_save.directories:import_directory", "foreign_objects", "order"),
    title="directories of Accelerate's save_state, and of Lightning's FSDP strategy",
    import_settings=(_ORDER,),
    before=("safetensors", "dcp"),
)


ORBAX: Final = ForeignFormat(
    "orbax",
    late("formats.orbax.importer:detect"),
    late("formats.orbax.importer:import_orbax", "settings"),
    late("formats.orbax.exporter:export_orbax", "settings", "progress"),
    title="Orbax's PyTrees: an item, a step or a manager's directory; needs TensorStore, ucpformat[orbax]",
    import_settings=(Setting("step", "the step to read of a manager's directory; left out, the last"),),
    export_settings=(
        Setting("ocdbt", "true or false, for a file for each chunk; left out, true"),
        Setting("zarr", "2 or 3, the version of Zarr; left out, 3"),
    ),
)
