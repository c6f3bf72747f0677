"""DeepSpeed's own checkpoints to universal ones (SPEC appendix A): no DeepSpeed, no torch, nothing executed.

A parameter's slots are ``value``, what the module holds; ``master``, the optimizer's copy where that has another data
type; and the optimizer's states under their own names. ZeRO-3 stores no values: they are the master copies, rounded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ucpformat.frameworks.converting.job import Job
from ucpformat.frameworks.converting.shard_patterns import ShardPatterns
from ucpformat.frameworks.deepspeed.directory import DeepSpeedDirectory, missing
from ucpformat.frameworks.deepspeed.draft import Draft
from ucpformat.frameworks.deepspeed.experts import (
    ExpertRanks,
    add_unpartitioned_experts,
    expert_layers,
    with_experts,
)
from ucpformat.frameworks.deepspeed.fields import refused
from ucpformat.frameworks.deepspeed.flat_groups import FlatGroup, flat_groups
from ucpformat.frameworks.deepspeed.layer_files import Stage, read_layers
from ucpformat.frameworks.deepspeed.parts import Part, Position, joined_stages
from ucpformat.frameworks.deepspeed.sources import AgreeingSources, CastSource, EqualSources, ReadBox, Whole
from ucpformat.frameworks.deepspeed.state_values import state_document, step_of
from ucpformat.frameworks.deepspeed.states import ModelStates, OptimizerStates
from ucpformat.frameworks.deepspeed.tensor_parallel import merged_draft
from ucpformat.frameworks.deepspeed.torch_file import TorchFile
from ucpformat.frameworks.deepspeed.unnamed_stages import StageSettings, named_slices, named_stages
from ucpformat.frameworks.deepspeed.unpartitioned import unpartitioned_states
from ucpformat.frameworks.deepspeed.zero import round_robin_order
from ucpformat.model.dtype import dtype

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["KIND", "import_deepspeed"]


KIND: Final = "deepspeed"


def import_deepspeed(path: str | os.PathLike[str], settings: Mapping[str, str] | None = None) -> Job:
    """Plan the conversion of a directory that DeepSpeed saved into, or of one tag in it; no tensor is read yet.

    ``settings`` may name patterns (`shard_patterns`), by which tensor-parallel shards without affine maps are merged,
    and say of a pipeline without ZeRO what its files do not (`unnamed_stages`).

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for what is damaged, incomplete, of two saves or of a kind that is not
            read; ``UCP-E-PICKLE`` for a pickle that asks for more than plain data; the file is named.
    """
    directory = DeepSpeedDirectory.open(path)
    positions = [_position(directory, number) for number in range(directory.model_degree)]
    note: dict[str, JsonValue] = {
        "kind": KIND,
        "stage": positions[0].ranks[0].stage if positions[0].ranks else 0,
        "world_size": len(positions[0].ranks) or _world_size(positions[0].model),
    }
    if prefixes := expert_layers(positions[0].model):
        note["expert_layers"] = list(prefixes)
    if directory.layers:
        parts = _pipeline_parts(directory, positions, note, settings or {})
    else:
        parts = [_part(position, directory) for position in positions]
        if len(parts) > 1:
            parts = [_tensor_parallel(parts, len(parts), settings or {})]
    first = parts[0]
    draft, groups = (first.draft, first.groups) if len(parts) == 1 else joined_stages(parts)
    wrapper = _wrapper(first.position.ranks, first.position.model)
    file = (first.position.ranks or first.position.models)[0].file
    return Job(
        atoms=draft.atoms(),
        sources=draft.slot_sources(),
        state=state_document(
            first.position.models,
            wrapper,
            groups,
            file,
            note,
            [position.model for position in positions[1:]],
        ),
        step=step_of(first.position.model),
    )


def _world_size(model: ModelStates) -> int:
    """How many data-parallel ranks there were without ZeRO, where one saves for all."""
    found = model.values.get("dp_world_size")
    return found if type(found) is int and found > 0 else 1


def _position(directory: DeepSpeedDirectory, number: int) -> Position:
    """What the files of one model-parallel rank say, tensors aside."""
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
    first = models[0]
    if ranks and first.groups is None:
        tensor_degree = 1 + max((rank for _, rank in directory.layers), default=0)
        models[0] = first = named_slices(directory, ranks, first, number % tensor_degree)
    sharers = None
    if directory.experts or directory.expert_optimizer:
        models[0] = first = with_experts(directory, first)
        sharers = ExpertRanks(first, ranks)
    flat = list(flat_groups(ranks, first.groups or (), first.file.name, sharers)) if ranks else []
    return Position(models, ranks, flat)


def _part(position: Position, directory: DeepSpeedDirectory, names: Mapping[int, str] | None = None) -> Part:
    """The atoms of one model-parallel rank; ``names`` are those of its optimizer's numbers, where they are known."""
    is_partitioned = directory.is_partitioned
    draft = Draft()
    groups: list[tuple[list[str], Mapping[str, Any]]] = []
    first, ranks = position.model, position.ranks
    if ranks:
        groups = [([], options) for options in ranks[0].options]
        for group in position.flat:
            groups[group.options][0].extend(_in_order(group, first))
            _add_group(draft, group, first, is_shared_by_all=len(group.ranks) == len(ranks))
    elif directory.expert_optimizer:
        add_unpartitioned_experts(directory, first, draft, groups)
    elif first.optimizer is not None:
        for name, slot, kind, shape, read in unpartitioned_states(first, groups, names=names):
            draft.add(name, slot, kind, shape, read)
    draft.add_frozen(position.models, is_partitioned)
    draft.add_rest(first, is_partitioned)
    draft.check_tied(first)
    if not ranks:
        draft.check_masters(first.file.name)
    return Part(position, draft, groups)


