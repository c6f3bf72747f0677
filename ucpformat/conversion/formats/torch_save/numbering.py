"""Optimizers that number their parameters, as ``optimizer.state_dict()`` of torch does: which number is which.

Numbers run over the parameter groups in order. The names are in the file where the optimizer was made of
``model.named_parameters()`` (``param_names`` in its groups, PyTorch 2.6 and newer). Elsewhere they can be found where
every group lists parameters in the order of the module's state dict, which a caller has to say (``order=module``), and
where their shapes then leave one place for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ucpformat.errors import error
from ucpformat.state_dict.keys.paths import NumberKey, StatePath, dotted

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["GROUPS", "PARAMS", "STATE", "numbered_optimizers", "parameter_names", "renamed_state"]

GROUPS, PARAMS, NAMES, STATE = "param_groups", "params", "param_names", "state"

Shape = tuple[int, ...]


def numbered_optimizers(objects: Mapping[StatePath, JsonValue]) -> dict[StatePath, list[list[int]]]:
    """Return the paths of optimizers that number parameters 0, 1, 2, ... over their groups, with numbers by group."""
    groups: dict[StatePath, dict[int, list[int]]] = {}
    for path, value in objects.items():
        if len(path) > 2 and path[-1] == PARAMS and path[-3] == GROUPS and type(path[-2]) is int:
            listed = value if isinstance(value, list) else [None]
            numbers = [number for number in listed if type(number) is int]
            groups.setdefault(path[:-3], {})[path[-2]] = numbers if len(numbers) == len(listed) else [-1]
    by_path = {path: [lists[at] for at in sorted(lists)] for path, lists in groups.items()}
    return {
        path: lists
        for path, lists in by_path.items()
        if [number for numbers in lists for number in numbers] == list(range(sum(map(len, lists))))
    }


def parameter_names(
    optimizer: StatePath,
    numbers: Sequence[Sequence[int]],
    objects: Mapping[StatePath, JsonValue],
    states: Mapping[StatePath, Shape],
    candidates: Mapping[str, Shape],
    *,
    in_order_of_module: bool,
) -> list[str] | None:
    """Return the names of an optimizer's parameters by number; None where nothing says them.

    ``states`` are the shapes of all tensors by path, ``candidates`` those of the model, in its order.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` where the caller says the order and it leaves more than one place, or none.
    """
    written = [
        _written(objects.get((*optimizer, GROUPS, at, NAMES)), group) for at, group in enumerate(numbers)
    ]
    names = [name for group in written if group is not None for name in group]
    if None not in written and len(set(names)) == len(names) and all(name in candidates for name in names):
        return names
    if not in_order_of_module:
        return None
    shapes: dict[int, Shape] = {}
    depth = len(optimizer)
    for path, shape in states.items():
        if path[:depth] == optimizer and len(path) > depth + 2 and path[depth] == STATE and shape:
            key = path[depth + 1]
            if isinstance(key, NumberKey):
                shapes.setdefault(key.number, shape)
    ordered = [name for group in numbers for name in _by_order(optimizer, group, shapes, candidates)]
    if len(set(ordered)) != len(ordered):
        raise _unclear(optimizer, "two parameters would have one name")
    return ordered


def _written(value: JsonValue, group: Sequence[int]) -> list[str] | None:
    if (
        not isinstance(value, list)
        or len(value) != len(group)
        or not all(type(name) is str for name in value)
    ):
        return None
    return cast("list[str]", value)


def _by_order(
    optimizer: StatePath, group: Sequence[int], shapes: Mapping[int, Shape], candidates: Mapping[str, Shape]
) -> list[str]:
    wanted = [shapes.get(number) for number in group]
    names = list(candidates)
    extents = list(candidates.values())
    first = _places(wanted, extents)
    last = _places(wanted[::-1], extents[::-1])
    if first is None or last is None:
        raise _unclear(optimizer, "the model has no parameters of these shapes in this order")
    ordered = []
    for place, number in enumerate(group):
        early, late = first[place], len(names) - 1 - last[len(group) - 1 - place]
        if early != late:
            raise _unclear(
                optimizer, f"parameter {number} may be {names[early]!r:.100} or {names[late]!r:.100}"
            )
        ordered.append(names[early])
    return ordered


def _places(wanted: Sequence[Shape | None], there: Sequence[Shape]) -> list[int] | None:
    """Return the first places, ascending, of these shapes; None fits any."""
    positions: list[int] = []
    place = -1
    for shape in wanted:
        place += 1
        while place < len(there) and shape not in (None, there[place]):
            place += 1
        if place == len(there):
            return None
        positions.append(place)
    return positions


def _unclear(optimizer: StatePath, why: str) -> Exception:
    return error(
        "UCP-E-MISMATCH",
        f"{why}; leave order=module away, and its states keep their numbers",
        at=dotted(optimizer),
    )


def renamed_state(path: StatePath, names: Mapping[StatePath, Sequence[str]]) -> StatePath:
    """Return the path of a state with the parameter's name for its number."""
    for optimizer, listed in names.items():
        depth = len(optimizer)
        if path[:depth] == optimizer and len(path) > depth + 2 and path[depth] == STATE:
            key = path[depth + 1]
            if isinstance(key, NumberKey) and 0 <= key.number < len(listed):
                return (*path[: depth + 1], listed[key.number], *path[depth + 2 :])
    return path
