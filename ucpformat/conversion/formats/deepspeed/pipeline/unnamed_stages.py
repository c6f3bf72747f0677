"""Stages of a pipeline whose model files name no parameters: those without ZeRO.

A layer's file knows its keys, and no file says which stage had it. Where the optimizer is `BF16_Optimizer`, the slices
of its flat groups are named. Elsewhere it numbers parameters, in the order of the module: the tied ones, then layer by
layer; the layers are divided as the shapes of the states allow, where they allow it in one way only. A caller may say
how (``pipeline``), and has to say which layers are tied (``tied_layers``), for the name of a tie is in no file.
Source: DeepSpeed 0.19.8, ``runtime/pipe/module.py`` (``_build``), ``runtime/bf16_optimizer.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ucpformat.conversion.formats.deepspeed.files.states import ModelStates, OptimizerStates, Shapes
from ucpformat.conversion.formats.deepspeed.pipeline.layer_files import NUMBERED, not_held
from ucpformat.conversion.formats.deepspeed.pipeline.stage_outlines import listed_numbers
from ucpformat.conversion.formats.deepspeed.pipeline.tied_layers import TIED, tied_parts
from ucpformat.conversion.formats.deepspeed.zero.unpartitioned import NumberedStates, matches, names_by_order
from ucpformat.errors import error
from ucpformat.tensor_files.fields import refused, tensors
from ucpformat.tensor_files.torch_file import rank_file

if TYPE_CHECKING:
    from ucpformat.conversion.formats.deepspeed.files.directory import DeepSpeedDirectory

__all__ = ["Named", "StageSettings", "named_slices", "named_stages"]

_REMEDY: Final = (
    "say how the job divides its layers, --from-set pipeline=0,4 (the first layer of each stage), and which "
    "parameters are frozen, --from-set frozen=2.*"
)
_TIES: Final = "name the tied layers: --from-set tied_layers=NAME:0,7"


@dataclass(frozen=True, slots=True)
class StageSettings:
    """What a caller says: the first layer of each stage, of tied layers the tie, and globs of what is not trained."""

    first: Sequence[int] | None
    ties: Mapping[int, str]
    frozen: Sequence[str] = ()

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> StageSettings:
        """Read settings from ``pipeline=0,4``, ``tied_layers=NAME:0,7;NAME:1,6`` and ``frozen=2.*,3.bias``.

        Raises:
            MismatchError: ``UCP-E-MISMATCH`` for what is neither.
        """
        text = settings.get("pipeline")
        first = None if text is None else listed_numbers(text, "pipeline")
        if first is not None and (first[0] != 0 or any(a >= b for a, b in pairwise(first))):
            raise error("UCP-E-MISMATCH", f"pipeline lists first layers, ascending from 0, not {first}")
        ties: dict[int, str] = {}
        for entry in filter(None, settings.get("tied_layers", "").split(";")):
            name, _, layers = entry.rpartition(":")
            if not name or "." in name:
                raise error("UCP-E-MISMATCH", f"tied_layers has NAME:0,7, not {entry!r:.50}")
            ties |= dict.fromkeys(listed_numbers(layers, "tied_layers"), name)
        frozen = tuple(filter(None, settings.get("frozen", "").split(",")))
        return cls(first, ties, frozen)


@dataclass(frozen=True, slots=True)
class Named:
    """A stage's model with the shapes of what is trained, and the name of each number of its optimizer."""

    model: ModelStates
    names: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer: of one with a file the parameters, in order; of a tied one the tie."""

    number: int
    parameters: Sequence[tuple[str, tuple[int, ...]]]
    tie: str | None


def named_stages(
    directory: DeepSpeedDirectory, models: Sequence[ModelStates], tensor_rank: int, chosen: StageSettings
) -> list[Named]:
    """Return the names of every stage's numbers.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` where the layers can be divided in no way, or in several.
        MismatchError: ``UCP-E-MISMATCH`` where more or fewer stages are set than there are.
    """
    if chosen.first is not None and len(chosen.first) != len(models):
        raise error("UCP-E-MISMATCH", f"pipeline lists {len(chosen.first)} stages, there are {len(models)}")
    layers = _layers(directory, models, tensor_rank, chosen)
    optimizers = []
    for model in models:
        if model.optimizer is None:
            raise refused("neither an optimizer nor the names of what it trained", model.file.name)
        optimizers.append(NumberedStates.read(model.file, model.optimizer))
    divisions = _divisions(layers, optimizers, models, chosen.first)
    at = models[0].file.name
    if not divisions:
        raise refused(
            "the layers' parameters are not those of the stages' optimizers: "
            f"{_in_doubt(directory, tensor_rank)}is missing, or layers are tied: {_TIES}",
            at,
        )
    if len(divisions) > 1 or any(None in names for names in divisions[0]):
        raise refused(
            f"the layers can be divided in several ways among {len(models)} stages without ZeRO; {_REMEDY}",
            at,
        )
    shapes = {name: shape for layer in layers for name, shape in layer.parameters}
    named = []
    for model, optimizer, names in zip(models, optimizers, divisions[0], strict=True):
        numbers = [number for group in optimizer.numbers for number in group]
        by_number = {number: str(name) for number, name in zip(numbers, names, strict=True)}
        groups = [{by_number[n]: shapes[by_number[n]] for n in group} for group in optimizer.numbers]
        named.append(Named(replace(model, groups=groups), by_number))
    return named


def _in_doubt(directory: DeepSpeedDirectory, tensor_rank: int) -> str:
    names = [directory.layer_name(layer, tensor_rank) for layer in directory.layers_without_files]
    return f"the file of a layer ({', '.join(names)}) "


def _layers(
    directory: DeepSpeedDirectory, models: Sequence[ModelStates], tensor_rank: int, chosen: StageSettings
) -> list[_Layer]:
    ties = chosen.ties
    buffers = frozenset(name for model in models for name in model.buffers)
    held = dict(_layer_shapes(directory, tensor_rank))
    of_ties: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for number, tie in ties.items():
        if number in held:
            of_ties[tie] = [(f"{TIED}{tie}.{key}", shape) for key, shape in held[number].items()]
    missing = sorted(set(ties.values()) - of_ties.keys())
    if missing:
        names = " or ".join(
            directory.layer_name(number, tensor_rank) for number, tie in ties.items() if tie == missing[0]
        )
        raise refused(
            f"no layer file holds the weights tied as {missing[0]!r}: {names} is missing", models[0].file.name
        )
    return [
        _Layer(
            number,
            [
                place
                for place in (
                    of_ties[ties[number]]
                    if number in ties
                    else [(f"{number}.{key}", shape) for key, shape in held[number].items()]
                )
                if place[0] not in buffers and not matches(place[0], chosen.frozen)
            ],
            ties.get(number),
        )
        for number in sorted(held.keys() | ties.keys())
    ]


def _layer_shapes(directory: DeepSpeedDirectory, tensor_rank: int) -> Iterator[tuple[int, Shapes]]:
    for (layer, rank), name in sorted(directory.layers.items()):
        if rank == tensor_rank:
            file = rank_file(directory.files, name)
            held = tensors(file.tree, "the file", name)
            yield layer, {key: stored.shape for key, stored in held.items()}


Names = tuple[str | None, ...]


def _divisions(
    layers: Sequence[_Layer],
    optimizers: Sequence[NumberedStates],
    models: Sequence[ModelStates],
    first: Sequence[int] | None,
) -> list[tuple[Names, ...]]:
    """Return the names of the stages' numbers, in the ways in which the layers can be divided: two at most."""
    counts = [sum(map(len, optimizer.numbers)) for optimizer in optimizers]
    ties = {layer.tie: len(layer.parameters) for layer in layers if layer.tie is not None}
    plain = sum(len(layer.parameters) for layer in layers if layer.tie is None)
    frozen = plain + sum(ties.values()) * len(models) - sum(counts)  # so many at most
    pins = {
        int(match[1]): stage
        for stage, model in enumerate(models)
        for name in model.buffers
        if (match := NUMBERED.fullmatch(name))
    }

    def stops(stage: int, start: int) -> range:
        if first is None:
            return range(start, len(layers) + 1)
        end = first[stage + 1] if stage + 1 < len(first) else layers[-1].number + 1
        stop = sum(layer.number < end for layer in layers)
        return range(max(stop, start), max(stop, start) + 1)

    @cache
    def solve(stage: int, start: int) -> tuple[tuple[Names, ...], ...]:
        if stage == len(models):
            return ((),) if start == len(layers) else ()
        divisions: dict[tuple[Names, ...], None] = {}
        for stop in stops(stage, start):
            part = layers[start:stop]
            if any(pins.get(layer.number, stage) != stage for layer in part):
                break
            candidates = _in_order(part)
            if len(candidates) - counts[stage] > frozen:
                break
            names = _stage_names(optimizers[stage], candidates)
            if names is None:
                continue
            for rest in solve(stage + 1, stop):
                divisions[names, *rest] = None
                if len(divisions) > 1:
                    return tuple(divisions)
        return tuple(divisions)

    return list(solve(0, 0)) if layers else []


