"""Tied layers of a pipeline: which of their weights are tied, and which each stage trains by itself.

``TiedLayerSpec`` ties one weight of a layer, or those that it is told to; stages that hold the layer train all others
apart, under one name. Nothing says which those are, but what the optimizer has of a tied weight is the same on all
stages, bit by bit. A layer has a file if it is called without a function of its own; the weights of a stage whose
layer has none are the optimizer's copies, or were not saved.
Source: DeepSpeed 0.19.8, ``runtime/pipe/module.py`` (``_build``, ``_index_tied_modules``, ``save_state_dict``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ucpformat.conversion.contract.job import ReadBox
from ucpformat.conversion.contract.sources import CastSource, Whole, sample_shape
from ucpformat.conversion.formats.deepspeed.files.states import ModelStates
from ucpformat.conversion.formats.deepspeed.zero.flat_groups import FlatGroup
from ucpformat.conversion.formats.deepspeed.zero.unpartitioned import NumberedStates
from ucpformat.geometry import Box
from ucpformat.model.dtype import dtype
from ucpformat.tensor_files.fields import refused
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor

__all__ = [
    "TIED",
    "Stage",
    "TiedFile",
    "is_copy",
    "own_keys",
    "own_name",
    "own_parts",
    "stages_of_file",
    "tied_parts",
]

TIED: Final = "tied_modules."
_OWN: Final = re.compile(r"(tied_modules\..+)@stage(\d{1,4})", re.DOTALL)
_SAMPLES: Final = 16

Masters = Callable[[str], tuple[ReadBox, str] | None]
"""The optimizer's copy of a parameter, and its data type; None of what it does not have."""

Trace = tuple[ReadBox, str, tuple[int, ...]]
"""Something that the optimizer has of a parameter, of its shape: source, data type, shape."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage's ranks said: its model file, and what the optimizer has of a parameter, by slot."""

    model: ModelStates
    traces: Callable[[str], Mapping[str, Trace]]

    @classmethod
    def of_groups(cls, model: ModelStates, groups: Sequence[FlatGroup]) -> Stage:
        """Return a stage whose copies are in flat groups."""

        def traces(name: str) -> Mapping[str, Trace]:
            for group in groups:
                if name in group.shapes:
                    read = group.source(name, group.masters)
                    return {"master": (read, group.masters[0].dtype, group.shapes[name])}
            return {}

        return cls(model, traces)

    @classmethod
    def of_masters(cls, model: ModelStates, masters: Masters) -> Stage:
        """Return a stage whose copies are whole tensors by name."""
        shapes = {name: shape for group in model.groups or () for name, shape in group.items()}

        def traces(name: str) -> Mapping[str, Trace]:
            read = masters(name)
            return {} if read is None or name not in shapes else {"master": (*read, shapes[name])}

        return cls(model, traces)

    @classmethod
    def of_numbers(cls, model: ModelStates, names: Mapping[int, str]) -> Stage:
        """Return a stage whose optimizer numbers its parameters; those of float32 have no copies beside the states."""
        traces: dict[str, dict[str, Trace]] = {}
        shapes = {name: shape for group in model.groups or () for name, shape in group.items()}
        for name, slot, kind, shape, read in NumberedStates.read(model.file, model.optimizer or {}).slots(
            names
        ):
            if shape == shapes.get(name):
                traces.setdefault(name, {})[slot] = (read, kind, shape)
        return cls(model, lambda name: traces.get(name, {}))

    def master(self, name: str) -> Trace | None:
        """Return the optimizer's copy of a parameter; None where it has none."""
        return self.traces(name).get("master")


@dataclass(frozen=True, slots=True)
class TiedFile:
    """The file of a layer that is tied."""

    layer: int
    file: TorchFile
    held: Mapping[str, StoredTensor]


def own_name(name: str, stage: int) -> str:
    """Return the name of a tied layer's parameter that is one stage's alone, where another has one of the same name."""
    return f"{name}@stage{stage}"


def own_parts(name: str) -> tuple[str, int] | None:
    """Return name and stage of an `own_name`; None for another name."""
    match = _OWN.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def tied_parts(name: str) -> tuple[str, str] | None:
    """Return tie and key of ``tied_modules.<tie>.<key>``; None for another name."""
    tie, dot, key = name.removeprefix(TIED).partition(".")
    return (tie, key) if name.startswith(TIED) and dot else None


