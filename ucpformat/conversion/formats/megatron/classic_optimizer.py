"""The optimizer of a rank of Megatron-LM: torch's states by number, or the buffers of ``distrib_optim.pt``.

Source: megatron-core 0.16.1, optimizer/optimizer.py (``Float16OptimizerWithFloat16Params``, ``FP32Optimizer``,
``ChainedOptimizer``), optimizer/distrib_optimizer.py (``get_parameter_state_dp_zero``: every buffer whole, the padding
at the end of each bucket left out). Neither names a parameter: which is which follows from the order of the model,
and is checked against the model's values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ucpformat.conversion.contract.sources import Whole
from ucpformat.conversion.formats.megatron.buffers import BufferParameter, assign_buckets
from ucpformat.errors import error
from ucpformat.geometry import row_major_strides
from ucpformat.model.dtype import dtype
from ucpformat.tensor_files.fields import integer, items, mapping, member, refused, tensor
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES, TorchDtype
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor

__all__ = ["LocalParameter", "Options", "StateSlot", "bucketed_states", "numbered_states", "options_of"]

StateSlot = tuple[str, str, Whole | float]
"""Parameter, slot, and where the state lies, or the number that it is."""
Options = tuple[list[str], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class LocalParameter:
    """A parameter of a rank: its name over the whole model, the local tensor, and what Megatron asks of it."""

    name: str
    stored: StoredTensor
    is_expert: bool
    is_shared_embedding: bool


def options_of(
    groups: Sequence[Mapping[Any, Any]], parameters: Sequence[LocalParameter], at: str
) -> list[Options]:
    """Return which parameters each group has: experts' own, and those that do not decay, biases and vectors."""
    options: list[Options] = []
    taken: set[str] = set()
    for group in groups:
        alike = [
            other
            for other in groups
            if _flag(other, "is_expert_parallel") == _flag(group, "is_expert_parallel")
        ]
        names = []
        for parameter in parameters:
            decays = not (len(parameter.stored.shape) == 1 or parameter.name.endswith(".bias"))
            fits = len(alike) == 1 or (group.get("wd_mult", group.get("pre_wd_mult")) != 0) == decays
            if (
                parameter.is_expert == _flag(group, "is_expert_parallel")
                and fits
                and parameter.name not in taken
            ):
                names.append(parameter.name)
        taken.update(names)
        options.append((names, {key: value for key, value in group.items() if key != "params"}))
    left = [parameter.name for parameter in parameters if parameter.name not in taken]
    if left:
        raise refused(f"{left[0]!r} is in no parameter group", at)
    return options


def _flag(group: Mapping[Any, Any], name: str) -> bool:
    return group.get(name) is True


def numbered_states(
    tree: Mapping[Any, Any], file: TorchFile, parameters: Sequence[LocalParameter]
) -> Iterator[StateSlot]:
    """Yield states and master copies of an optimizer that does not shard.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` where its groups are not those of the model.
    """
    at = file.name
    masters: Sequence[Any] = ()
    if "fp32_from_fp16_params" in tree:
        masters = items(tree["fp32_from_fp16_params"], "fp32_from_fp16_params", at)
        tree = mapping(member(tree, "optimizer", at), "optimizer", at)
    groups = groups_of(tree, at)
    states = mapping(member(tree, "state", at), "state", at)
    by_name = {parameter.name: parameter for parameter in parameters}
    listed = options_of(groups, parameters, at)
    if masters and len(masters) != len(groups):
        raise refused(f"{len(masters)} groups of master copies for {len(groups)} parameter groups", at)
    for place, ((names, _), group) in enumerate(zip(listed, groups, strict=True)):
        numbers = [
            integer(number, "params", at) for number in items(member(group, "params", at), "params", at)
        ]
        if len(numbers) != len(names):
            raise refused(
                f"parameter group {place} has {len(numbers)} parameters, the model {len(names)} for it", at
            )
        held = items(masters[place], "fp32_from_fp16_params", at) if masters else ()
        if masters and len(held) != len(names):
            raise refused(f"parameter group {place} has {len(held)} master copies for {len(names)}", at)
        for name, master in zip(names, held, strict=False):
            yield name, "master", _of_shape(tensor(master, "a master copy", at), by_name[name], file)
        for name, number in zip(names, numbers, strict=True):
            for slot, value in mapping(states.get(number, {}), "state", at).items():
                if isinstance(value, StoredTensor):
                    shape = value.shape
                    yield (
                        name,
                        str(slot),
                        Whole(file, value) if shape == () else _of_shape(value, by_name[name], file),
                    )
                elif type(value) is float or (type(value) is int and abs(value) < 2**63):
                    yield name, str(slot), float(value)
                elif value is not None:
                    raise refused(
                        f"state {slot!r:.50} of parameter {number} is no tensor and no number of 64 bits", at
                    )


