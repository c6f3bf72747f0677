"""Formats that come with ucpformat and are files of a library rather than saves of a training framework.

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

if TYPE_CHECKING:
    from ucpformat.conversion.contract.content import Content
    from ucpformat.conversion.contract.job import Job

__all__ = ["ACCELERATE", "MAPS", "MASTER_COPIES", "ORBAX", "SAFETENSORS", "TORCH_RANKS", "TORCH_SAVE"]


def _detect_safetensors(path: Path) -> bool:
    from ucpformat.conversion.formats.safetensors.directory import detect

    return detect(path)


def _plan_safetensors(path: Path, options: ImportOptions) -> Job:
    from ucpformat.conversion.formats.safetensors.importer import import_safetensors

    return import_safetensors(path, settings=options.settings)


def _export_safetensors(content: Content, path: Path, options: ExportOptions) -> ExportPlan:
    from ucpformat.conversion.formats.safetensors.exporter import export_safetensors

    return export_safetensors(content, path, settings=options.settings)


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
    _detect_safetensors,
    _plan_safetensors,
    _export_safetensors,
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


def _detect_torch_save(path: Path) -> bool:
    from ucpformat.conversion.formats.torch_save.importer import detect

    return detect(path)


def _plan_torch_save(path: Path, options: ImportOptions) -> Job:
    from ucpformat.conversion.formats.torch_save.importer import import_torch_save

    return import_torch_save(path, order=options.settings.get("order", ""))


def _export_torch_save(content: Content, path: Path, options: ExportOptions) -> ExportPlan:
    from ucpformat.conversion.formats.torch_save.exporter import export_torch_save

    return export_torch_save(content, path, settings=options.settings)


TORCH_SAVE: Final = ForeignFormat(
    "torch-save",
    _detect_torch_save,
    _plan_torch_save,
    _export_torch_save,
    title="files of torch.save: state dicts, training states, Lightning's .ckpt",
    import_settings=(_ORDER,),
    export_settings=(
        Setting("numbered", "true, to number the parameters of optimizers as torch's own do"),
        MASTER_COPIES,
    ),
    suffixes=(".pt", ".pth", ".ckpt", ".bin"),
)


def _detect_ranks(path: Path) -> bool:
    from ucpformat.conversion.formats.torch_save.rank_files import detect

    return detect(path)


def _plan_ranks(path: Path, options: ImportOptions) -> Job:
    from ucpformat.conversion.formats.torch_save.rank_files import import_rank_files

    settings = options.settings
    return import_rank_files(path, order=settings.get("order", ""), replicas=settings.get("replicas", ""))


TORCH_RANKS: Final = ForeignFormat(
    "torch-ranks",
    _detect_ranks,
    _plan_ranks,
    title="directories of torch.save's files, one of each rank, with FSDP1's sharded state dicts",
    import_settings=(
        _ORDER,
        Setting(
            "replicas",
            "equal or first: whether whole tensors of a model have to be equal on all ranks; left out, equal",
        ),
    ),
)


def _detect_accelerate(path: Path) -> bool:
    from ucpformat.conversion.formats.torch_save.directories import detect

    return detect(path)


def _plan_accelerate(path: Path, options: ImportOptions) -> Job:
    from ucpformat.conversion.formats.torch_save.directories import import_directory

    order = options.settings.get("order", "")
    return import_directory(path, foreign_objects=options.foreign_objects, order=order)


ACCELERATE: Final = ForeignFormat(
    "accelerate",
    _detect_accelerate,
    _plan_accelerate,
    title="directories of Accelerate's save_state, and of Lightning's FSDP strategy",
    import_settings=(_ORDER,),
    before=("safetensors", "dcp"),
)


def _detect_orbax(path: Path) -> bool:
    from ucpformat.conversion.formats.orbax.importer import detect

    return detect(path)


def _plan_orbax(path: Path, options: ImportOptions) -> Job:
    from ucpformat.conversion.formats.orbax.importer import import_orbax

    return import_orbax(path, settings=options.settings)


def _export_orbax(content: Content, path: Path, options: ExportOptions) -> ExportPlan:
    from ucpformat.conversion.formats.orbax.exporter import export_orbax

    return export_orbax(content, path, settings=options.settings, progress=options.progress)


ORBAX: Final = ForeignFormat(
    "orbax",
    _detect_orbax,
    _plan_orbax,
    _export_orbax,
    title="Orbax's PyTrees: an item, a step or a manager's directory; needs TensorStore, ucpformat[orbax]",
    import_settings=(Setting("step", "the step to read of a manager's directory; left out, the last"),),
    export_settings=(
        Setting("ocdbt", "true or false, for a file for each chunk; left out, true"),
        Setting("zarr", "2 or 3, the version of Zarr; left out, 3"),
    ),
)
