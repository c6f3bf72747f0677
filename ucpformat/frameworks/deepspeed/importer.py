"""DeepSpeed's own checkpoints to universal ones (SPEC appendix A): no DeepSpeed, no torch, nothing executed.

A parameter's slots are ``value``, what the module holds; ``master``, the optimizer's copy where that has another data
type; and the optimizer's states under their own names. ZeRO-3 stores no values: they are the master copies, rounded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ucpformat.errors import error
from ucpformat.frameworks.conversion import Job
from ucpformat.frameworks.deepspeed.directory import DeepSpeedDirectory, missing
from ucpformat.frameworks.deepspeed.draft import Draft
from ucpformat.frameworks.deepspeed.fields import refused
from ucpformat.frameworks.deepspeed.flat_groups import FlatGroup, flat_groups
from ucpformat.frameworks.deepspeed.sources import AgreeingSources, CastSource, EqualSources, ReadBox, Whole
from ucpformat.frameworks.deepspeed.state_values import state_document, step_of
from ucpformat.frameworks.deepspeed.states import ModelStates, OptimizerStates
from ucpformat.frameworks.deepspeed.tensor_parallel import merged_draft
from ucpformat.frameworks.deepspeed.torch_file import TorchFile
from ucpformat.frameworks.deepspeed.unpartitioned import unpartitioned_states
from ucpformat.frameworks.deepspeed.zero import round_robin_order
from ucpformat.model.dtype import dtype

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["KIND", "import_deepspeed"]


KIND: Final = "deepspeed"


def import_deepspeed(path: str | os.PathLike[str]) -> Job:
    """Plan the conversion of a directory that DeepSpeed saved into, or of one tag in it; no tensor is read yet.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for what is damaged, incomplete, of two saves or of a kind that is not
            read; ``UCP-E-PICKLE`` for a pickle that asks for more than plain data; the file is named.
    """
    directory = DeepSpeedDirectory.open(path)
    if directory.layers or directory.experts:
        raise error(
            "UCP-E-SOURCE",
            "saved under pipeline or expert parallelism, which this importer does not read",
            at=str(directory.files.root),
        )
    parts = [_part(directory, number) for number in range(directory.model_degree)]
    first = parts[0]
    draft = first.draft
    if len(parts) > 1:
        _check_tensor_parallel(parts, directory)
        draft = merged_draft([part.draft for part in parts], [part.models[0] for part in parts])
    note: dict[str, JsonValue] = {
        "kind": KIND,
        "stage": first.ranks[0].stage if first.ranks else 0,
        "world_size": len(first.ranks) or 1,
    }
    wrapper = _wrapper(first.ranks, first.models[0])
    file = (first.ranks or first.models)[0].file
    others = [part.models[0] for part in parts[1:]]
    return Job(
        atoms=draft.atoms(),
        sources=draft.slot_sources(),
        state=state_document(first.models, wrapper, first.groups, file, note, others),
        step=step_of(first.models[0]),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """What the files of one model-parallel rank hold."""

    draft: Draft
    models: Sequence[ModelStates]
    ranks: Sequence[OptimizerStates]
    groups: Sequence[tuple[list[str], Mapping[str, Any]]]


def _part(directory: DeepSpeedDirectory, number: int) -> _Part:
    models = [
        ModelStates.read(TorchFile(directory.files, name))
        for (_, model), name in sorted(directory.model.items())
        if model == number
    ]
    ranks = [
        OptimizerStates.read(TorchFile(directory.files, name))
        for (_, model), name in sorted(directory.optimizer.items())
        if model == number
    ]
    _check_saves(models, ranks, directory)
    draft = Draft()
    groups: list[tuple[list[str], Mapping[str, Any]]] = []
    first = models[0]
    if ranks:
        groups = [([], options) for options in ranks[0].options]
        for group in flat_groups(ranks, first.groups or (), first.file.name):
            groups[group.options][0].extend(_in_order(group, first))
            _add_group(draft, group, first)
    elif first.optimizer is not None:
        for name, slot, kind, shape, read in unpartitioned_states(first, groups):
            draft.add(name, slot, kind, shape, read)
    draft.add_frozen(models, directory.is_partitioned)
    draft.add_rest(first, directory.is_partitioned)
    draft.check_tied(first)
    return _Part(draft, models, ranks, groups)


def _check_tensor_parallel(parts: Sequence[_Part], directory: DeepSpeedDirectory) -> None:
    """Refuse pipeline stages, and model-parallel ranks that are not of one save."""
    first = parts[0].models[0]
    dims = first.values.get("checkpoint_parallel_dimensions")
    if not isinstance(dims, dict) or dims.get("pp_degree") != 1 or dims.get("tp_degree") != len(parts):
        raise refused(
            f"{len(parts)} model-parallel ranks that are not {len(parts)} tensor-parallel ones of one stage: {dims}",
            first.file.name,
        )
    for part in parts[1:]:
        model = part.models[0]
        if repr(model.values.get("global_steps")) != repr(first.values.get("global_steps")):
            raise refused(f"of another step than {first.file.name}: from two saves", model.file.name)
        if [names for names, _ in part.groups] != [names for names, _ in parts[0].groups]:
            raise refused(f"other parameters than {first.file.name}: from two saves", model.file.name)


def _wrapper(ranks: Sequence[OptimizerStates], model: ModelStates) -> Mapping[str, Any] | None:
    """What DeepSpeed's optimizer keeps around torch's, beside the tensors."""
    if ranks:
        return ranks[0].values
    if model.optimizer is None or "optimizer_state_dict" not in model.optimizer:
        return None
    tensors = ("optimizer_state_dict", "fp32_groups")
    return {key: value for key, value in model.optimizer.items() if key not in tensors}


def _in_order(group: FlatGroup, model: ModelStates) -> list[str]:
    """Names of a group as the optimizer was given them: ``round_robin_gradients`` reorders the buffer alone."""
    names = list(group.shapes)
    config = model.values.get("ds_config")
    zero = config.get("zero_optimization") if isinstance(config, dict) else None
    if (
        group.ranks[0].stage == 3
        or not isinstance(zero, dict)
        or zero.get("round_robin_gradients") is not True
    ):
        return names
    order = round_robin_order(len(names), len(group.ranks))
    return [name for _, name in sorted(zip(order, names, strict=True))]


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


def _add_group(draft: Draft, group: FlatGroup, model: ModelStates) -> None:
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
            draft.add(name, "master", master_kind, shape, master, placed=group.places[name])
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
            read = group.source(name, stored)
            draft.add(name, state, stored[0].dtype, shape, read, placed=group.places[name])
        for state, scalar in group.scalars.items():
            draft.add_scalar(name, state, scalar, group.ranks[0].file)
