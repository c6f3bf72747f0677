"""DeepSpeed's universal checkpoints to ours (SPEC appendix A), in either of its dialects.

The states of ``zero/`` are whole tensors; what is not there (frozen parameters, buffers, the data types of the module)
is in the model files, which DeepSpeed copies along and its own loader does not read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from ucpformat.conversion.contract.job import Job, ReadBox
from ucpformat.conversion.contract.sources import (
    AgreeingSources,
    CastSource,
    EqualSources,
    Whole,
    shard_source,
)
from ucpformat.conversion.formats.deepspeed.experts.stacks import ExpertStacks, parts_of
from ucpformat.conversion.formats.deepspeed.files.directory import DeepSpeedDirectory
from ucpformat.conversion.formats.deepspeed.files.model_draft import ModelDraft
from ucpformat.conversion.formats.deepspeed.files.state_values import Groups, state_document, step_of
from ucpformat.conversion.formats.deepspeed.files.states import ModelStates, Shapes
from ucpformat.conversion.formats.deepspeed.pipeline.unnamed_stages import StageSettings
from ucpformat.conversion.formats.deepspeed.tensor_parallel.merging import affine_maps, check_shards
from ucpformat.conversion.formats.deepspeed.universal.exporter import universal_folder
from ucpformat.conversion.formats.deepspeed.universal.stages import UniversalStages, low_dtype
from ucpformat.errors import error
from ucpformat.model.dtype import dtype
from ucpformat.tensor_files.byte_source import contiguous_strides
from ucpformat.tensor_files.fields import integer, items, mapping, member, refused
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.torch_file import TorchFile, rank_file
from ucpformat.tensor_files.torch_zip import StoredTensor

__all__ = ["FORMAT", "import_universal"]

FORMAT: Final = "ds-universal"
_MASTER: Final = "fp32"
_ADAM: Final = ("exp_avg", "exp_avg_sq")
_SUFFIX: Final = ".pt"


def import_universal(path: str | os.PathLike[str], settings: Mapping[str, str] | None = None) -> Job:
    """Plan the conversion of a universal checkpoint; no tensor is read yet.

    ``settings`` may name the layers of ties, ``tied_layers=NAME:0,7``, which are in no file (`universal_stages`).

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for what is damaged, incomplete or contradicts itself, ``UCP-E-PICKLE`` for
            a pickle that asks for more than plain data; the file is named.
    """
    root = universal_folder(path)
    directory = DeepSpeedDirectory.open_universal(root, Path(path))
    if directory.experts:
        raise error("UCP-E-SOURCE", "files of experts, which are not read here", at=str(root))
    files = SourceFiles(root)
    models = _models(directory)
    directory.check_counts(models, ())
    optimizer = TorchFile(files, "zero/optimizer_state.pt")
    tree = mapping(optimizer.tree, "the file", optimizer.name)
    local = _groups(tree, models, optimizer.name)
    number = _number(tree)
    trained = {name for names, _ in local for name in names}
    shapes = {
        name: shape for model in models for group in model.groups or () for name, shape in group.items()
    }
    draft = ModelDraft()
    folders = [name for name in files.names("zero") if not name.endswith(_SUFFIX)]
    for name in sorted(trained - set(folders)):
        raise refused(f"the states of {name!r} are missing", f"zero/{name}/{_MASTER}{_SUFFIX}")
    _require_states(files, local, number, _kept_states(tree))
    stacked = ExpertStacks(files, shapes)
    partitioned = directory.is_partitioned
    stages = None
    if not partitioned and not any(model.module for model in models):
        ties = StageSettings.read(settings or {}).ties
        stages = UniversalStages.read(directory, models, partial(_master, files, shapes), ties)
    held = models[:1] if stages is None else stages.layers.models
    for name in sorted(trained):
        home = next((model for model in held if name in model.module), held[0])
        _add_parameter(draft, files, name, shapes.get(name), home, number, stacked.names(name))
    groups = [(stacked.in_order(names), options) for names, options in local]
    first = held[0]
    if partitioned and directory.model_degree > 1 and first.frozen:
        raise refused("frozen parameters under ZeRO-3 and tensor parallelism are not read", first.file.name)
    draft.add_frozen(models, partitioned)
    for model in held:
        draft.add_rest(model, partitioned)
        draft.check_tied(model)
    if stages is not None:
        for name, file, stored in stages.layers.copies:
            draft.add_copy(name, file, stored)
        draft.aliases |= {name: list(aliases) for name, aliases in stages.aliases.items() if aliases}
    # Of each tensor-parallel rank one; data-parallel ones may have other buffers, of which rank 0's count.
    heads = [model for place, model in zip(sorted(directory.model), models, strict=True) if place[0] == 0]
    _add_whole(draft, heads, trained)
    known = trained if stages is not None else trained | _all_names(draft)
    for name in folders:
        if name not in known:
            raise refused("neither the model nor the optimizer has this parameter", f"zero/{name}")
    blobs, lost = directory.companions()
    wrapper = {
        key: tree[key]
        for key in ("loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad")
        if key in tree
    }
    return Job(
        atoms=draft.atoms(),
        sources=draft.slot_sources(),
        state=state_document(
            models[:1],
            wrapper,
            groups,
            optimizer,
            {"kind": FORMAT, **(stages.note if stages is not None else {})},
            models[1:] if stages is not None else (),
        ),
        blobs=blobs,
        step=step_of(first),
        dropped=[*lost, *directory.layers_in_doubt()],
    )


def _all_names(draft: ModelDraft) -> set[str]:
    return set(draft.slots) | {tied for held in draft.aliases.values() for tied in held}


def _models(directory: DeepSpeedDirectory) -> list[ModelStates]:
    """Return the model files: of ZeRO-3 those of all ranks, else that of each model-parallel rank."""
    return [
        ModelStates.read(rank_file(directory.files, directory.model[place]))
        for place in sorted(directory.model)
    ]


def _groups(
    tree: Mapping[str, Any], models: Sequence[ModelStates], at: str
) -> list[tuple[list[str], Mapping[str, Any]]]:
    """Return parameter groups: options as the optimizer's file has them, names as the model files list them."""
    groups: list[tuple[list[str], Mapping[str, Any]]] = []
    count = 0
    for value in items(member(tree, "param_groups", at), "param_groups", at):
        group = mapping(value, "a parameter group", at)
        names: list[str] = []
        for number in items(member(group, "params", at), "params", at):
            place = integer(number, "params", at)
            count = max(count, place + 1)
            for model in models:
                if model.groups is None or place >= len(model.groups):
                    raise _other_groups(model, place)
                names += [name for name in model.groups[place] if name not in names]
        groups.append((names, {key: item for key, item in group.items() if key != "params"}))
    for model in models:
        if len(model.groups or ()) > count:
            raise _other_groups(model, count)
    return groups