def own_keys(
    tie: str,
    files: Sequence[TiedFile],
    holders: Sequence[int],
    stages: Sequence[Stage],
    order: Callable[[int], set[int]],
) -> Mapping[int, Sequence[str]]:
    """Return keys of a tied layer that stages after the first of its ``holders`` train apart, by stage.

    ``order`` has the stages that a layer may be of, by its number. A stage of which nothing is that of the first one is
    of another save, and has none.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, where nothing tells whether a weight is tied.
    """
    keys = list(dict.fromkeys(key for one in files for key in one.held))
    by_stage: dict[int, list[str]] = {}
    for stage in holders[1:]:
        differs = {key: _differs(tie, key, files, stages, (holders[0], stage), order) for key in keys}
        own = [key for key in keys if differs[key]]
        trained = [
            key
            for key in keys
            if any(f"{TIED}{tie}.{key}" in group for group in stages[stage].model.groups or ())
        ]
        unknown = [key for key in trained if differs[key] is None]
        if unknown and len(trained) > 1:
            raise refused(
                f"nothing tells whether {unknown[0]!r} of the tied layer is tied, or trained apart by stage {stage}: "
                "the optimizer has no state of it; save under ZeRO-1, or with an optimizer that has states",
                files[0].file.name,
            )
        if own and len(own) < len([key for key in keys if differs[key] is not None]):
            by_stage[stage] = own
    return by_stage


def _differs(
    tie: str,
    key: str,
    files: Sequence[TiedFile],
    stages: Sequence[Stage],
    pair: tuple[int, int],
    order: Callable[[int], set[int]],
) -> bool | None:
    """Return whether two stages have two weights under one key; None where nothing tells."""
    name = f"{TIED}{tie}.{key}"
    first, second = (stages[number].traces(name) for number in pair)
    common = first.keys() & second.keys()
    if common:
        return any(not _is_same(first[slot], second[slot]) for slot in common)
    held: list[Trace] = []
    for number in pair:
        mine = [
            one
            for one in files
            if key in one.held and stages_of_file(tie, one, pair, stages, order) == {number}
        ]
        if not mine:
            return None
        stored = mine[0].held[key]
        held.append((Whole(mine[0].file, stored), stored.dtype, stored.shape))
    return not _is_same(*held)


def stages_of_file(
    tie: str, one: TiedFile, holders: Sequence[int], stages: Sequence[Stage], order: Callable[[int], set[int]]
) -> set[int]:
    """Return the stages whose layer a file may be of: those with its rounded copies, else by the layer's number."""
    agreeing = set()
    for number in holders:
        known = {
            key: stored
            for key, stored in one.held.items()
            if stages[number].master(f"{TIED}{tie}.{key}") is not None
        }
        if known and all(
            is_copy(stages[number], f"{TIED}{tie}.{key}", one.file, stored) for key, stored in known.items()
        ):
            agreeing.add(number)
    return agreeing or set(holders) & order(one.layer)


def is_copy(stage: Stage, name: str, file: TorchFile, stored: StoredTensor) -> bool:
    """Return whether a tensor begins as the optimizer's copy of a parameter does, rounded."""
    master = stage.master(name)
    if master is None or master[2] != stored.shape:
        return False
    read, kind, _ = master
    rounded = CastSource(read, dtype(kind).numpy)
    box = Box((0,) * len(stored.shape), sample_shape(stored.shape))
    return _same_box(box, stored.dtype, Whole(file, stored), rounded)


def _is_same(one: Trace, other: Trace) -> bool:
    """Return whether two tensors are equal in samples from all over; rows never used are zero in both."""
    if one[1:] != other[1:]:
        return False
    return all(_same_box(box, one[1], one[0], other[0]) for box in _samples(one[2]))


def _samples(shape: tuple[int, ...]) -> Iterator[Box]:
    extents = sample_shape(shape)
    dim = next((dim for dim, extent in enumerate(extents) if extent < shape[dim]), None)
    if dim is None:
        yield Box((0,) * len(shape), extents)
        return
    last = shape[dim] - extents[dim]
    for start in sorted({last * number // (_SAMPLES - 1) for number in range(_SAMPLES)}):
        yield Box(tuple(start if place == dim else 0 for place in range(len(shape))), extents)


def _same_box(box: Box, kind: str, first: ReadBox, second: ReadBox) -> bool:
    one = np.empty(box.shape, dtype(kind).numpy)
    other = np.empty_like(one)
    first(box, one)
    second(box, other)
    return one.tobytes() == other.tobytes()
