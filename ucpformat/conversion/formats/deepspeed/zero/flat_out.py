"""ZeRO's flat groups to write: which elements of which parameters each rank has (see `zero`, `flat_groups`)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ucpformat.conversion.formats.deepspeed.outlines import Outline, Range
from ucpformat.conversion.formats.deepspeed.zero.layouts import (
    ALIGNMENT_FACTOR,
    partition_size,
    round_robin_order,
)
from ucpformat.errors import error
from ucpformat.tensor_files.stand_ins import TorchSize
from ucpformat.tensor_files.torch_archive_writer import Call, OutTensor

if TYPE_CHECKING:
    from ucpformat.conversion.contract.content import SlotContent
    from ucpformat.conversion.formats.deepspeed.experts.groups_out import SharedGroup
    from ucpformat.conversion.formats.deepspeed.export_settings import DeepSpeedSettings

__all__ = ["FlatGroup", "FlatPlan", "part_of"]


class FlatPlan:
    """The flat groups of all data-parallel ranks.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for an empty parameter group.
    """

    def __init__(self, outline: Outline, chosen: DeepSpeedSettings, groups: Sequence[SharedGroup]) -> None:
        self._chosen = chosen
        self._groups = groups
        self._flat = [
            [_flat_groups(outline, chosen, number, group, names) for names in group.names]
            for number, group in enumerate(groups)
        ]

    def of(self, rank: int) -> list[FlatGroup]:
        """Return the flat groups that a rank has a part of, in order."""
        return [
            flat
            for group, tensors in zip(self._groups, self._flat, strict=True)
            for flat in tensors[self._chosen.place(rank, group.degree)[0]]
        ]


@dataclass(frozen=True, slots=True)
class FlatGroup:
    """A flat group: parameters in the order of the buffer, and the number of their parameter group.

    ``degree`` ranks share it, one of ``expert_degree`` sets; ``local`` are the names that its ranks know.
    """

    number: int
    names: Sequence[str]
    offsets: Sequence[int]
    part_size: int
    length: int
    """Elements before the padding of the tail, over all ranks; under ZeRO-3 elements of a rank."""
    degree: int
    expert_degree: int
    local: Mapping[str, str]

    def shapes(self, outline: Outline) -> OrderedDict[str, TorchSize]:
        """Return names and shapes, as model files list them."""
        return OrderedDict(
            (self.local.get(name, name), TorchSize(outline.shape(name))) for name in self.names
        )

    def used(self, partition: int) -> int:
        """Return elements of a part before the padding of the tail."""
        return max(0, min(self.part_size, self.length - partition * self.part_size))

    def ranges(
        self,
        slots: Mapping[str, SlotContent],
        chosen: DeepSpeedSettings,
        partition: int,
        *,
        strips_tail: bool = False,
    ) -> Iterator[Range]:
        """Yield what a part has of each parameter's slot, one after another."""
        if chosen.stage == 3:
            for name in self.names:
                yield from part_of(slots[name], self.degree, partition)
            return
        first, last = partition * self.part_size, (partition + 1) * self.part_size
        for name, offset in zip(self.names, self.offsets, strict=True):
            slot = slots[name]
            start, stop = max(first, offset), min(last, offset + math.prod(slot.shape))
            if start < stop:
                yield Range(slot, start - offset, stop - offset)
        if not strips_tail:
            yield Range(None, 0, self.part_size - self.used(partition))

    def master(self, outline: Outline, chosen: DeepSpeedSettings, partition: int) -> OutTensor:
        """Return a part of the copies that the optimizer updates."""
        slots = {name: outline.master(name) for name in self.names}
        ranges = list(self.ranges(slots, chosen, partition, strips_tail=chosen.stage < 3))
        return outline.flat(ranges, "float32")

    def addresses(self, outline: Outline, partition: int) -> OrderedDict[str, Call]:
        """Return ``param_slice_mappings`` of a part."""
        first, last = partition * self.part_size, (partition + 1) * self.part_size
        addresses: OrderedDict[str, Call] = OrderedDict()
        for name, offset in zip(self.names, self.offsets, strict=True):
            start, stop = max(first, offset), min(last, offset + math.prod(outline.shape(name)))
            if start < stop:
                address = {"numel": stop - start, "start": start - first}
                addresses[self.local.get(name, name)] = Call(
                    "deepspeed.utils.tensor_fragment", "fragment_address", (), address, True
                )
        return addresses

    def state(self, outline: Outline, chosen: DeepSpeedSettings, partition: int) -> dict[str, Any]:
        """Return a part of the optimizer's states; all parameters of the group have the same ones.

        Raises:
            MismatchError: ``UCP-E-MISMATCH`` where they have not: a flat buffer holds all or none.
        """
        states = {name: outline.states(name) for name in self.names}
        numbers = {name: outline.numbers(name) for name in self.names}
        first = self.names[0]
        for name in self.names:
            if states[name].keys() != states[first].keys() or numbers[name].keys() != numbers[first].keys():
                raise error(
                    "UCP-E-MISMATCH",
                    f"{name!r} and {first!r} are in one flat group and have other optimizer states",
                )
        state: dict[str, Any] = {}
        for key, value in numbers[first].items():
            if any(_number_of(outline, name, key) != _number_of(outline, first, key) for name in self.names):
                raise error(
                    "UCP-E-MISMATCH",
                    f"{key!r} differs within parameter group {self.number}: ZeRO keeps one number",
                )
            state[key] = value
        for key in states[first]:
            slots = {name: states[name][key] for name in self.names}
            kinds = {slot.dtype.name for slot in slots.values()}
            if len(kinds) > 1:
                raise error(
                    "UCP-E-MISMATCH", f"{key!r} has several data types within parameter group {self.number}"
                )
            state[key] = outline.flat(list(self.ranges(slots, chosen, partition)), kinds.pop())
        return state


