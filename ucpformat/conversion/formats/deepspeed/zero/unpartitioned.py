"""Optimizer states without ZeRO: torch's own ``state_dict``, which numbers parameters and names none.

Under bf16 or fp16 it is wrapped (``runtime/fp16/unfused_optimizer.py``), with master copies in the same order.

The numbers run over the parameter groups in order. A group is taken to list parameters in the order of the module's
state dict, as every filter of ``named_parameters()`` does; a state whose shape then leaves one parameter alone gets
its name, and every other is kept under its number (``optimizer.state.7``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ucpformat.conversion.contract.job import ReadBox
from ucpformat.conversion.contract.sources import Whole
from ucpformat.conversion.formats.deepspeed.experts.stacks import expert_name
from ucpformat.conversion.formats.deepspeed.files.states import ModelStates
from ucpformat.tensor_files.fields import integer, items, mapping, member, refused, tensor
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor

__all__ = ["Candidates", "NumberedStates", "matches", "names_by_order", "unpartitioned_states"]

Slot = tuple[str, str, str, tuple[int, ...], ReadBox]
Candidates = Sequence[tuple[str, tuple[int, ...]]]
"""Parameters in the order in which a group lists them, with their shapes."""

Groups = list[tuple[list[str], Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class NumberedStates:
    """An optimizer without ZeRO: of every group the options and the numbers, of every number the states.

    ``masters`` are the copies that the optimizer updates, by number, where the module has a shorter data type.
    """

    file: TorchFile
    options: Sequence[Mapping[str, Any]]
    numbers: Sequence[Sequence[int]]
    states: Mapping[Any, Any]
    masters: Sequence[StoredTensor]

    @classmethod
    def read(cls, file: TorchFile, tree: Mapping[Any, Any]) -> NumberedStates:
        """Read states from ``tree``, what ``file`` has as its optimizer.

        Raises:
            ImportRefusedError: ``UCP-E-SOURCE`` for an optimizer that is not as torch has it.
        """
        at = file.name
        masters: list[StoredTensor] = []
        if "optimizer_state_dict" in tree:
            if "fp32_groups" not in tree:
                raise refused("the optimizer is wrapped by one whose master copies are flat; use ZeRO", at)
            masters = [
                tensor(item, "fp32_groups", at)
                for group in items(tree["fp32_groups"], "fp32_groups", at)
                for item in items(group, "fp32_groups", at)
            ]
            tree = mapping(tree["optimizer_state_dict"], "optimizer_state_dict", at)
        states = mapping(member(tree, "state", at), "state", at)
        groups = [
            mapping(group, "a parameter group", at)
            for group in items(member(tree, "param_groups", at), "param_groups", at)
        ]
        numbers = [
            [integer(number, "params", at) for number in items(member(group, "params", at), "params", at)]
            for group in groups
        ]
        listed = [number for group in numbers for number in group]
        if masters and listed != list(range(len(masters))):
            raise refused("the master copies are not numbered as the parameters are", at)
        for number in states:
            if number not in listed:
                raise refused(f"a state of parameter {number!r:.20}, which no group lists", at)
        options = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        return cls(file, options, numbers, states, masters)

    def has(self, number: int) -> bool:
        """Return whether there is anything of a parameter."""
        return bool(self.states.get(number) or self.masters)

    def shapes(self, group: int) -> list[tuple[int, ...] | None]:
        """Return shapes of the parameters of a group, None where nothing says one."""
        return [
            self.masters[number].shape if self.masters else _shape(self.states.get(number, {}))
            for number in self.numbers[group]
        ]

    def slots(self, names: Mapping[int, str]) -> Iterator[Slot]:
        """Yield atom, slot, data type, shape and source of every state."""
        for number, master in enumerate(self.masters):
            yield names[number], "master", master.dtype, master.shape, Whole(self.file, master)
        for number, state in self.states.items():
            for slot, value in mapping(state, "state", self.file.name).items():
                if isinstance(value, StoredTensor):
                    yield names[number], str(slot), value.dtype, value.shape, Whole(self.file, value)
                elif value is not None:
                    raise refused(f"state {slot!r:.50} of parameter {number} is no tensor", self.file.name)


def unpartitioned_states(
    model: ModelStates,
    groups: Groups,
    experts: Sequence[str] | None = None,
    names: Mapping[int, str] | None = None,
    frozen: Sequence[str] = (),
) -> Iterator[Slot]:
    """Yield atom, slot, data type, shape and source of every state; fills ``groups`` with names and options.

    ``experts`` are the parameters that groups with ``moe`` have, in order, and others have not. ``names`` are those of
    the numbers, where they are known. ``frozen`` are globs of parameters that no group has.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for an optimizer that is not as torch has it.
    """
    states = NumberedStates.read(model.file, model.optimizer or {})
    if names is None:
        candidates = _candidates(model)
        of_experts = [(name, model.module[name].shape) for name in experts or ()]
        candidates = [place for place in candidates if not matches(place[0], frozen)]
        if experts is not None:
            candidates = [place for place in candidates if expert_name(place[0]) is None]
        names = {
            number: name or f"optimizer.state.{number}"
            for group, (options, numbers) in enumerate(zip(states.options, states.numbers, strict=True))
            for number, name in zip(
                numbers,
                names_by_order(states.shapes(group), of_experts if options.get("moe") is True else candidates)
                or [None] * len(numbers),
                strict=True,
            )
        }
    for options, numbers in zip(states.options, states.numbers, strict=True):
        held = [names[number] for number in numbers if states.has(number) or names[number] in model.module]
        groups.append((held, options))
    yield from states.slots(names)


def matches(name: str, globs: Sequence[str]) -> bool:
    """Return whether a name is one of those that a caller means."""
    return any(fnmatchcase(name, glob) for glob in globs)


def _candidates(model: ModelStates) -> list[tuple[str, tuple[int, ...]]]:
    """Return parameters in the order of the state dict, tied ones once, with their shapes."""
    owners: dict[tuple[str, int], str] = {}
    for name, held in model.module.items():
        if name not in model.buffers:
            owners.setdefault((held.storage.name, held.start), name)
    return [(name, model.module[name].shape) for name in owners.values()]


def names_by_order(
    shapes: Sequence[tuple[int, ...] | None], candidates: Candidates
) -> list[str | None] | None:
    """Return the names of a group: where the first place that each can have is also the last, None elsewhere.

    None for all where the candidates do not have these shapes in this order.
    """
    earliest = _places(shapes, candidates)
    latest = _places(shapes[::-1], candidates[::-1])
    if earliest is None or latest is None:
        return None
    last = [len(candidates) - 1 - place for place in reversed(latest)]
    return [candidates[first][0] if first == end else None for first, end in zip(earliest, last, strict=True)]


def _places(shapes: Sequence[tuple[int, ...] | None], candidates: Candidates) -> list[int] | None:
    """Return the first places, ascending, of candidates with these shapes; None fits any."""
    positions: list[int] = []
    place = -1
    for shape in shapes:
        place += 1
        while place < len(candidates) and shape not in (None, candidates[place][1]):
            place += 1
        if place == len(candidates):
            return None
        positions.append(place)
    return positions


def _shape(state: object) -> tuple[int, ...] | None:
    """Return the shape that most of a parameter's states have; scalars say nothing."""
    members = state.values() if isinstance(state, dict) else ()
    return next((item.shape for item in members if isinstance(item, StoredTensor) and item.shape), None)
