"""Foreign kinds of checkpoints: how each is recognised, read and written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ucpformat.frameworks.conversion import Job
    from ucpformat.frameworks.torch_dcp.importer import ForeignObjects
    from ucpformat.reader import Checkpoint

__all__ = ["BUILT_IN", "ExportOptions", "ForeignKind", "ImportOptions"]

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What a caller may say about a source."""

    foreign_objects: ForeignObjects = "refuse"
    shard_count: int | None = None


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What a caller may say about a destination; ``progress`` is told of logical bytes that are written.

    ``settings`` are a kind's own, as the command line has them: ``{"stage": "3", "world_size": "4"}``.
    """

    progress: Callable[[int], None] = lambda _: None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForeignKind:
    """One kind. ``plan`` reads one into a job, ``export`` writes one and counts its objects; None where it cannot."""

    name: str
    detect: Callable[[Path], bool]
    plan: Callable[[Path, ImportOptions], Job] | None = None
    export: Callable[[Checkpoint, Path, ExportOptions], int] | None = None


# Modules are imported when a function is called: torch, or what a kind needs, is not loaded for the others.


def _detect_dcp(path: Path) -> bool:
    from ucpformat.frameworks.torch_dcp.directory import detect

    return detect(path)


def _plan_dcp(path: Path, options: ImportOptions) -> Job:
    from ucpformat.frameworks.torch_dcp.importer import import_dcp

    return import_dcp(path, foreign_objects=options.foreign_objects, shard_count=options.shard_count)


def _export_dcp(checkpoint: Checkpoint, path: Path, options: ExportOptions) -> int:
    from ucpformat.frameworks.torch_dcp.exporter import export_dcp

    return export_dcp(checkpoint, path, progress=options.progress)


def _detect_deepspeed(path: Path) -> bool:
    from ucpformat.frameworks.deepspeed.directory import detect

    return detect(path)


def _plan_deepspeed(path: Path, options: ImportOptions) -> Job:
    from ucpformat.frameworks.deepspeed.importer import import_deepspeed

    return import_deepspeed(path)


def _export_deepspeed(checkpoint: Checkpoint, path: Path, options: ExportOptions) -> int:
    from ucpformat.frameworks.deepspeed.exporter import export_deepspeed

    return export_deepspeed(checkpoint, path, settings=options.settings, progress=options.progress)


def _detect_universal(path: Path) -> bool:
    from ucpformat.frameworks.deepspeed.universal import universal_folder

    return universal_folder(path) is not None


def _plan_universal(path: Path, options: ImportOptions) -> Job:
    from ucpformat.frameworks.deepspeed.universal_importer import import_universal

    return import_universal(path)


def _export_universal(checkpoint: Checkpoint, path: Path, options: ExportOptions) -> int:
    from ucpformat.frameworks.deepspeed.universal import export_universal

    return export_universal(checkpoint, path, settings=options.settings, progress=options.progress)


def _detect_megatron(path: Path) -> bool:
    from ucpformat.frameworks.megatron.torch_dist import detect

    return detect(path)


def _plan_megatron(path: Path, options: ImportOptions) -> Job:
    from ucpformat.frameworks.megatron.importer import import_torch_dist

    return import_torch_dist(path, foreign_objects=options.foreign_objects)


def _export_megatron(checkpoint: Checkpoint, path: Path, options: ExportOptions) -> int:
    from ucpformat.frameworks.megatron.exporter import export_torch_dist

    return export_torch_dist(checkpoint, path, progress=options.progress)


BUILT_IN: Final = (
    ForeignKind("megatron", _detect_megatron, _plan_megatron, _export_megatron),
    ForeignKind("dcp", _detect_dcp, _plan_dcp, _export_dcp),
    ForeignKind("ds-universal", _detect_universal, _plan_universal, _export_universal),
    ForeignKind("deepspeed", _detect_deepspeed, _plan_deepspeed, _export_deepspeed),
)
"""In the order in which a directory is looked at."""
