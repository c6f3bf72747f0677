"""The layers of a DeepSpeed pipeline: which stage each layer file is of, and which hold tied weights.

Source: DeepSpeed 0.19.8, ``runtime/pipe/module.py``. The module calls a parameter ``<layer>.<key>``, or
``tied_modules.<tie>.<key>``; the file of a layer knows the key alone, and is written once for all data-parallel ranks.
A layer that is given to ``TiedLayerSpec`` with a function of its own has no file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.frameworks.deepspeed.fields import refused, tensors
from ucpformat.frameworks.deepspeed.flat_groups import FlatGroup
from ucpformat.frameworks.deepspeed.sources import CastSource, ReadBox, Whole, sample_shape
from ucpformat.frameworks.deepspeed.states import ModelStates
from ucpformat.frameworks.deepspeed.torch_file import TorchFile, rank_file
from ucpformat.frameworks.torch_dcp.torch_zip import StoredTensor
from ucpformat.geometry import Box
from ucpformat.model.dtype import dtype

if TYPE_CHECKING:
    from ucpformat.errors import UcpError
    from ucpformat.frameworks.deepspeed.directory import DeepSpeedDirectory
    from ucpformat.jsonio import JsonValue

__all__ = [
    "NUMBERED",
    "TIED",
    "Layers",
    "Masters",
    "Stage",
    "not_held",
    "own_name",
    "own_parts",
    "owners_of",
    "read_layers",
    "said_by",
    "tied_parts",
]

TIED: Final = "tied_modules."
NUMBERED: Final = re.compile(r"(\d{1,9})\.(.+)", re.DOTALL)
"""The name of a parameter in a pipeline: the number of its layer, and its name within it."""
_OWN: Final = re.compile(r"(tied_modules\..+)@stage(\d{1,4})", re.DOTALL)


Masters = Callable[[str], tuple[ReadBox, str] | None]
"""The optimizer's copy of a parameter, and its data type; None of what it does not have."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage's ranks said: its model file, and the optimizer's copies."""

    model: ModelStates
    masters: Masters

    @classmethod
    def of_groups(cls, model: ModelStates, groups: Sequence[FlatGroup]) -> Stage:
        """A stage whose copies are in flat groups."""

        def master(name: str) -> tuple[ReadBox, str] | None:
            for group in groups:
                if name in group.shapes:
                    return group.source(name, group.masters), group.masters[0].dtype
            return None

        return cls(model, master)


