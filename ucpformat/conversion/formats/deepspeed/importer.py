"""DeepSpeed's own checkpoints to universal ones (SPEC appendix A): no DeepSpeed, no torch, nothing executed.

A parameter's slots are ``value``, what the module holds; ``master``, the optimizer's copy where that has another data
type; and the optimizer's states under their own names. ZeRO-3 stores no values: they are the master copies, rounded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ucpformat.conversion.contract.job import Job, ReadBox
from ucpformat.conversion.contract.shard_patterns import ShardPatterns
from ucpformat.conversion.contract.sources import AgreeingSources, CastSource, EqualSources, Whole
from ucpformat.conversion.formats.deepspeed.experts.groups import (
    ExpertRanks,
    add_unpartitioned_experts,
    are_shared,
    expert_layers,
    with_experts,
    without_experts,
)
from ucpformat.conversion.formats.deepspeed.files.directory import DeepSpeedDirectory
from ucpformat.conversion.formats.deepspeed.files.model_draft import ModelDraft
from ucpformat.conversion.formats.deepspeed.files.one_save import check_one_save, check_step
from ucpformat.conversion.formats.deepspeed.files.state_values import state_document, step_of
from ucpformat.conversion.formats.deepspeed.files.states import ModelStates, OptimizerStates
from ucpformat.conversion.formats.deepspeed.pipeline.joined_stages import RankAtoms, RankFiles, joined_stages
from ucpformat.conversion.formats.deepspeed.pipeline.layer_files import read_layers
from ucpformat.conversion.formats.deepspeed.pipeline.tied_layers import Stage, own_name
from ucpformat.conversion.formats.deepspeed.pipeline.unnamed_stages import (
    StageSettings,
    named_slices,
    named_stages,
)
from ucpformat.conversion.formats.deepspeed.tensor_parallel.merging import merged_draft
from ucpformat.conversion.formats.deepspeed.zero.flat_groups import FlatGroup, Sharers, flat_groups
from ucpformat.conversion.formats.deepspeed.zero.layouts import round_robin_order
from ucpformat.conversion.formats.deepspeed.zero.unpartitioned import unpartitioned_states
from ucpformat.model.dtype import dtype
from ucpformat.tensor_files.fields import refused
from ucpformat.tensor_files.torch_file import rank_file

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["FORMAT", "import_deepspeed"]


FORMAT: Final = "deepspeed"


def import_deepspeed(path: str | os.PathLike[str], settings: Mapping[str, str] | None = None) -> Job:
    """Plan the conversion of a directory that DeepSpeed saved into, or of one tag in it; no tensor is read yet.

    ``settings`` may name patterns (`shard_patterns`), by which tensor-parallel shards without affine maps are merged,
    and say of a pipeline without ZeRO what its files do not (`unnamed_stages`).

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for what is damaged, incomplete, of two saves or of a form that is not
            read; ``UCP-E-PICKLE`` for a pickle that asks for more than plain data; the file is named.
    """
    directory = DeepSpeedDirectory.open(path)
    has_shared = are_shared(directory)
    by_rank = [
        _rank_files(directory, number, has_shared=has_shared) for number in range(directory.model_degree)
    ]
    if not directory.layers:
        by_rank = _with_tied_names(by_rank)
    note: dict[str, JsonValue] = {
        "kind": FORMAT,
        "stage": by_rank[0].ranks[0].stage if by_rank[0].ranks else 0,
        "world_size": len(by_rank[0].ranks) or _world_size(by_rank[0].model),
    }
    if not has_shared:
        by_rank = _with_all_counts(by_rank)
    if directory.layers or (directory.experts and _degrees(by_rank[0].model)[0] > 1):
        model_ranks = _stage_atoms(directory, by_rank, note, settings or {})
    else:
        frozen = StageSettings.read(settings or {}).frozen
        model_ranks = [_rank_atoms(files, directory, frozen=frozen) for files in by_rank]
        if len(model_ranks) > 1:
            model_ranks = [_tensor_parallel(model_ranks, len(model_ranks), settings or {})]
    if has_shared:
        model_ranks.append(_shared_experts(directory, by_rank))
    models = [rank.files.model for rank in model_ranks]
    if prefixes := dict.fromkeys(prefix for model in models for prefix in expert_layers(model)):
        note["expert_layers"] = list(prefixes)
    blobs, lost = directory.companions()
    behind = max((rank.unseen for rank in model_ranks), default=0)
    absent = [directory.layer_name(layer, 0) for layer in directory.layers_without_files]
    first = model_ranks[0]
    draft, groups = (first.draft, first.groups) if len(model_ranks) == 1 else joined_stages(model_ranks)
    wrapper = _wrapper(first.files.ranks, first.files.model)
    file = (first.files.ranks or first.files.models)[0].file
    return Job(
        atoms=draft.atoms(),
        sources=draft.slot_sources(),
        state=state_document(
            first.files.models,
            wrapper,
            groups,
            file,
            note,
            [files.model for files in by_rank[1:]],
        ),
        blobs=blobs,
        step=step_of(first.files.model),
        dropped=[*lost, *draft.lost_atoms(absent), *directory.layers_in_doubt(behind)],
    )


def _with_tied_names(by_rank: Sequence[RankFiles]) -> list[RankFiles]:
    """Return rank files that know which names are tied: DeepSpeed writes ``shared_params`` on global rank 0 alone."""
    shared = by_rank[0].model.shared
    return [
        replace(
            files,
            models=[
                replace(model, shared={name: owner for name, owner in shared.items() if name in model.module})
                if not model.shared
                else model
                for model in files.models
            ],
        )
        for files in by_rank
    ]


def _with_all_counts(by_rank: Sequence[RankFiles]) -> list[RankFiles]:
    """Return rank files whose models list the experts of all stages; each saved those of its own."""
    step = max(_degrees(by_rank[0].model)[1], 1)
    counts = [count for files in by_rank[::step] for count in files.model.values.get("num_experts", [])]
    return [
        replace(
            files,
            models=[
                replace(model, values={**model.values, "num_experts": counts})
                if "num_experts" in model.values
                else model
                for model in files.models
            ],
        )
        for files in by_rank
    ]


def _world_size(model: ModelStates) -> int:
    """Return how many data-parallel ranks there were without ZeRO, where one saves for all."""
    size = model.values.get("dp_world_size")
    return size if type(size) is int and size > 0 else 1


def _degrees(model: ModelStates) -> tuple[int, int]:
    """Return pipeline stages and tensor-parallel ranks, as a model file has them; 0 where it does not say."""
    dims = model.values.get("checkpoint_parallel_dimensions")
    degrees = [dims.get(name) for name in ("pp_degree", "tp_degree")] if isinstance(dims, dict) else [0, 0]
    stages, ranks = (degree if type(degree) is int else 0 for degree in degrees)
    return stages, ranks


def _rank_files(directory: DeepSpeedDirectory, number: int, *, has_shared: bool) -> RankFiles:
    """Return what the files of one model-parallel rank say, tensors aside; ``has_shared``: and shared experts aside."""
    models = [
        ModelStates.read(rank_file(directory.files, name))
        for (_, model), name in sorted(directory.model.items())
        if model == number
    ]
    ranks = [
        OptimizerStates.read(rank_file(directory.files, name))
        for (_, model), name in sorted(directory.optimizer.items())
        if model == number
    ]
    check_one_save(models, ranks, directory)
    first = models[0]
    is_clear = directory.experts and first.groups is not None and not has_shared
    if first.values.get("num_experts") and not is_clear:
        # What is missing would show elsewhere, too, but without its name.
        with_experts(directory, first, None if has_shared else number)
    if ranks and first.groups is None:
        tensor_degree = 1 + max((rank for _, rank in directory.layers), default=0)
        models[0] = first = named_slices(directory, ranks, first, number % tensor_degree)
    sharers: Sharers | None = None
    if has_shared:
        if not ranks:
            with_experts(directory, first)  # which refuses where files of experts are missing
            raise refused(
                "whole experts under tensor parallelism are read with ZeRO alone; save with ZeRO-1",
                first.file.name,
            )
        sharers = partial(without_experts, ranks)
    elif "num_experts" in first.values or (directory.experts and directory.model_degree == 1):
        models[0] = first = with_experts(directory, first, number)
        sharers = ExpertRanks(first, ranks)
    flat = list(flat_groups(ranks, first.groups or (), first.file.name, sharers)) if ranks else []
    return RankFiles(models, ranks, flat, number)


def _shared_experts(directory: DeepSpeedDirectory, by_rank: Sequence[RankFiles]) -> RankAtoms:
    """Return the experts where tensor-parallel ranks, which are next to each other, have whole ones."""
    for files in by_rank[1:]:
        if len(files.ranks) != len(by_rank[0].ranks):
            raise refused("there are files of other data-parallel ranks here", files.model.file.name)
    ranks = [rank for held in zip(*(files.ranks for files in by_rank), strict=True) for rank in held]
    model = with_experts(directory, by_rank[0].model)
    sharers = ExpertRanks(model, ranks, has_others=False)
    flat = list(flat_groups(ranks, model.groups or (), model.file.name, sharers))
    experts = {name: held for name, held in model.module.items() if name in model.homes}
    model = replace(model, module=experts, frozen={}, fragments={}, shared={})
    return _rank_atoms(RankFiles([model], ranks, flat), directory)


def _rank_atoms(
    files: RankFiles,
    directory: DeepSpeedDirectory,
    names: Mapping[int, str] | None = None,
    frozen: Sequence[str] = (),
) -> RankAtoms:
    """Return the atoms of one model-parallel rank.

    ``names`` are those of its optimizer's numbers, where they are known; ``frozen`` globs of what it does not have.
    """
    is_partitioned = directory.is_partitioned
    draft = ModelDraft()
    groups: list[tuple[list[str], Mapping[str, Any]]] = []
    first, ranks = files.model, files.ranks
    if ranks:
        groups = [([], options) for options in ranks[0].options]
        for group in files.flat:
            groups[group.options][0].extend(_in_order(group, first))
            _add_group(draft, group, first, is_shared_by_all=len(group.ranks) == len(ranks))
    elif directory.expert_optimizer:
        add_unpartitioned_experts(directory, first, draft, groups, files.number)
    elif first.optimizer is not None:
        for name, slot, kind, shape, read in unpartitioned_states(first, groups, names=names, frozen=frozen):
            draft.add(name, slot, kind, shape, read)
        draft.derive_values(first)
    draft.add_frozen(files.models, is_partitioned)
    draft.add_rest(first, is_partitioned)
    draft.check_tied(first)
    if not ranks:
        draft.check_masters(first.file.name)
        groups = [([name for name in names if name not in draft.lost], options) for names, options in groups]
    return RankAtoms(files, draft, groups)


def _stage_atoms(
    directory: DeepSpeedDirectory,
    by_rank: Sequence[RankFiles],
    note: dict[str, JsonValue],
    settings: Mapping[str, str],
) -> list[RankAtoms]:
    """Join the tensor-parallel ranks of each stage, so that tensors are whole."""
    first = by_rank[0].model
    said = _degrees(first)[1]
    tensor_degree = 1 + max(rank for _, rank in directory.layers) if directory.layers else max(said, 1)
    stages, rest = divmod(len(by_rank), tensor_degree)
    if rest:
        raise refused(
            f"{len(by_rank)} model-parallel ranks, whose layers are of {tensor_degree} tensor-parallel ones",
            first.file.name,
        )
    chosen = StageSettings.read(settings)
    model_ranks: list[list[RankAtoms]] = [[] for _ in range(stages)]
    for tensor_rank in range(tensor_degree):
        mine = by_rank[tensor_rank::tensor_degree]
        models = [files.model for files in mine]
        names: list[Mapping[int, str] | None] = [None] * stages
        if not any(files.ranks for files in mine) and not directory.expert_optimizer:
            named = named_stages(directory, models, tensor_rank, chosen)
            models, names = [stage.model for stage in named], [stage.names for stage in named]
        held = [
            Stage.of_groups(model, files.flat) if known is None else Stage.of_numbers(model, known)
            for model, files, known in zip(models, mine, names, strict=True)
        ]
        layers = read_layers(directory, held, tensor_rank, chosen.ties, chosen.first)
        for stage, (files, model) in enumerate(zip(mine, layers.models, strict=True)):
            own = {name: own_name(name, stage) for name in layers.own.get(stage, ())}
            derived = replace(model, derived=frozenset(layers.derived.get(stage, ())))
            held_here = _with_own_names(replace(files, models=[derived]), own)
            if (known := names[stage]) is not None:
                names[stage] = {number: own.get(name, name) for number, name in known.items()}
            rank = replace(_rank_atoms(held_here, directory, names[stage]), unseen=layers.unseen)
            for name, file, stored in layers.copies:
                rank.draft.add_copy(name, file, stored)
            model_ranks[stage].append(rank)
        if tensor_rank == 0:
            note |= layers.note()
            if chosen.first:
                note["first_layers"] = list(chosen.first)
    for others in model_ranks:
        check_step(first, others[0].files.model)
    return [
        _tensor_parallel(held, tensor_degree, settings) if len(held) > 1 else held[0] for held in model_ranks
    ]


def _with_own_names(files: RankFiles, own: Mapping[str, str]) -> RankFiles:
    """Return a stage whose ``own`` parameters have names that others use for theirs (`tied_layers`)."""
    if not own:
        return files

    def renamed(items: Mapping[str, Any]) -> dict[str, Any]:
        return {own.get(name, name): item for name, item in items.items()}

    model = files.model
    groups = None if model.groups is None else [renamed(group) for group in model.groups]
    buffers = frozenset(own.get(name, name) for name in model.buffers)
    model = replace(
        model, module=renamed(model.module), homes=renamed(model.homes), groups=groups, buffers=buffers
    )
    flat = [
        replace(group, shapes=renamed(group.shapes), places=renamed(group.places)) for group in files.flat
    ]
    return replace(files, models=[model], flat=flat)


def _tensor_parallel(model_ranks: Sequence[RankAtoms], degree: int, settings: Mapping[str, str]) -> RankAtoms:
    """Join the tensor-parallel ranks of a stage."""
    _check_tensor_parallel(model_ranks)
    models = [rank.files.model for rank in model_ranks]
    patterns = ShardPatterns.of_settings(settings, degree, list(model_ranks[0].draft.slots))
    return replace(model_ranks[0], draft=merged_draft([rank.draft for rank in model_ranks], models, patterns))


def _check_tensor_parallel(model_ranks: Sequence[RankAtoms]) -> None:
    """Refuse tensor-parallel ranks that are not of one save."""
    first = model_ranks[0].files.model
    for rank in model_ranks[1:]:
        model = rank.files.model
        check_step(first, model)
        if [names for names, _ in rank.groups] != [names for names, _ in model_ranks[0].groups]:
            raise refused(f"other parameters than {first.file.name}: from two saves", model.file.name)


def _wrapper(ranks: Sequence[OptimizerStates], model: ModelStates) -> Mapping[str, Any] | None:
    """Return what DeepSpeed's optimizer keeps around torch's, beside the tensors."""
    if ranks:
        return ranks[0].values
    if model.optimizer is None or "optimizer_state_dict" not in model.optimizer:
        return None
    tensors = ("optimizer_state_dict", "fp32_groups")
    return {key: value for key, value in model.optimizer.items() if key not in tensors}


def _in_order(group: FlatGroup, model: ModelStates) -> list[str]:
    """Return names of a group as the optimizer was given them: ``round_robin_gradients`` reorders the buffer alone."""
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


def _add_group(draft: ModelDraft, group: FlatGroup, model: ModelStates, *, is_shared_by_all: bool) -> None:
    """Add the slots of all parameters of a flat group; of one that few ranks share it is not said where it was."""
    for name, shape in group.shapes.items():
        master_kind = group.masters[0].dtype
        held = model.module.get(name)
        if held is None:
            raise refused(f"the module lacks {name!r}, which the optimizer has", model.file.name)
        master = group.source(name, group.masters)
        is_whole = group.ranks[0].stage != 3 and name not in model.derived
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
