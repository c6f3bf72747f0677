"""DeepSpeed's own checkpoints to universal ones (SPEC appendix A): no DeepSpeed, no torch, nothing executed.

A parameter's slots are ``value``, what the module holds; ``master``, the optimizer's copy where that has another data
type; and the optimizer's states under their own names. ZeRO-3 stores no values: they are the master copies, rounded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.errors import UcpError, error
from ucpformat.frameworks.conversion import Job, SlotSource
from ucpformat.frameworks.deepspeed.directory import DeepSpeedDirectory, missing
from ucpformat.frameworks.deepspeed.fields import refused
from ucpformat.frameworks.deepspeed.flat_groups import FlatGroup, Scalar, flat_groups, partition_source
from ucpformat.frameworks.deepspeed.sources import AgreeingSources, CastSource, EqualSources, ReadBox, Whole
from ucpformat.frameworks.deepspeed.states import ModelStates, OptimizerStates
from ucpformat.frameworks.deepspeed.torch_file import TorchFile
from ucpformat.frameworks.deepspeed.unpartitioned import unpartitioned_states
from ucpformat.frameworks.origins import SOURCE
from ucpformat.frameworks.torch_dcp.tagged import encode
from ucpformat.frameworks.torch_dcp.torch_zip import StoredTensor
from ucpformat.geometry import Box
from ucpformat.model.dtype import dtype
from ucpformat.model.state import Optimizer, ParameterGroup, StateDocument
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.jsonio import JsonValue

__all__ = ["KIND", "OPTIMIZER", "import_deepspeed"]

KIND: Final = "deepspeed"
OPTIMIZER: Final = "optim"
WRAPPER: Final = "zero_optimizer"
"""The value that holds what DeepSpeed's optimizer has around torch's: loss scale, overflow, clipping."""

_SCALAR_DTYPES: Final = {int: "int64", float: "float64"}


@dataclass(slots=True)
class _Draft:
    """Atoms in the making: slots and sources by atom and slot, aliases by atom."""

    slots: dict[str, dict[str, SlotSpec]] = field(default_factory=dict)
    sources: dict[tuple[str, str], ReadBox] = field(default_factory=dict)
    aliases: dict[str, list[str]] = field(default_factory=dict)

    def add(
        self,
        atom: str,
        slot: str,
        kind: str,
        shape: tuple[int, ...],
        read: ReadBox,
        annotations: Mapping[str, JsonValue] | None = None,
    ) -> None:
        self.slots.setdefault(atom, {})[slot] = SlotSpec(kind, shape, annotations=annotations or {})
        self.sources[atom, slot] = read

    def atoms(self) -> list[AtomSpec]:
        return [
            AtomSpec(name, slots, tuple(sorted(self.aliases.get(name, ()))))
            for name, slots in self.slots.items()
        ]


def import_deepspeed(path: str | os.PathLike[str]) -> Job:
    """Plan the conversion of a directory that DeepSpeed saved into, or of one tag in it; no tensor is read yet.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for what is damaged, incomplete, of two saves or of a kind that is not
            read; ``UCP-E-PICKLE`` for a pickle that asks for more than plain data; the file is named.
    """
    directory = DeepSpeedDirectory.open(path)
    if directory.layers or directory.experts or directory.model_degree > 1:
        raise error(
            "UCP-E-SOURCE",
            "saved under model parallelism (pipeline, tensor or expert), which this importer does not read",
            at=str(directory.files.root),
        )
    models = [
        ModelStates.read(TorchFile(directory.files, directory.model[place]))
        for place in sorted(directory.model)
    ]
    ranks = [
        OptimizerStates.read(TorchFile(directory.files, directory.optimizer[place]))
        for place in sorted(directory.optimizer)
    ]
    _check_saves(models, ranks, directory)
    draft = _Draft()
    groups: list[tuple[list[str], Mapping[str, Any]]] = []
    first = models[0]
    if ranks:
        groups = [([], options) for options in ranks[0].options]
        for group in flat_groups(ranks, first.groups or (), first.file.name):
            groups[group.options][0].extend(group.shapes)
            _add_group(draft, group, first)
    elif first.optimizer is not None:
        for name, slot, kind, shape, read in unpartitioned_states(first, groups):
            draft.add(name, slot, kind, shape, read)
    _add_frozen(draft, models, directory.is_partitioned)
    _add_rest(draft, first, directory.is_partitioned)
    _check_names(draft, first)
    return Job(
        atoms=draft.atoms(),
        sources=[SlotSource(atom, slot, read) for (atom, slot), read in draft.sources.items()],
        state=_state(models, ranks, groups),
        step=_step(first),
    )


def _check_saves(
    models: Sequence[ModelStates], ranks: Sequence[OptimizerStates], directory: DeepSpeedDirectory
) -> None:
    """Refuse files that are not of one save, and a rank that is missing at the end."""
    first = models[0]
    for other in models[1:]:
        for key in ("global_steps", "dp_world_size", "ds_version"):
            if repr(other.values.get(key)) != repr(first.values.get(key)):
                raise refused(
                    f"{key} is {other.values.get(key)!r:.40}, in {first.file.name} it is "
                    f"{first.values.get(key)!r:.40}: from two saves",
                    other.file.name,
                )
        if other.groups != first.groups or other.frozen != first.frozen:
            raise refused(f"other parameters than {first.file.name}: from two saves", other.file.name)
    degree = max(ranks[0].counts, default=0) if ranks else len(models)
    if ranks and degree > len(ranks):
        raise missing(len(ranks), 0, "optim_states", directory.tag)
    if ranks and degree < len(ranks):
        raise refused(f"{len(ranks)} ranks have files, and only {degree} saved", ranks[-1].file.name)
    if directory.is_partitioned and len(models) != degree:
        raise missing(len(models), 0, "model_states", directory.tag)
    if ranks and (ranks[0].stage == 3) != directory.is_partitioned:
        raise refused(f"of another ZeRO stage than {first.file.name}: from two saves", ranks[0].file.name)
    if not ranks and first.groups is not None:
        raise missing(0, 0, "optim_states", directory.tag)


def _add_group(draft: _Draft, group: FlatGroup, model: ModelStates) -> None:
    """Slots of all parameters of a flat group."""
    for name, shape in group.shapes.items():
        master_kind = group.masters[0].dtype
        held = model.module.get(name)
        if held is None:
            raise refused(f"the module lacks {name!r}, which the optimizer has", model.file.name)
        master = group.source(name, group.masters)
        is_whole = group.ranks[0].stage != 3
        if is_whole and held.shape != shape:
            raise refused(
                f"{name!r} has shape {list(held.shape)}, its group says {list(shape)}", model.file.name
            )
        value: ReadBox = master
        if held.dtype != master_kind:
            draft.add(name, "master", master_kind, shape, master)
            value = CastSource(master, dtype(master_kind).numpy)
        if is_whole:
            whole, at = Whole(model.file, held), group.ranks[0].file.name
            value = (
                EqualSources(whole, master, name, at)
                if held.dtype == master_kind
                else AgreeingSources(whole, value, name, at)
            )
        draft.add(name, "value", held.dtype, shape, value)
        for state, stored in group.states.items():
            draft.add(name, state, stored[0].dtype, shape, group.source(name, stored))
        for state, scalar in group.scalars.items():
            _add_scalar(draft, name, state, scalar, group.ranks[0].file)


def _add_scalar(draft: _Draft, name: str, state: str, scalar: Scalar, file: TorchFile) -> None:
    if isinstance(scalar, StoredTensor):
        draft.add(name, state, scalar.dtype, (), Whole(file, scalar))
    else:
        kind = _SCALAR_DTYPES[type(scalar)]
        note: dict[str, JsonValue] = {SOURCE: {"number": type(scalar).__name__}}
        draft.add(name, state, kind, (), _Constant(scalar), note)


@dataclass(frozen=True, slots=True)
class _Constant:
    """A 0-d slot with a number."""

    number: int | float

    def __call__(self, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out``."""
        out[...] = self.number