def _pipeline_parts(
    directory: DeepSpeedDirectory,
    positions: Sequence[Position],
    note: dict[str, JsonValue],
    settings: Mapping[str, str],
) -> list[Part]:
    """One part of each stage, of whole tensors."""
    tensor_degree = 1 + max(rank for _, rank in directory.layers)
    stages, rest = divmod(len(positions), tensor_degree)
    first = positions[0].model
    dims = first.values.get("checkpoint_parallel_dimensions")
    said = (
        (stages, tensor_degree)
        if not isinstance(dims, dict)
        else (dims.get("pp_degree"), dims.get("tp_degree"))
    )
    if rest or said != (stages, tensor_degree):
        raise refused(
            f"{len(positions)} model-parallel ranks whose layers are of {tensor_degree} tensor-parallel ones: "
            f"its stages and ranks are {said}",
            first.file.name,
        )
    chosen = StageSettings.read(settings)
    parts: list[list[Part]] = [[] for _ in range(stages)]
    for tensor_rank in range(tensor_degree):
        mine = positions[tensor_rank::tensor_degree]
        models = [position.model for position in mine]
        names: list[Mapping[int, str] | None] = [None] * stages
        if not any(position.ranks for position in mine):
            named = named_stages(directory, models, tensor_rank, chosen)
            models, names = [stage.model for stage in named], [stage.names for stage in named]
        held = [Stage(model, position.flat) for model, position in zip(models, mine, strict=True)]
        found = read_layers(directory, held, tensor_rank, chosen.ties)
        for stage, (position, model) in enumerate(zip(mine, found.models, strict=True)):
            part = _part(replace(position, models=[model]), directory, names[stage])
            for name, file, stored in found.copies:
                part.draft.add_copy(name, file, stored)
            parts[stage].append(part)
        if tensor_rank == 0:
            note |= {
                "first_layers": list(chosen.first or found.first),
                "ties": {tie: list(held) for tie, held in found.ties.items()},
            }
    for others in parts:
        _check_step(first, others[0].position.model)
    return [
        _tensor_parallel(held, tensor_degree, settings, stages) if len(held) > 1 else held[0]
        for held in parts
    ]


def _check_step(first: ModelStates, model: ModelStates) -> None:
    if repr(model.values.get("global_steps")) != repr(first.values.get("global_steps")):
        raise refused(f"of another step than {first.file.name}: from two saves", model.file.name)


def _tensor_parallel(
    parts: Sequence[Part], degree: int, settings: Mapping[str, str], stages: int = 1
) -> Part:
    """One part of those of all tensor-parallel ranks of a stage."""
    _check_tensor_parallel(parts, degree, stages)
    models = [part.position.model for part in parts]
    patterns = ShardPatterns.of_settings(settings, degree, list(parts[0].draft.slots))
    return replace(parts[0], draft=merged_draft([part.draft for part in parts], models, patterns))


def _check_tensor_parallel(parts: Sequence[Part], degree: int, stages: int) -> None:
    """Refuse pipeline stages without layer files, and model-parallel ranks that are not of one save."""
    first = parts[0].position.model
    dims = first.values.get("checkpoint_parallel_dimensions")
    if not isinstance(dims, dict) or dims.get("pp_degree") != stages or dims.get("tp_degree") != degree:
        raise refused(
            f"{degree} model-parallel ranks that are not {degree} tensor-parallel ones of one stage: {dims}",
            first.file.name,
        )
    for part in parts[1:]:
        model = part.position.model
        _check_step(first, model)
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


def _add_group(draft: Draft, group: FlatGroup, model: ModelStates, *, is_shared_by_all: bool) -> None:
    """Slots of all parameters of a flat group; of one that few ranks share it is not said where it was."""
    for name, shape in group.shapes.items():
        master_kind = group.masters[0].dtype
        held = model.module.get(name)
        if held is None:
            raise refused(f"the module lacks {name!r}, which the optimizer has", model.file.name)
        master = group.source(name, group.masters)
        is_whole = group.ranks[0].stage != 3
        placed = group.places[name] if is_shared_by_all else None
        if is_whole and held.shape != shape:
            raise refused(
                f"{name!r} has shape {list(held.shape)}, its group says {list(shape)}", model.file.name
            )
        value: ReadBox = master
        if held.dtype != master_kind:
            draft.add(name, "master", master_kind, shape, master, placed=placed)
            value = CastSource(master, dtype(master_kind).numpy)
        if is_whole:
            whole, at = Whole(model.home(name), held), group.ranks[0].file.name
            value = (
                EqualSources(whole, master, name, at)
                if held.dtype == master_kind
                else AgreeingSources(whole, value, name, at)
            )
        draft.add(name, "value", held.dtype, shape, value)
        for state, stored in group.states.items():
            read = group.source(name, stored)
            draft.add(name, state, stored[0].dtype, shape, read, placed=placed)
        for state, scalar in group.scalars.items():
            draft.add_scalar(name, state, scalar, group.ranks[0].file)