@dataclass(slots=True)
class Layers:
    """The modules of all stages of one tensor-parallel rank.

    ``models`` are those of the stages, each with its module. ``copies`` are further files of tied weights, by name.
    ``first`` is the first layer that each stage is known to have, ``ties`` the stages that hold each tie. ``own`` are
    parameters of tied layers that a stage trains by itself (`own_name`), by stage.
    """

    models: list[ModelStates]
    copies: list[tuple[str, TorchFile, StoredTensor]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    ties: dict[str, list[int]] = field(default_factory=dict)
    own: dict[int, list[str]] = field(default_factory=dict)

    def add_tie(self, tie: str, stage: int) -> None:
        """Note that a stage holds a tie."""
        holders = self.ties.setdefault(tie, [])
        if stage not in holders:
            holders.append(stage)

    def note(self) -> dict[str, JsonValue]:
        """What an exporter should know: the first layers of stages, and who holds each tie."""
        return {
            "first_layers": list(self.first),
            "ties": {tie: list(held) for tie, held in self.ties.items()},
        }


def own_name(name: str, stage: int) -> str:
    """What a parameter of a tied layer is called that is of one stage alone, where another stage has one of the name.

    ``TiedLayerSpec`` ties one weight of a layer; stages that hold the layer train all others apart, under one name.
    """
    return f"{name}@stage{stage}"


def own_parts(name: str) -> tuple[str, int] | None:
    """Name and stage of an `own_name`; None for another name."""
    match = _OWN.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def _note_own(
    layers: Layers,
    tie: str,
    held: Mapping[str, StoredTensor],
    said: Sequence[Mapping[str, tuple[int, ...] | None]],
    stages: Sequence[Stage],
    file: TorchFile,
) -> None:
    """Note which stages train parameters of a tied layer apart: they hold another weight of it as the file does."""
    for number, names in enumerate(said):
        known = [key for key in held if names.get(f"{TIED}{tie}.{key}") is not None]
        own = [key for key in known if not _is_copy(stages[number], f"{TIED}{tie}.{key}", file, held[key])]
        if own and len(own) < len(known):
            layers.own.setdefault(number, []).extend(f"{TIED}{tie}.{key}" for key in own)


def tied_parts(name: str) -> tuple[str, str] | None:
    """Tie and key of ``tied_modules.<tie>.<key>``; None for another name."""
    tie, dot, key = name.removeprefix(TIED).partition(".")
    return (tie, key) if name.startswith(TIED) and dot else None


def read_layers(
    directory: DeepSpeedDirectory,
    stages: Sequence[Stage],
    tensor_rank: int,
    tied: Mapping[int, str] | None = None,
) -> Layers:
    """Give every stage the module that its layer files hold; ``tied`` are the ties of layers that a caller knows.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming the file, for parameters of the optimizer whose layer's file is
            missing, for a layer of two stages, and for tied weights that cannot be told from others.
    """
    said = [said_by(stage.model) for stage in stages]
    owners = owners_of(said, [stage.model.file.name for stage in stages])
    layers = Layers([stage.model for stage in stages])
    for number, names in enumerate(said):
        # Without ZeRO nothing is said, and a stage with experts has its module in its model file.
        for name in (*names, *stages[number].model.module):
            if parts := tied_parts(name):
                layers.add_tie(parts[0], number)
    # A stage with experts has its module in its model file, and no files of layers.
    modules = [dict(stage.model.module) for stage in stages]
    homes = [dict(stage.model.homes) for stage in stages]
    shared: list[dict[str, str]] = [{} for _ in stages]
    unclaimed: list[tuple[int, TorchFile, dict[str, StoredTensor]]] = []
    for (layer, model), file_name in sorted(directory.layers.items()):
        if model != tensor_rank:
            continue
        file = rank_file(directory.files, file_name)
        held = tensors(file.tree, "the file", file_name)
        if layer not in owners:
            unclaimed.append((layer, file, held))
            continue
        for key, stored in held.items():
            modules[owners[layer]][f"{layer}.{key}"] = stored
            homes[owners[layer]][f"{layer}.{key}"] = file
    for layer, file, held in unclaimed:
        tie = (tied or {}).get(layer) or _tie_of(layer, held, said, stages, file)
        if tie is None:
            # Nothing in it is trained, and any stage may have had it.
            for key, stored in held.items():
                modules[0][f"{layer}.{key}"] = stored
                homes[0][f"{layer}.{key}"] = file
            continue
        _note_own(layers, tie, held, said, stages, file)
        for key, stored in held.items():
            name = f"{TIED}{tie}.{key}"
            holders = [number for number, names in enumerate(said) if name in names]
            if any(name in modules[number] for number in holders):
                layers.copies.append((name, file, stored))
            else:
                for number in holders:
                    modules[number][name], homes[number][name] = stored, file
            first = holders[0]
            alias = f"{layer}.{key}"
            modules[first][alias], homes[first][alias] = modules[first][name], homes[first][name]
            shared[first][alias] = name
    numbers = [
        [int(match[1]) for name in module if (match := NUMBERED.fullmatch(name))] for module in modules
    ]
    layers.first = [0, *(min(held, default=0) for held in numbers[1:])]
    for number, stage in enumerate(stages):
        for name in said[number]:
            if name not in modules[number]:
                raise not_held(name, directory, tensor_rank, stage.model.file.name)
        layers.models[number] = replace(
            stage.model, module=modules[number], homes=homes[number], shared=shared[number]
        )
    return layers


def not_held(name: str, directory: DeepSpeedDirectory, tensor_rank: int, at: str) -> UcpError:
    """The refusal of a parameter whose layer's file is missing; of a tie, whose layers nothing names, it may be any."""
    match = NUMBERED.fullmatch(name)
    layers = [int(match[1])] if match else directory.layers_without_files
    files = " or ".join(directory.layer_name(layer, tensor_rank) for layer in layers)
    return refused(
        f"no layer file holds {name!r}: {files} is missing; copy the layer_* files of all ranks into one directory",
        at,
    )


def said_by(model: ModelStates) -> dict[str, tuple[int, ...] | None]:
    """Names that a stage's model file has, with their shapes; of buffers it has none."""
    found: dict[str, tuple[int, ...] | None] = {}
    for group in model.groups or ():
        found |= group
    return found | dict.fromkeys(sorted(model.buffers - found.keys()))


def owners_of(said: Sequence[Mapping[str, tuple[int, ...] | None]], files: Sequence[str]) -> dict[int, int]:
    """Which stage each layer is of; ``files`` are the stages' model files.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming the file, for a layer of two stages, and a name of no layer.
    """
    owners: dict[int, int] = {}
    for number, names in enumerate(said):
        for name in names:
            if match := NUMBERED.fullmatch(name):
                if owners.setdefault(int(match[1]), number) != number:
                    raise refused(f"layer {match[1]} is of another stage, too: from two saves", files[number])
            elif tied_parts(name) is None:
                raise refused(f"{name!r} is of no layer", files[number])
    return owners


def _tie_of(
    layer: int,
    held: Mapping[str, StoredTensor],
    said: Sequence[Mapping[str, tuple[int, ...] | None]],
    stages: Sequence[Stage],
    file: TorchFile,
) -> str | None:
    """The tie whose weights a layer's file holds: of the same keys and shapes, and the optimizer's copy, rounded."""
    candidates = []
    for number, names in enumerate(said):
        ties = {parts[0] for name in names if (parts := tied_parts(name))}
        for tie in sorted(ties):
            keys = {
                parts[1]: shape
                for name, shape in names.items()
                if (parts := tied_parts(name)) and parts[0] == tie
            }
            if keys.keys() <= held.keys() and all(
                shape in (None, held[key].shape) for key, shape in keys.items()
            ):
                candidates.append((number, tie, keys))
    found = {
        tie
        for number, tie, keys in candidates
        if all(
            _is_copy(stages[number], f"{TIED}{tie}.{key}", file, held[key])
            for key, shape in keys.items()
            if shape is not None
        )
    }
    if len(found) > 1:
        raise refused(
            f"the weights of layer {layer} are those of the ties {', '.join(sorted(found))}", file.name
        )
    return found.pop() if found else None


def _is_copy(stage: Stage, name: str, file: TorchFile, stored: StoredTensor) -> bool:
    """Whether a tensor begins as the optimizer's copy of a parameter does, rounded."""
    found = stage.masters(name)
    if found is None:
        return False
    read, kind = found
    box = Box((0,) * len(stored.shape), sample_shape(stored.shape))
    one = np.empty(box.shape, dtype(stored.dtype).numpy)
    other = np.empty_like(one)
    Whole(file, stored)(box, one)
    CastSource(read, dtype(kind).numpy)(box, other)
    return one.tobytes() == other.tobytes()