def _add_frozen(draft: _Draft, models: Sequence[ModelStates], is_partitioned: bool) -> None:
    """Parameters that the optimizer does not own, and that lie outside the module's state dict."""
    first = models[0]
    for name, shape in first.frozen.items():
        if not is_partitioned and name in first.module:
            continue
        held = []
        for model in models:
            if name not in model.fragments:
                raise refused(f"the frozen parameter {name!r} has a shape and no data", model.file.name)
            held.append((model.file, model.fragments[name]))
        read = partition_source(shape, held) if is_partitioned else Whole(*held[0])
        draft.add(name, "value", held[0][1].dtype, shape, read)


def _add_rest(draft: _Draft, model: ModelStates, is_partitioned: bool) -> None:
    """Buffers, frozen parameters of the state dict, and tied names."""
    first_of: dict[StoredTensor, str] = {}
    for name, held in model.module.items():
        owner = _owner(name, model)
        if math.prod(held.shape) and name not in model.buffers:
            owner = first_of.setdefault(held, owner)
        if name in draft.slots and "value" in draft.slots[name]:
            continue
        if owner != name and owner in model.module and _is_same(held, model.module[owner]):
            draft.aliases.setdefault(owner, []).append(name)
        elif is_partitioned and name not in model.buffers and math.prod(held.shape) == 0:
            raise refused(
                f"{name!r} is empty, and neither a parameter of a group nor frozen", model.file.name
            )
        else:
            draft.add(name, "value", held.dtype, held.shape, Whole(model.file, held))


