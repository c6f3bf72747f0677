"""The layers of a DeepSpeed pipeline: which stage each layer file is of, and which hold tied weights.

Source: DeepSpeed 0.19.8, ``runtime/pipe/module.py``. The module calls a parameter ``<layer>.<key>``, or
``tied_modules.<tie>.<key>``; the file of a layer knows the key alone, and is written once for all data-parallel ranks.
A layer that is given to ``TiedLayerSpec`` with a function of its own has no file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ucpformat.conversion.formats.deepspeed.files.states import ModelStates
from ucpformat.conversion.formats.deepspeed.pipeline.tied_layers import (
    TIED,
    Stage,
    TiedFile,
    is_copy,
    own_keys,
    own_name,
    stages_of_file,
    tied_parts,
)
from ucpformat.tensor_files.fields import refused, tensors
from ucpformat.tensor_files.torch_file import TorchFile, rank_file
from ucpformat.tensor_files.torch_zip import StoredTensor

if TYPE_CHECKING:
    from ucpformat.conversion.formats.deepspeed.files.directory import DeepSpeedDirectory
    from ucpformat.errors import UcpError
    from ucpformat.jsonio import JsonValue

__all__ = ["NUMBERED", "Layers", "not_held", "owners_of", "read_layers", "said_by"]

NUMBERED: Final = re.compile(r"(\d{1,9})\.(.+)", re.DOTALL)
"""The name of a parameter in a pipeline: the number of its layer, and its name within it."""


@dataclass(slots=True)
class Layers:
    """The modules of all stages of one tensor-parallel rank.

    ``models`` are those of the stages, each with its module. ``copies`` are further files of tied weights, by name.
    ``first`` is the first layer that each stage is known to have, ``ties`` the stages that hold each tie. ``own`` are
    parameters of tied layers that a stage trains by itself (`own_name`), by stage; ``derived`` those of which the stage
    has no layer's file. ``unseen`` is 1 where a stage holds a tied layer of which there is no file.
    """

    models: list[ModelStates]
    copies: list[tuple[str, TorchFile, StoredTensor]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    ties: dict[str, list[int]] = field(default_factory=dict)
    own: dict[int, Sequence[str]] = field(default_factory=dict)
    derived: dict[int, set[str]] = field(default_factory=dict)
    unseen: int = 0

    def add_tie(self, tie: str, stage: int) -> None:
        """Note that a stage holds a tie."""
        holders = self.ties.setdefault(tie, [])
        if stage not in holders:
            holders.append(stage)

    def note(self) -> dict[str, JsonValue]:
        """Return what an exporter should know: the first layers of stages, and who holds each tie."""
        return {
            "first_layers": list(self.first),
            "ties": {tie: list(held) for tie, held in self.ties.items()},
        }


def read_layers(
    directory: DeepSpeedDirectory,
    stages: Sequence[Stage],
    tensor_rank: int,
    tied: Mapping[int, str] | None = None,
    first: Sequence[int] | None = None,
) -> Layers:
    """Give every stage the module that its layer files hold.

    ``tied`` are the ties of layers that a caller knows, ``first`` the first layers of the stages.

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
    files: dict[str, list[TiedFile]] = {}
    for layer, file, held in unclaimed:
        tie = (tied or {}).get(layer) or _tie_of(layer, held, said, stages, file)
        if tie is None:
            # Nothing in it is trained, and any stage may have had it.
            for key, stored in held.items():
                modules[0][f"{layer}.{key}"] = stored
                homes[0][f"{layer}.{key}"] = file
            continue
        files.setdefault(tie, []).append(TiedFile(layer, file, held))
    for tie, of_tie in files.items():
        _place_tie(
            layers, tie, of_tie, _Modules(modules, homes, shared), stages, _Order(owners, len(stages), first)
        )
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
    """Return the refusal of a parameter whose layer's file is missing; of a tie, any of its files may be it."""
    match = NUMBERED.fullmatch(name)
    layers = [int(match[1])] if match else directory.layers_without_files
    files = " or ".join(directory.layer_name(layer, tensor_rank) for layer in layers)
    return refused(
        f"no layer file holds {name!r}: {files} is missing; copy the layer_* files of all ranks into one directory",
        at,
    )


def said_by(model: ModelStates) -> dict[str, tuple[int, ...] | None]:
    """Return names that a stage's model file has, with their shapes; of buffers it has none."""
    shapes: dict[str, tuple[int, ...] | None] = {}
    for group in model.groups or ():
        shapes |= group
    return shapes | dict.fromkeys(sorted(model.buffers - shapes.keys()))


