"""Universal checkpoints that DeepSpeed made of a pipeline: which stage had what.

DeepSpeed's converter merges the states and copies the stages' model files, which have no tensors; the layers' files,
where all that is not trained lies, stay behind. Who copies them into the tag, too, loses nothing.
Source: DeepSpeed 0.19.8, ``checkpoint/ds_to_universal.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

from ucpformat.conversion.formats.deepspeed.files.states import ModelStates
from ucpformat.conversion.formats.deepspeed.pipeline.layer_files import (
    Layers,
    owners_of,
    read_layers,
    said_by,
)
from ucpformat.conversion.formats.deepspeed.pipeline.tied_layers import TIED, Masters, Stage, tied_parts
from ucpformat.tensor_files.fields import refused

if TYPE_CHECKING:
    from ucpformat.conversion.formats.deepspeed.files.directory import DeepSpeedDirectory
    from ucpformat.jsonio import JsonValue

__all__ = ["UniversalStages", "low_dtype"]

_LOW: Final = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class UniversalStages:
    """The stages of a pipeline: their models, with the modules of the layers' files where they are there.

    ``aliases`` are names of tied weights by the name they are kept under; ``note`` is what an exporter should know.
    """

    layers: Layers
    aliases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    note: Mapping[str, JsonValue] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        directory: DeepSpeedDirectory,
        models: Sequence[ModelStates],
        masters: Masters,
        tied: Mapping[int, str],
    ) -> UniversalStages:
        """Read stages; ``masters`` are the weights of ``zero``; ``tied`` the ties of layers that a caller knows.

        Raises:
            ImportRefusedError: ``UCP-E-SOURCE``, naming the file, as `read_layers`; for layers' files of
                tensor-parallel ranks, which nothing here merges; for a tie that no stage has.
        """
        # Ranks of one stage, which are next to each other, have the same names.
        held = [next(ranks) for _, ranks in groupby(models, key=lambda model: list(said_by(model)))]
        at = held[0].file.name
        degree = models[0].values.get("dp_world_size")
        note: dict[str, JsonValue] = {"stage": 1, "world_size": degree if type(degree) is int else 1}
        if directory.layers:
            if len(held) != len(models):
                raise refused("layer_* files of tensor-parallel ranks; take them away", at)
            stages = [Stage.of_masters(model, masters) for model in held]
            placed = read_layers(directory, stages, 0, tied)
            return cls(placed, {}, note | placed.note())
        said = [said_by(model) for model in held]
        owners = owners_of(said, [model.file.name for model in held])
        first = [
            min((layer for layer, stage in owners.items() if stage == s), default=0) for s in range(len(held))
        ]
        placed = Layers(held, first=[0, *first[1:]])
        aliases: dict[str, list[str]] = {}
        for stage, names in enumerate(said):
            for name in names:
                if parts := tied_parts(name):
                    placed.add_tie(parts[0], stage)
                    layers = sorted(layer for layer, tie in tied.items() if tie == parts[0])
                    aliases[name] = [f"{layer}.{parts[1]}" for layer in layers]
        for tie in tied.values():
            if tie not in placed.ties:
                raise refused(f"no stage has {TIED}{tie}", at)
        missing = sorted({name for model in held for name in model.buffers})
        return cls(placed, aliases, note | placed.note() | {"buffers_elsewhere": list(missing)})


def low_dtype(model: ModelStates) -> str | None:
    """Return the data type of the module's weights, as the configuration says it; None for that of the masters."""
    config = model.values.get("ds_config")
    for key, name in _LOW.items():
        part = config.get(key) if isinstance(config, dict) else None
        if isinstance(part, dict) and part.get("enabled") is True:
            return name
    return None