def groups_of(tree: Mapping[Any, Any], at: str) -> list[Mapping[Any, Any]]:
    """Return the parameter groups of torch's state dict."""
    listed = items(member(tree, "param_groups", at), "param_groups", at)
    return [mapping(group, "a parameter group", at) for group in listed]


def _of_shape(stored: StoredTensor, parameter: LocalParameter, file: TorchFile) -> Whole:
    if stored.shape != parameter.stored.shape:
        raise refused(
            f"a state of {parameter.name!r} has shape {list(stored.shape)}, the parameter "
            f"{list(parameter.stored.shape)}: the order of parameters is another",
            file.name,
        )
    return Whole(file, stored)


def bucketed_states(
    tree: Mapping[Any, Any],
    file: TorchFile,
    parameters: Sequence[LocalParameter],
    bucket_sizes: Sequence[int | None],
    dp: int,
) -> Iterator[StateSlot]:
    """Yield states and master copies in the buffers of a distributed optimizer, one of each data type.

    ``bucket_sizes`` are those that the job may have had; the first with which the buffer has its length counts.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for buffers that are not the model's.
    """
    at = file.name
    if tree.get("buckets_coalesced") is not True:
        raise refused(
            "buckets are stored one by one, as Megatron-core before 0.7 did; resave with a later one", at
        )
    numbers = sorted(number for number in tree if type(number) is int)
    seen: set[str] = set()
    for number in numbers:
        for key, held in mapping(tree[number], "a buffer", at).items():
            kind = key[0] if isinstance(key, tuple) else key
            if not isinstance(kind, TorchDtype):
                raise refused(f"a buffer of type {kind!r:.50}", at)
            if kind.name not in TORCH_DTYPES:
                raise error("UCP-E-DTYPE", f"a buffer of type {kind.name}, which is not supported", at=at)
            name = TORCH_DTYPES[kind.name][0]
            if name in seen:
                raise refused("several buffers of one data type, of a virtual pipeline, are not read", at)
            seen.add(name)
            mine = [parameter for parameter in parameters if parameter.stored.dtype == name]
            yield from _buffer(mapping(held, "a buffer", at), file, mine, bucket_sizes, dp)


def _buffer(
    held: Mapping[Any, Any],
    file: TorchFile,
    parameters: Sequence[LocalParameter],
    bucket_sizes: Sequence[int | None],
    dp: int,
) -> Iterator[StateSlot]:
    at = file.name
    tensors = {str(slot): value for slot, value in held.items() if isinstance(value, StoredTensor)}
    lengths = {stored.shape for stored in tensors.values()}
    if "param" not in tensors or len(lengths) != 1 or len(next(iter(lengths))) != 1:
        raise refused("a buffer has no param, or tensors of other lengths", at)
    ((length,),) = lengths
    for size in bucket_sizes:
        offsets, total = _offsets(parameters, size, dp)
        if total == length:
            break
    else:
        raise refused(
            f"a buffer has {length} elements, and the parameters of the model fill {total} of it: from two saves, "
            "or with frozen parameters or buckets of a size that args does not say",
            at,
        )
    for parameter, offset in zip(parameters, offsets, strict=True):
        for slot, stored in tensors.items():
            yield (
                parameter.name,
                "master" if slot == "param" else slot,
                Whole(file, _cut(stored, offset, parameter)),
            )


def _offsets(parameters: Sequence[LocalParameter], bucket_size: int | None, dp: int) -> tuple[list[int], int]:
    """Return where each parameter begins, and how long all are, with what pads the end of each bucket left out."""
    sized = [
        BufferParameter(math.prod(parameter.stored.shape), parameter.is_shared_embedding)
        for parameter in parameters
    ]
    slots, buckets = assign_buckets(sized, dp=dp, bucket_size=bucket_size)
    before = [0]
    for bucket in buckets:
        before.append(before[-1] + bucket.unpadded)
    return [before[slot.bucket] + slot.place.offsets[0] for slot in slots], before[-1]


def _cut(stored: StoredTensor, offset: int, parameter: LocalParameter) -> StoredTensor:
    """Return a part of a flat tensor as one of the parameter's shape."""
    shape = parameter.stored.shape
    (step,) = stored.strides
    strides = tuple(step * stride for stride in row_major_strides(shape))
    start = stored.start + offset * step * dtype(stored.dtype).item_bytes
    return replace(stored, shape=shape, strides=strides, start=start)