def _other_groups(model: ModelStates, place: int) -> Exception:
    return refused(
        f"group {place} of parameters is not in all stages, and DeepSpeed kept the options of the first one's "
        "groups alone; convert what it saved, not what its converter made",
        model.file.name,
    )


def _number(tree: Mapping[str, Any]) -> object:
    """Return the step that the dialect of ZeRO-3 keeps once for all."""
    return _kept_states(tree).get("step")


def _kept_states(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the states of the first flat group, which the dialect of ZeRO-3 keeps as the first rank had them."""
    inner = tree.get("optimizer_state_dict")
    states = inner.get("state") if isinstance(inner, dict) else None
    first = states.get(0) if isinstance(states, dict) else None
    return first if isinstance(first, dict) else {}


def _require_states(files: SourceFiles, groups: Groups, number: object, kept: Mapping[str, Any]) -> None:
    """Refuse a parameter without a state that it must have had.

    That is every state that another parameter has, Adam's moments where the options are Adam's and any parameter has a
    state, and what the optimizer's file keeps of the first rank's states under ZeRO-3 (``kept``); a step is in there as
    well. Where no parameter has any, the optimizer had taken no step.
    """
    held = {name: files.names(f"zero/{name}") for names, _ in groups for name in names}
    some = {file_name for names in held.values() for file_name in names}
    some |= {f"{name}{_SUFFIX}" for name, value in kept.items() if _has_elements(value)}
    for names, options in groups:
        wanted = {f"{_MASTER}{_SUFFIX}", *some}
        if "betas" in options and some - {f"{_MASTER}{_SUFFIX}"}:
            wanted |= {f"{state}{_SUFFIX}" for state in _ADAM}
            if number is None and "step" not in options:
                wanted.add(f"step{_SUFFIX}")
        for name in names:
            for file_name in sorted(wanted - set(held[name]), reverse=True):
                raise refused(
                    "the file is missing, and other parameters or the options of the optimizer show that it was "
                    "there; copy it, too",
                    f"zero/{name}/{file_name}",
                )


def _has_elements(value: object) -> bool:
    return isinstance(value, StoredTensor) and value.shape != ()


def _add_parameter(
    draft: ModelDraft,
    files: SourceFiles,
    name: str,
    shape: tuple[int, ...] | None,
    model: ModelStates,
    number: object,
    atoms: Sequence[str],
) -> None:
    """Add the slots of a parameter that the optimizer has, or of the experts that are stacked under its name."""
    names = files.names(f"zero/{name}")
    stems = [file_name.removesuffix(_SUFFIX) for file_name in names]
    for file_name in names:
        file = rank_file(files, f"zero/{name}/{file_name}", stems)
        state = file_name.removesuffix(_SUFFIX)
        if state == "step":
            for atom in atoms:
                _add_step(draft, atom, file.tree, file)
            continue
        whole = _whole(file, shape)
        parts = parts_of(whole, whole.shape if shape is None else shape, len(atoms), file.name)
        for atom, stored in zip(atoms, parts, strict=True):
            if state == _MASTER:
                _add_value(draft, atom, stored, file, model)
            else:
                draft.add(atom, state, stored.dtype, stored.shape, Whole(file, stored))
    for atom in atoms:
        if "step" not in draft.slots[atom] and number is not None:
            _add_step(draft, atom, number, TorchFile(files, "zero/optimizer_state.pt"))


def _add_whole(draft: ModelDraft, models: Sequence[ModelStates], trained: set[str]) -> None:
    """Add values of what is not trained, of tensor-parallel ranks: merged as their affine maps say, else equal.

    DeepSpeed's converter merges what is trained alone; of the rest ``zero`` has rank 0's shard.
    """
    first, at = models[0], models[0].file.name
    maps = affine_maps(first) if len(models) > 1 else {}
    for name, held in first.module.items():
        if name in trained or name not in draft.slots or math.prod(held.shape) == 0:
            continue
        shards = [model.module.get(name) for model in models]
        matching = [shard for shard in shards if shard is not None and shard.dtype == held.dtype]
        if len(matching) != len(models):
            raise refused(f"{name!r} is not in all model files, or of another data type: from two saves", at)
        reads = [Whole(model.file, shard) for model, shard in zip(models, matching, strict=True)]
        if (whole := maps.get(name)) is not None:
            check_shards(whole, [shard.shape for shard in matching], name, at)
            draft.add(name, "value", held.dtype, whole.shape, shard_source(whole, reads, name, at))
            continue
        if any(shard.shape != held.shape for shard in matching):
            raise refused(f"{name!r} is split, and no affine map says how", at)
        for model, read in zip(models[1:], reads[1:], strict=True):
            draft.sources[name, "value"] = EqualSources(
                draft.sources[name, "value"], read, name, model.file.name
            )


def _master(files: SourceFiles, shapes: Shapes, name: str) -> tuple[ReadBox, str] | None:
    """Return what ``zero`` has of a parameter."""
    if name not in shapes:
        return None
    file = TorchFile(files, f"zero/{name}/{_MASTER}{_SUFFIX}")
    stored = _whole(file, shapes[name])
    return Whole(file, stored), stored.dtype


def _whole(file: TorchFile, shape: tuple[int, ...] | None) -> StoredTensor:
    """Return the tensor of a state file; a bare one is flat, and gets the shape that the model files list."""
    tree = file.tree
    if isinstance(tree, dict):
        stored = tree.get("param")
        if not isinstance(stored, StoredTensor):
            raise refused("there is no tensor 'param' in it", file.name)
        return stored
    if not isinstance(tree, StoredTensor):
        raise refused(f"it holds a {type(tree).__name__}, not a tensor", file.name)
    if shape is None or tree.shape != (math.prod(shape),):
        raise refused(f"a flat tensor of {list(tree.shape)} elements for the shape {shape}", file.name)
    return replace(tree, shape=shape, strides=contiguous_strides(shape))


def _add_step(draft: ModelDraft, name: str, value: object, file: TorchFile) -> None:
    if not isinstance(value, StoredTensor | int | float) or isinstance(value, bool):
        raise refused(f"the step is a {type(value).__name__}", file.name)
    draft.add_scalar(name, "step", value, file)


def _add_value(
    draft: ModelDraft, name: str, stored: StoredTensor, file: TorchFile, model: ModelStates
) -> None:
    """Add ``value`` and ``master``: the module's weights where the model file has them whole, else these, rounded."""
    held = model.module.get(name)
    kind = (
        held.dtype if held is not None else stored.dtype if model.module else low_dtype(model) or stored.dtype
    )
    master = Whole(file, stored)
    value: ReadBox = master
    if kind != stored.dtype:
        draft.add(name, "master", stored.dtype, stored.shape, master)
        value = CastSource(master, dtype(stored.dtype).numpy)
    if held is not None and held.shape == stored.shape and 0 not in held.shape:
        whole, at = Whole(model.home(name), held), file.name
        value = (
            EqualSources(whole, master, name, at)
            if kind == stored.dtype
            else AgreeingSources(whole, value, name, at)
        )
    draft.add(name, "value", kind, stored.shape, value)