def part_of(slot: SlotContent, world_size: int, rank: int) -> Iterator[Range]:
    """Yield what a rank has of a tensor that ZeRO-3 splits alone, padding included."""
    count = math.prod(slot.shape)
    part = partition_size(slot.shape, world_size)
    start, stop = min(count, rank * part), min(count, (rank + 1) * part)
    yield Range(slot, start, stop)
    yield Range(None, 0, part - (stop - start))


def _flat_groups(
    outline: Outline, chosen: DeepSpeedSettings, number: int, group: SharedGroup, names: Sequence[str]
) -> list[FlatGroup]:
    if not names:
        raise error("UCP-E-MISMATCH", f"parameter group {number} is empty, which ZeRO cannot hold")
    degree = chosen.world_size // group.degree
    if chosen.stage == 3:
        groups = []
        for held in _sub_groups(outline, names, chosen):
            offsets, end = _offsets([partition_size(outline.shape(name), degree) for name in held])
            groups.append(FlatGroup(number, held, offsets, end, end, degree, 1, {}))
        return groups
    if chosen.round_robin:
        names = [names[place] for place in round_robin_order(len(names), degree)]
    offsets, end = _offsets([math.prod(outline.shape(name)) for name in names])
    multiple = ALIGNMENT_FACTOR * degree
    part = -(-end // multiple) * multiple // degree
    return [FlatGroup(number, names, offsets, part, end, degree, group.degree, group.local)]


def _sub_groups(outline: Outline, names: Sequence[str], chosen: DeepSpeedSettings) -> Iterator[list[str]]:
    """Yield sub-groups as ``_create_fp16_sub_groups`` of stage3.py cuts them."""
    sizes = {name: partition_size(outline.shape(name), chosen.world_size) for name in names}
    if chosen.sub_group_size >= sum(sizes.values()):
        yield list(names)
        return
    held: list[str] = []
    for name in names:
        held.append(name)
        if sum(sizes[other] for other in held) >= chosen.sub_group_size or name == names[-1]:
            yield held
            held = []


def _offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += size
    return offsets, end


def _number_of(outline: Outline, name: str, key: str) -> bytes:
    return outline.module[name][key].read().tobytes()
