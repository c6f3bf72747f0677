"""Universal checkpoints to DeepSpeed's own files, for a chosen ZeRO stage and data-parallel degree (SPEC appendix A).

The files are those of DeepSpeed 0.19.8, and what its ``load_checkpoint`` reads; neither it nor torch is needed.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ucpformat.errors import error
from ucpformat.frameworks.converting.out_files import OutFile, OutFiles, text_file
from ucpformat.frameworks.deepspeed.export_settings import DeepSpeedSettings
from ucpformat.frameworks.deepspeed.out_values import VERSION, model_values, wrapper_values
from ucpformat.frameworks.deepspeed.outlines import Group, Outline, Range
from ucpformat.frameworks.deepspeed.stage_outlines import StageOutline, stages_of
from ucpformat.frameworks.deepspeed.torch_writer import Call, OutTensor, archive_file, later_file
from ucpformat.frameworks.deepspeed.zero import ALIGNMENT_FACTOR, partition_size, round_robin_order
from ucpformat.frameworks.kinds.foreign import ExportPlan
from ucpformat.frameworks.torch_dcp.objects import TorchSize

if TYPE_CHECKING:
    from ucpformat.frameworks.converting.content import Content, SlotContent

__all__ = ["export_deepspeed"]


def export_deepspeed(
    content: Content,
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, str],
) -> ExportPlan:
    """Plan a directory for ``load_checkpoint``.

    Raises:
        UcpError: ``UCP-E-EXISTS`` for a directory that is not empty; ``UCP-E-MISMATCH`` for what ZeRO cannot hold;
            ``UCP-E-DTYPE`` and ``UCP-E-OBJECT`` for what torch cannot; what reading raises.
    """
    chosen = DeepSpeedSettings.read(settings, content)
    outline = Outline(content, chosen.buffers)
    stages = stages_of(outline, chosen.pipeline, chosen.ties, chosen.stage)
    flats = [_flat_groups(outline, chosen, stage.groups) for stage in stages]
    parts: list[OutFile] = []
    for number, (stage, flat) in enumerate(zip(stages, flats, strict=True)):
        if chosen.pipeline:
            parts += _stage_files(outline, chosen, stage, flat, number)
        else:
            parts += _model_files(outline, chosen, flat)
        parts += _optimizer_files(outline, chosen, stage.groups, flat, number)
    files = OutFiles(parts, lambda _: [text_file("latest", chosen.tag)])
    ranks = chosen.world_size if chosen.stage == 3 else 1
    return ExportPlan.of_files(len(outline.values), files, path, dropped=outline.left_out(ranks))


def _stage_files(
    outline: Outline,
    chosen: DeepSpeedSettings,
    stage: StageOutline,
    flat: Sequence[_FlatGroup],
    number: int,
) -> Iterator[OutFile]:
    """The files of the layers of one stage, and its model file, which has no tensors."""
    for layer, held in stage.layers.items():
        module = OrderedDict((key, outline.tensor(name, "value")) for key, name in held.items())
        yield archive_file(f"{chosen.tag}/layer_{layer:02d}-model_states.pt", module)
    tree = {
        "module": None,
        "buffer_names": [
            f"{layer}.{key}"
            for layer, held in stage.layers.items()
            for key, name in held.items()
            if outline.role(name) == "buffer"
        ],
        "optimizer": None,
        "param_shapes": _shapes(outline, flat),
        "frozen_param_shapes": None,
        "shared_params": {},
        "frozen_param_fragments": None,
        **model_values(outline),
        "dp_world_size": chosen.world_size,
        "mp_world_size": len(chosen.pipeline),
        "checkpoint_parallel_dimensions": {"pp_degree": len(chosen.pipeline), "tp_degree": 1},
    }
    yield archive_file(f"{chosen.tag}/mp_rank_{number:02d}_model_states.pt", tree)


def _model_files(
    outline: Outline, chosen: DeepSpeedSettings, flat: Sequence[_FlatGroup]
) -> Iterator[OutFile]:
    first = archive_file("first", _model_tree(outline, chosen, flat, 0))
    for rank in range(chosen.world_size) if chosen.stage == 3 else (0,):
        name = f"zero_pp_rank_{rank}_mp_rank_00" if chosen.stage == 3 else "mp_rank_00"
        make = partial(_model_tree, outline, chosen, flat, rank)
        yield later_file(f"{chosen.tag}/{name}_model_states.pt", make, first.nbytes)


def _optimizer_files(
    outline: Outline,
    chosen: DeepSpeedSettings,
    groups: Sequence[Group],
    flat: Sequence[_FlatGroup],
    number: int,
) -> Iterator[OutFile]:
    # What a file cannot hold is found by spelling one out; all ranks have the same parameters, and about as much.
    first = archive_file("first", _optimizer_tree(outline, chosen, groups, flat, 0))
    prefix = "bf16_" if _is_bfloat16(outline) else ""
    for rank in range(chosen.world_size):
        name = f"{prefix}zero_pp_rank_{rank}_mp_rank_{number:02d}_optim_states.pt"
        make = partial(_optimizer_tree, outline, chosen, groups, flat, rank)
        yield later_file(f"{chosen.tag}/{name}", make, first.nbytes)


def _shapes(outline: Outline, flat: Sequence[_FlatGroup]) -> list[OrderedDict[str, TorchSize]]:
    return [OrderedDict((name, TorchSize(outline.shape(name))) for name in group.names) for group in flat]


@dataclass(frozen=True, slots=True)
class _FlatGroup:
    """A flat group to write: parameters in the order of the buffer, and the number of their parameter group."""

    number: int
    names: Sequence[str]
    offsets: Sequence[int]
    part_size: int
    length: int
    """Elements before the padding of the tail, over all ranks; under ZeRO-3 elements of a rank."""


def _flat_groups(outline: Outline, chosen: DeepSpeedSettings, groups: Sequence[Group]) -> list[_FlatGroup]:
    found: list[_FlatGroup] = []
    for number, group in enumerate(groups):
        if not group.names:
            raise error("UCP-E-MISMATCH", f"parameter group {number} is empty, which ZeRO cannot hold")
        if chosen.stage == 3:
            found += [
                _partitioned(outline, number, names, chosen) for names in _sub_groups(outline, group, chosen)
            ]
            continue
        order = round_robin_order(len(group.names), chosen.world_size)
        names = [group.names[place] for place in order] if chosen.round_robin else list(group.names)
        offsets, end = _offsets([math.prod(outline.shape(name)) for name in names])
        multiple = ALIGNMENT_FACTOR * chosen.world_size
        part = -(-end // multiple) * multiple // chosen.world_size
        found.append(_FlatGroup(number, names, offsets, part, end))
    return found


def _sub_groups(outline: Outline, group: Group, chosen: DeepSpeedSettings) -> Iterator[list[str]]:
    """As ``_create_fp16_sub_groups`` of stage3.py cuts a group."""
    sizes = {name: partition_size(outline.shape(name), chosen.world_size) for name in group.names}
    if chosen.sub_group_size >= sum(sizes.values()):
        yield list(group.names)
        return
    names: list[str] = []
    for name in group.names:
        names.append(name)
        if sum(sizes[held] for held in names) >= chosen.sub_group_size or name == group.names[-1]:
            yield names
            names = []


def _partitioned(
    outline: Outline, number: int, names: Sequence[str], chosen: DeepSpeedSettings
) -> _FlatGroup:
    offsets, end = _offsets([partition_size(outline.shape(name), chosen.world_size) for name in names])
    return _FlatGroup(number, names, offsets, end, end)


def _offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += size
    return offsets, end


def _model_tree(
    outline: Outline, chosen: DeepSpeedSettings, flat: Sequence[_FlatGroup], rank: int
) -> dict[str, Any]:
    frozen = [
        name
        for name in outline.module
        if chosen.stage > 1 and name not in outline.trained and not outline.is_buffer(name)
    ]
    module: OrderedDict[str, OutTensor] = OrderedDict()
    for name, view in outline.module.items():
        tensor = outline.tensor(name, "value")
        if chosen.stage == 3 and (name in outline.trained or name in frozen):
            tensor = outline.flat([], tensor.dtype)
        module[name] = tensor
        module.update(dict.fromkeys(view.aliases, tensor))
    shapes = OrderedDict((name, TorchSize(outline.shape(name))) for name in frozen)
    return {
        "module": module,
        "buffer_names": [name for name in outline.module if outline.role(name) == "buffer"],
        "optimizer": None,
        "param_shapes": _shapes(outline, flat),
        "frozen_param_shapes": shapes if chosen.stage > 1 else None,
        "shared_params": outline.shared,
        "frozen_param_fragments": OrderedDict(
            (name, _fragment(outline, name, chosen, rank) if chosen.stage == 3 else module[name])
            for name in frozen
        )
        if chosen.stage > 1
        else None,
        **model_values(outline, rank),
        "dp_world_size": chosen.world_size,
    }


def _fragment(outline: Outline, name: str, chosen: DeepSpeedSettings, rank: int) -> OutTensor:
    slot = outline.module[name]["value"]
    return outline.flat(list(_part_of(slot, chosen.world_size, rank)), slot.dtype.name)


def _part_of(slot: SlotContent, world_size: int, rank: int) -> Iterator[Range]:
    """What a rank has of a tensor that ZeRO-3 splits alone, padding included."""
    count = math.prod(slot.shape)
    part = partition_size(slot.shape, world_size)
    start, stop = min(count, rank * part), min(count, (rank + 1) * part)
    yield Range(slot, start, stop)
    yield Range(None, 0, part - (stop - start))


def _optimizer_tree(
    outline: Outline,
    chosen: DeepSpeedSettings,
    options: Sequence[Group],
    flat: Sequence[_FlatGroup],
    rank: int,
) -> dict[str, Any]:
    states = {
        number: state for number, group in enumerate(flat) if (state := _state(outline, chosen, group, rank))
    }
    groups = [
        {**group.options, "params": [number for number, part in enumerate(flat) if part.number == place]}
        for place, group in enumerate(options)
    ]
    base = {"state": states, "param_groups": groups}
    masters = []
    for group in flat:
        slots = {name: outline.master(name) for name in group.names}
        ranges = list(_ranges(slots, chosen, group, rank, strips_tail=chosen.stage < 3))
        masters.append(outline.flat(ranges, "float32"))
    inner = wrapper_values(outline, chosen.stage)
    if chosen.stage == 3:
        inner |= {
            "partition_count": chosen.world_size,
            "optimizer_state_dict": base,
            "fp32_flat_groups": masters,
        }
    else:
        inner |= {
            "base_optimizer_state": base,
            "single_partition_of_fp32_groups": masters,
            "group_paddings": [group.part_size - _used(group, rank) for group in flat],
            "param_alignment_paddings": [[0] * len(group.names) for group in flat],
            "partition_count": [chosen.world_size] * len(flat),
            "ds_version": VERSION,
            "param_slice_mappings": [_addresses(outline, group, rank) for group in flat],
        }
    config = outline.values.get("ds_config", {})
    return {"optimizer_state_dict": inner, "ds_config": config, "ds_version": VERSION}


def _used(group: _FlatGroup, rank: int) -> int:
    return max(0, min(group.part_size, group.length - rank * group.part_size))


def _ranges(
    slots: Mapping[str, SlotContent],
    chosen: DeepSpeedSettings,
    group: _FlatGroup,
    rank: int,
    *,
    strips_tail: bool = False,
) -> Iterator[Range]:
    """What a rank's flat buffer has of each parameter's slot, one after another."""
    if chosen.stage == 3:
        for name in group.names:
            yield from _part_of(slots[name], chosen.world_size, rank)
        return
    first, last = rank * group.part_size, (rank + 1) * group.part_size
    for name, offset in zip(group.names, group.offsets, strict=True):
        slot = slots[name]
        start, stop = max(first, offset), min(last, offset + math.prod(slot.shape))
        if start < stop:
            yield Range(slot, start - offset, stop - offset)
    if not strips_tail:
        yield Range(None, 0, group.part_size - _used(group, rank))


def _state(outline: Outline, chosen: DeepSpeedSettings, group: _FlatGroup, rank: int) -> dict[str, Any]:
    """The optimizer's states of a flat group; all its parameters have the same ones.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` where they have not: a flat buffer holds all or none.
    """
    states = {name: outline.states(name) for name in group.names}
    numbers = {name: outline.numbers(name) for name in group.names}
    first = group.names[0]
    for name in group.names:
        if states[name].keys() != states[first].keys() or numbers[name].keys() != numbers[first].keys():
            raise error(
                "UCP-E-MISMATCH",
                f"{name!r} and {first!r} are in one flat group and have other optimizer states",
            )
    found: dict[str, Any] = {}
    for key, value in numbers[first].items():
        if any(_number_of(outline, name, key) != _number_of(outline, first, key) for name in group.names):
            raise error(
                "UCP-E-MISMATCH",
                f"{key!r} differs within parameter group {group.number}: ZeRO keeps one number",
            )
        found[key] = value
    for key in states[first]:
        slots = {name: states[name][key] for name in group.names}
        kinds = {slot.dtype.name for slot in slots.values()}
        if len(kinds) > 1:
            raise error(
                "UCP-E-MISMATCH", f"{key!r} has several data types within parameter group {group.number}"
            )
        found[key] = outline.flat(list(_ranges(slots, chosen, group, rank)), kinds.pop())
    return found


def _number_of(outline: Outline, name: str, key: str) -> bytes:
    return outline.module[name][key].read().tobytes()


def _addresses(outline: Outline, group: _FlatGroup, rank: int) -> OrderedDict[str, Call]:
    first, last = rank * group.part_size, (rank + 1) * group.part_size
    found: OrderedDict[str, Call] = OrderedDict()
    for name, offset in zip(group.names, group.offsets, strict=True):
        start, stop = max(first, offset), min(last, offset + math.prod(outline.shape(name)))
        if start < stop:
            place = {"numel": stop - start, "start": start - first}
            found[name] = Call("deepspeed.utils.tensor_fragment", "fragment_address", (), place, True)
    return found


def _is_bfloat16(outline: Outline) -> bool:
    """Whether DeepSpeed would train in bf16, which the names of the optimizer's files tell."""
    return any(outline.module[name]["value"].dtype.name == "bfloat16" for name in outline.trained)