def owners_of(said: Sequence[Mapping[str, tuple[int, ...] | None]], files: Sequence[str]) -> dict[int, int]:
    """Return which stage each layer is of; ``files`` are the stages' model files.

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
    """Return the tie whose weights a layer's file holds: same keys and shapes, and the rounded optimizer's copy."""
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
    matching = {
        tie
        for number, tie, keys in candidates
        if all(
            is_copy(stages[number], f"{TIED}{tie}.{key}", file, held[key])
            for key, shape in keys.items()
            if shape is not None
        )
    }
    if len(matching) > 1:
        raise refused(
            f"the weights of layer {layer} are those of the ties {', '.join(sorted(matching))}", file.name
        )
    return matching.pop() if matching else None


@dataclass(frozen=True, slots=True)
class _Modules:
    """The tensors of all stages, their files, and names of one tensor, as they are found."""

    modules: Sequence[dict[str, StoredTensor]]
    homes: Sequence[dict[str, TorchFile]]
    shared: Sequence[dict[str, str]]

    def put(self, stage: int, name: str, one: TiedFile, key: str) -> None:
        self.modules[stage][name], self.homes[stage][name] = one.held[key], one.file


@dataclass(frozen=True, slots=True)
class _Order:
    """Which stages a layer may be of, whose names are not numbered: stages have layers that follow each other."""

    owners: Mapping[int, int]
    count: int
    first: Sequence[int] | None

    def __call__(self, layer: int) -> set[int]:
        if self.first:
            return {sum(start <= layer for start in self.first) - 1}
        low = max((stage for other, stage in self.owners.items() if other < layer), default=0)
        high = min((stage for other, stage in self.owners.items() if other > layer), default=self.count - 1)
        return set(range(low, high + 1))


def _place_tie(
    layers: Layers,
    tie: str,
    files: Sequence[TiedFile],
    modules: _Modules,
    stages: Sequence[Stage],
    order: _Order,
) -> None:
    """Give the stages that hold a tie what the files of its layers hold."""
    holders = sorted(layers.ties.get(tie, [0]))
    own = own_keys(tie, files, holders, stages, order)
    if len(files) < len(holders):
        layers.unseen = 1
    layers.own |= {
        stage: [*layers.own.get(stage, ()), *(f"{TIED}{tie}.{key}" for key in keys)]
        for stage, keys in own.items()
    }
    for key in dict.fromkeys(key for one in files for key in one.held):
        name = f"{TIED}{tie}.{key}"
        apart = sorted(stage for stage, keys in own.items() if key in keys)
        # Who holds the weight that is tied, or is alone with it; and each stage that has its own.
        sharers = [{*holders} - {*apart}, *({stage} for stage in apart)]
        mine: list[list[TiedFile]] = [[] for _ in sharers]
        having = [one for one in files if key in one.held]
        for one in having:
            mine[_group_of(one, sharers, tie, stages, order)].append(one)
        for group, its in zip(sharers, mine, strict=True):
            kept = own_name(name, *group) if group <= {*apart} else name
            for stage in group:
                modules.put(stage, name, its[0] if its else having[0], key)
                if not its:
                    layers.derived.setdefault(stage, set()).add(kept)
            layers.copies += [(kept, one.file, one.held[key]) for one in its[1:]]
            for one in its:
                at, alias = min(group), f"{one.layer}.{key}"
                modules.put(at, alias, its[0], key)
                modules.shared[at][alias] = kept


def _group_of(
    one: TiedFile, groups: Sequence[set[int]], tie: str, stages: Sequence[Stage], order: _Order
) -> int:
    """Return which of the groups of stages, each of which has a weight of its own, a layer's file is of."""
    if len(groups) == 1:
        return 0
    may = stages_of_file(tie, one, sorted(set().union(*groups)), stages, order)
    matching = [number for number, group in enumerate(groups) if group & may]
    if len(matching) != 1:
        said = f"stage {' or '.join(map(str, sorted(may)))}" if may else "none of the stages that hold it"
        raise refused(
            f"layer {one.layer}, tied as {tie!r}, may be of {said}, and stages have weights of their own in it; say "
            "the first layer of each stage: --from-set pipeline=0,4",
            one.file.name,
        )
    return matching[0]