def _owner(name: str, model: ModelStates) -> str:
    """The name that a tied parameter is kept under."""
    seen = {name}
    while name in model.shared and model.shared[name] not in seen:
        name = model.shared[name]
        seen.add(name)
    return name


def _is_same(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two tensors of one file are one, or both were left out (ZeRO-3)."""
    return one == other or (math.prod(one.shape) == 0 == math.prod(other.shape))


def _check_names(draft: _Draft, model: ModelStates) -> None:
    for alias, owner in model.shared.items():
        if _owner(alias, model) not in draft.slots:
            raise refused(f"{alias!r} is tied to {owner!r}, which is not there", model.file.name)


def _state(
    models: Sequence[ModelStates],
    ranks: Sequence[OptimizerStates],
    groups: Sequence[tuple[list[str], Mapping[str, Any]]],
) -> StateDocument:
    """Values of the first rank, those of others where they differ, and the parameter groups."""
    values: dict[str, JsonValue] = {}
    for rank, model in enumerate(models):
        for key, value in model.values.items():
            found = _encoded(model.file, key, value)
            if rank == 0:
                values[key] = found
            elif values.get(key) != found:
                values[f"rank/{rank}/{key}"] = found
    if ranks:
        values[WRAPPER] = _encoded(ranks[0].file, WRAPPER, dict(ranks[0].values))
    elif models[0].optimizer is not None and "optimizer_state_dict" in models[0].optimizer:
        kept = {
            key: value
            for key, value in models[0].optimizer.items()
            if key not in ("optimizer_state_dict", "fp32_groups")
        }
        values[WRAPPER] = _encoded(models[0].file, WRAPPER, kept)
    optimizers = {}
    if groups:
        optimizers[OPTIMIZER] = Optimizer(
            tuple(
                ParameterGroup(
                    tuple(names),
                    {key: _encoded((ranks or models)[0].file, key, value) for key, value in options.items()},
                )
                for names, options in groups
            )
        )
    note: dict[str, JsonValue] = {"kind": KIND, "stage": ranks[0].stage if ranks else 0}
    return StateDocument(values, optimizers, {}, {SOURCE: note})


def _encoded(file: TorchFile, key: str, value: object) -> JsonValue:
    try:
        return encode(file.plain(value), at=key)
    except UcpError as refusal:
        raise error(refusal.code, f"{key!r}: {refusal.message}", at=file.name) from refusal


def _step(model: ModelStates) -> int | None:
    step = model.values.get("global_steps")
    return step if type(step) is int and step >= 0 else None
