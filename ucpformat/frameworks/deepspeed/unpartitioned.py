"""Optimizer states without ZeRO: torch's own ``state_dict``, which numbers parameters and names none.

Under bf16 or fp16 it is wrapped (``runtime/fp16/unfused_optimizer.py``), with master copies in the same order.

The numbers run over the parameter groups in order. A group is taken to list parameters in the order of the module's
state dict, as every filter of ``named_parameters()`` does; a state whose shape then leaves one parameter alone gets
its name, and every other is kept under its number (``optimizer.state.7``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ucpformat.frameworks.deepspeed.expert_names import expert_name
from ucpformat.frameworks.deepspeed.fields import integer, items, mapping, member, refused, tensor
from ucpformat.frameworks.deepspeed.sources import ReadBox, Whole
from ucpformat.frameworks.deepspeed.states import ModelStates
from ucpformat.frameworks.torch_dcp.torch_zip import StoredTensor

__all__ = ["unpartitioned_states"]

Slot = tuple[str, str, str, tuple[int, ...], ReadBox]


def unpartitioned_states(
    model: ModelStates,
    groups: list[tuple[list[str], Mapping[str, Any]]],
    experts: Sequence[str] | None = None,
) -> Iterator[Slot]:
    """Atom, slot, data type, shape and source of every state; fills ``groups`` with names and options.

    ``experts`` are the parameters that groups with ``moe`` have, in order, and others have not.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for an optimizer that is not as torch has it.
    """
    at = model.file.name
    tree = model.optimizer or {}
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
    listed = [
        mapping(group, "a parameter group", at)
        for group in items(member(tree, "param_groups", at), "param_groups", at)
    ]
    numbers = [
        [integer(number, "params", at) for number in items(member(group, "params", at), "params", at)]
        for group in listed
    ]
    candidates = _candidates(model)
    of_experts = [(name, model.module[name].shape) for name in experts or ()]
    if experts is not None:
        candidates = [place for place in candidates if expert_name(place[0]) is None]
    if masters and [number for group in numbers for number in group] != list(range(len(masters))):
        raise refused("the master copies are not numbered as the parameters are", at)
    names = {
        number: name
        for options, group in zip(listed, numbers, strict=True)
        for number, name in _names(
            group, states, masters, of_experts if options.get("moe") is True else candidates
        )
    }
    for group, members in zip(listed, numbers, strict=True):
        held = [
            names[number]
            for number in members
            if states.get(number) or masters or names[number] in model.module
        ]
        groups.append((held, {key: value for key, value in group.items() if key != "params"}))
    for number, master in enumerate(masters):
        yield names[number], "master", master.dtype, master.shape, Whole(model.file, master)
    for number, state in states.items():
        if number not in names:
            raise refused(f"a state of parameter {number!r:.20}, which no group lists", at)
        for slot, value in mapping(state, "state", at).items():
            if isinstance(value, StoredTensor):
                yield names[number], str(slot), value.dtype, value.shape, Whole(model.file, value)
            elif value is not None:
                raise refused(f"state {slot!r:.50} of parameter {number} is no tensor", at)


def _candidates(model: ModelStates) -> list[tuple[str, tuple[int, ...]]]:
    """Parameters in the order of the state dict, tied ones once, with their shapes."""
    owners: dict[tuple[str, int], str] = {}
    for name, held in model.module.items():
        if name not in model.buffers:
            owners.setdefault((held.storage.name, held.start), name)
    return [(name, model.module[name].shape) for name in owners.values()]


def _names(
    numbers: Sequence[int],
    states: Mapping[Any, Any],
    masters: Sequence[StoredTensor],
    candidates: Sequence[tuple[str, tuple[int, ...]]],
) -> Iterator[tuple[int, str]]:
    """The name of each number of a group: where the first place it can have is also the last."""
    shapes = [masters[n].shape if masters else _shape(states.get(n, {})) for n in numbers]
    earliest = _places(shapes, candidates)
    latest = _places(shapes[::-1], candidates[::-1])
    for place, number in enumerate(numbers):
        name = f"optimizer.state.{number}"
        if earliest is not None and latest is not None:
            first, last = earliest[place], len(candidates) - 1 - latest[len(numbers) - 1 - place]
            name = candidates[first][0] if first == last else name
        yield number, name


def _places(
    shapes: Sequence[tuple[int, ...] | None], candidates: Sequence[tuple[str, tuple[int, ...]]]
) -> list[int] | None:
    """The first places, ascending, of candidates with these shapes; None fits any."""
    found: list[int] = []
    place = -1
    for shape in shapes:
        place += 1
        while place < len(candidates) and shape not in (None, candidates[place][1]):
            place += 1
        if place == len(candidates):
            return None
        found.append(place)
    return found


def _shape(state: object) -> tuple[int, ...] | None:
    """The shape that most of a parameter's states have; scalars say nothing."""
    found = state.values() if isinstance(state, dict) else ()
    return next((item.shape for item in found if isinstance(item, StoredTensor) and item.shape), None)