def _in_order(layers: Sequence[_Layer]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the parameters of a stage as its module lists them: ties as they come, then the other layers."""
    tied = dict(place for layer in layers if layer.tie is not None for place in layer.parameters)
    return [*tied.items(), *(place for layer in layers if layer.tie is None for place in layer.parameters)]


def _stage_names(
    optimizer: NumberedStates, candidates: Sequence[tuple[str, tuple[int, ...]]]
) -> Names | None:
    assigned: list[str | None] = []
    for group in range(len(optimizer.numbers)):
        names = names_by_order(optimizer.shapes(group), candidates)
        if names is None:
            return None
        assigned += names
    known = [name for name in assigned if name is not None]
    return tuple(assigned) if len(set(known)) == len(known) and len(assigned) <= len(candidates) else None


def named_slices(
    directory: DeepSpeedDirectory, ranks: Sequence[OptimizerStates], model: ModelStates, tensor_rank: int
) -> ModelStates:
    """Return ``model`` with the shapes of the flat groups of its stage, whose slices all ranks name.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for slices that are not one after another, and for a name that no layer
            file has.
    """
    held = dict(_layer_shapes(directory, tensor_rank))
    slices = []
    for number in range(len(ranks[0].masters)):
        sizes: dict[str, int] = {}
        for rank in ranks:
            if rank.slices is None:
                raise refused(
                    "an optimizer in flat groups whose parameters are named nowhere; use ZeRO-1",
                    model.file.name,
                )
            end = 0
            for name, (start, size) in (rank.slices[number] if number < len(rank.slices) else {}).items():
                if start != end or size <= 0 or (name in sizes and (start or name != list(sizes)[-1])):
                    raise refused("the slices of a flat group are not one after another", rank.file.name)
                sizes[name] = sizes.get(name, 0) + size
                end = start + size
        shapes: dict[str, tuple[int, ...]] = {}
        for name, size in sizes.items():
            shape = _shape_of(name, size, held, sizes, model)
            if shape is None:
                raise not_held(name, directory, tensor_rank, model.file.name)
            shapes[name] = shape
        slices.append(shapes)
    return replace(model, groups=slices)


def _shape_of(
    name: str, size: int, held: Mapping[int, Shapes], sizes: Mapping[str, int], model: ModelStates
) -> tuple[int, ...] | None:
    """Return the shape of a parameter of so many elements; None where no layer file has one."""
    if match := NUMBERED.fullmatch(name):
        shape = held.get(int(match[1]), {}).get(match[2])
        shapes = set() if shape is None else {shape}
    elif parts := tied_parts(name):
        named = {int(match[1]) for other in sizes if (match := NUMBERED.fullmatch(other))}
        # Its file is that of a layer which the stage that has it names no parameter of.
        shapes = {keys[parts[1]] for layer, keys in held.items() if layer not in named and parts[1] in keys}
    else:
        raise refused(f"{name!r} is of no layer", model.file.name)
    shapes = {shape for shape in shapes if math.prod(shape) == size}
    if len(shapes) > 1:
        raise refused(f"files of several shapes may hold {name!r}, of {size} elements", model.file.name)
    return shapes.pop() if shapes else None
