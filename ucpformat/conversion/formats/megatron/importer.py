"""``torch_dist`` to universal checkpoint: atoms by parameter, as Megatron stores them, the rest as values."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ucpformat.conversion.contract.foreign import PICKLE, ForeignObjects, Lost
from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.conversion.contract.map_choice import apply_maps
from ucpformat.conversion.contract.sources import AgreeingSources, CastSource, EqualSources
from ucpformat.conversion.dcp_files.directory import DcpDirectory
from ucpformat.conversion.dcp_files.tensors import TensorSource, grid_layout
from ucpformat.conversion.formats.megatron.classic_run import bucket_sizes
from ucpformat.conversion.formats.megatron.flat_states import (
    PARAM,
    as_reshardable,
    flattened_source,
    read_flat_states,
)
from ucpformat.conversion.formats.megatron.parameter_groups import (
    OPTIMIZER,
    STEP,
    Number,
    Parameter,
    optimizer_of,
    stacked_dims,
    stored_groups,
)
from ucpformat.conversion.formats.megatron.torch_dist import (
    COMMON,
    COMMON_GLOBALS,
    MASTER,
    assign,
    check_configuration,
    is_sharded_object,
    named,
    state_key,
)
from ucpformat.errors import UcpError, error
from ucpformat.model.dtype import dtype
from ucpformat.model.state import StateDocument
from ucpformat.state_dict.keys.origins import slot_annotations, state_annotations
from ucpformat.tensor_files.allowed_globals import STREAM_GLOBALS
from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.tagged import encode
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ucpformat.conversion.contract.job import ReadBox
    from ucpformat.conversion.formats.megatron.flat_states import FlatStates
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.state import Optimizer

__all__ = ["import_torch_dist"]

_EXTRA_STATE: Final = "._extra_state/"
_ITERATION: Final = re.compile(r"iter_(\d{7,18})")


def import_torch_dist(
    path: str | os.PathLike[str],
    *,
    foreign_objects: ForeignObjects = "refuse",
    settings: Mapping[str, str] | None = None,
) -> Job:
    """Plan the conversion of a ``torch_dist`` directory; nothing in it is executed, no tensor is read yet.

    Stacked layers and experts stay stacked; the annotation of a slot keeps its key. Every top-level entry of
    ``common.pt`` becomes a value of its name, every ShardedObject one of its key. ``iteration`` is the step. The groups
    of the optimizer are there with their atoms, too, and its steps in slots. States in flat buffers become those of
    their parameters (`flat_states`), as if they had been saved as ``fully_reshardable``, unless ``settings`` have
    ``buckets=kept``; ``map`` and ``map_parameters`` there give atoms other names.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for what is damaged, incomplete or of another backend, ``UCP-E-PICKLE``
            and ``UCP-E-OBJECT`` for objects that are not plain data. ``foreign_objects`` ``opaque`` carries a
            ShardedObject as its bytes instead; modules' extra states that are streams of bytes always are.
    """
    files = SourceFiles(Path(path))
    check_configuration(files)
    directory = DcpDirectory.open(path, flattened="list")
    common = TorchFile(files, COMMON, COMMON_GLOBALS)
    values, tree, iteration = _common(common)
    _check_iteration(Path(path), iteration)
    slots: dict[str, dict[str, SlotSpec]] = defaultdict(dict)
    reads: dict[tuple[str, str], ReadBox] = {}
    for key, tensor in directory.tensors.items():
        place = assign(directory.tensors, key)
        if place.slot in slots[place.name]:
            raise error("UCP-E-SOURCE", f"{key!r} is a second {place.slot!r} of {place.name!r}", at=str(path))
        if key in directory.flattened:
            annotations = slot_annotations((state_key(place.name, place.slot),))
            whole = directory.flattened[key]
            slots[place.name][place.slot] = SlotSpec(tensor.dtype, whole, annotations=annotations)
            reads[place.name, place.slot] = flattened_source(directory, key)
            continue
        slots[place.name][place.slot] = SlotSpec(
            tensor.dtype,
            tensor.shape,
            grid_layout([(part.offset, part.shape) for part in tensor.fragments], tensor.shape),
            annotations=slot_annotations((key,)),
        )
        reads[place.name, place.slot] = TensorSource(directory, tensor)
    resolved = _resolve_buffers(directory, common, slots, reads, (settings or {}).get("buckets", "resolved"))
    if resolved is not None or directory.flattened:
        changed = as_reshardable(tree) if resolved is None else resolved.common(tree)
        tree |= changed
        values |= {key: encode(value, at=f"{COMMON}#{key}") for key, value in changed.items()}
    blobs = _read_objects(directory, values, resolved.keys if resolved else frozenset(), foreign_objects)
    optimizers = _add_steps(stored_groups(tree.get("optimizer")), slots, reads)
    job = Job(
        atoms=[AtomSpec(name, specs) for name, specs in slots.items()],
        sources=[SlotSource(*place, read) for place, read in reads.items()],
        state=StateDocument(values, optimizers, {}, state_annotations("megatron-torch-dist", {}, {})),
        blobs={key: (PICKLE, data) for key, data in blobs.items()},
        step=iteration,
    )
    if not settings or "map" not in settings:
        return job
    mapped, unmapped = apply_maps(job, settings)
    return replace(mapped, dropped=[Lost(what, "the atom map says so") for what in unmapped])


def _read_objects(
    directory: DcpDirectory,
    values: dict[str, JsonValue],
    known: frozenset[str],
    foreign_objects: ForeignObjects,
) -> dict[str, bytes]:
    """Add sharded objects to ``values``, but for those that are ``known``; returns those that are carried as bytes."""
    blobs: dict[str, bytes] = {}
    for key in directory.objects:
        if key in values or not is_sharded_object(key):
            raise error("UCP-E-SOURCE", f"{key!r} is not the key of a sharded object", at=str(directory.path))
        if key in known:
            continue
        directory.verify(key)
        is_extra = _EXTRA_STATE in key
        try:
            # TransformerEngine keeps bytes of its own in an extra state.
            also_allowed = {**COMMON_GLOBALS, **(STREAM_GLOBALS if is_extra else {})}
            values[key] = encode(named(directory.read_object(key, also_allowed=also_allowed)), at=key)
        except UcpError as refusal:
            if refusal.code not in ("UCP-E-PICKLE", "UCP-E-OBJECT"):
                raise
            # A stream of bytes is known, and no plain data; what names anything else is not passed on unasked.
            is_stream = is_extra and refusal.code == "UCP-E-OBJECT"
            if foreign_objects == "refuse" and not is_stream:
                remedy = "carry it as opaque bytes (--foreign-objects opaque), or save without it"
                at = f"{directory.path}#{key}"
                raise error(refusal.code, f"{refusal.message}; {remedy}", at=at) from refusal
            blobs[key] = directory.read_object_bytes(key)
    return blobs


def _resolve_buffers(
    directory: DcpDirectory,
    common: TorchFile,
    slots: dict[str, dict[str, SlotSpec]],
    reads: dict[tuple[str, str], ReadBox],
    choice: str,
) -> FlatStates | None:
    """Put states that lie in flat buffers where those of parameters are; None where they stay in their buffers."""
    if choice not in ("resolved", "kept"):
        raise error("UCP-E-PATTERN", f"buckets is resolved or kept, not {choice!r:.40}", at="buckets")
    if choice == "kept":
        return None
    args = common.tree.get("args") if isinstance(common.tree, dict) else None
    said: Mapping[str, Any] = (
        args.state if isinstance(args, Instance) and isinstance(args.state, dict) else {}
    )
    degree = said.get("tensor_model_parallel_size")
    flat_states = read_flat_states(
        directory,
        {
            name: (held["value"].dtype, reads[name, "value"])
            for name, held in slots.items()
            if "value" in held
        },
        tensor_parallel=degree if type(degree) is int and degree > 0 else None,
        bucket_sizes=bucket_sizes(said),
    )
    if flat_states is None:
        return None
    for key in flat_states.keys & slots.keys():
        del slots[key], reads[key, "value"]
    for name, states in flat_states.sources.items():
        value = slots[name]["value"]
        for state, (kind, source) in states.items():
            slot = MASTER if state == PARAM else state
            annotations = slot_annotations((state_key(name, slot),))
            slots[name][slot] = SlotSpec(kind, value.shape, annotations=annotations)
            reads[name, slot] = source
        kind, source = states[PARAM]
        known = reads[name, "value"]
        reads[name, "value"] = (
            EqualSources(known, source, name, str(directory.path))
            if kind == value.dtype
            else AgreeingSources(known, CastSource(source, dtype(kind).numpy), name, str(directory.path))
        )
    return flat_states


def _add_steps(
    groups: Sequence[tuple[Mapping[str, Any], float | None]] | None,
    slots: Mapping[str, dict[str, SlotSpec]],
    reads: dict[tuple[str, str], ReadBox],
) -> dict[str, Optimizer]:
    """Return parameter groups with their atoms, and a step for every parameter, which other frameworks ask for.

    Megatron's own entries are carried beside them, and are what goes back.
    """
    trained = [
        Parameter(name, specs["value"].shape)
        for name, specs in slots.items()
        if "value" in specs and len(specs) > 1 and STEP not in specs
    ]
    made = optimizer_of(groups, trained) if groups and trained else None
    if made is None:
        return {}
    optimizer, steps = made
    for parameter in trained:
        if parameter.name in steps:
            shape = parameter.shape[: stacked_dims(parameter.name)]
            slots[parameter.name][STEP] = SlotSpec("float32", shape)
            reads[parameter.name, STEP] = Number(steps[parameter.name])
    return {OPTIMIZER: optimizer}


def _check_iteration(path: Path, iteration: int | None) -> None:
    """Check the iteration against the name of the directory, where Megatron-LM has it too."""
    named = _ITERATION.fullmatch(Path(os.path.abspath(path)).name)
    if named is not None and iteration is not None and int(named[1]) != iteration:
        raise error(
            "UCP-E-SOURCE",
            f"of iteration {iteration}, the directory {named[0]} is of another: from two saves",
            at=COMMON,
        )


def _common(common: TorchFile) -> tuple[dict[str, JsonValue], dict[str, Any], int | None]:
    """Return the top-level entries as tagged values and as plain data, and the iteration."""
    if type(common.tree) is not dict or not all(type(name) is str for name in common.tree):
        raise error("UCP-E-SOURCE", "the common state is not a dict by name", at=COMMON)
    tree = {name: common.plain(value) for name, value in common.tree.items()}
    values = {name: encode(value, at=f"{COMMON}#{name}") for name, value in tree.items()}
    iteration = tree.get("iteration")
    return values, tree, iteration if type(iteration) is int and iteration >= 0 else None
