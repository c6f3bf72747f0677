"""Nested state dicts as flat paths, and back.

Mappings are always entered; lists only where they hold a mapping or a tensor, as torch's own flattening does
(torch/distributed/checkpoint/_traverse.py, PyTorch 2.13). An empty mapping is a leaf, so that nothing is lost.
A step is a `str` (key of a mapping), an `int` (place in a list), or a `NumberKey` (integer key of a mapping).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from ucpformat.errors import UcpError, error
from ucpformat.jsonio import JsonValue

__all__ = [
    "KeyPath",
    "NumberKey",
    "StatePath",
    "build",
    "dotted",
    "flatten",
    "named_leaves",
    "path_from_json",
    "path_to_json",
    "replace",
]


_MAX_STEPS: Final = 128


@dataclass(frozen=True, slots=True)
class NumberKey:
    """An integer key of a mapping, as optimizers use for parameters."""

    number: int

    def __str__(self) -> str:
        return str(self.number)


Step = str | int | NumberKey
StatePath = tuple[Step, ...]
KeyPath = tuple[str | int, ...]
"""A path as torch DCP has it, which does not tell an integer key from a place in a list."""


def dotted(path: StatePath) -> str:
    """Return the path as one name, joined by dots."""
    return ".".join(map(str, path))


def flatten(state: Mapping[Any, Any], is_tensor: Callable[[object], bool]) -> dict[StatePath, object]:
    """Return leaves by path; raises as `named_leaves`."""
    return named_leaves(state, is_tensor)[1]


def named_leaves(
    state: Mapping[Any, Any], is_tensor: Callable[[object], bool]
) -> tuple[dict[str, StatePath], dict[StatePath, object]]:
    """Return the paths of leaves by dotted name, and leaves by path.

    Raises:
        ImportRefusedError: ``UCP-E-OBJECT`` for a key that is neither a string nor an integer, or for a state
            that contains itself.
        InvalidCheckpointError: ``UCP-E-NAME`` where two paths have one dotted name.
    """
    leaves: dict[StatePath, object] = {}
    _enter((), state, is_tensor, leaves)
    names: dict[str, StatePath] = {}
    for path in leaves:
        other = names.setdefault(dotted(path), path)
        if other != path:
            raise error("UCP-E-NAME", f"two entries of the state have the name {dotted(path)!r}; rename one")
    return names, leaves


def _enter(
    path: StatePath, value: object, is_tensor: Callable[[object], bool], leaves: dict[StatePath, object]
) -> None:
    """Add the leaves of a value, which lies at ``path``."""
    if len(path) > _MAX_STEPS:
        raise error(
            "UCP-E-OBJECT",
            f"the state nests more than {_MAX_STEPS} deep, or contains itself",
            at=dotted(path[:4]),
        )
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            _enter((*path, _step(key, path)), item, is_tensor, leaves)
    elif isinstance(value, list) and _is_entered(value, is_tensor):
        for place, item in enumerate(value):
            _enter((*path, place), item, is_tensor, leaves)
    elif path:
        leaves[path] = value


def _step(key: object, path: StatePath) -> Step:
    if type(key) is str:
        return key
    if type(key) is int:
        return NumberKey(key)
    raise error("UCP-E-OBJECT", f"a state's key must be a string or an integer, not {key!r}", at=dotted(path))


def _is_entered(items: list[object], is_tensor: Callable[[object], bool], depth: int = 0) -> bool:
    # A list that contains itself is entered, and refused on the way.
    return depth > _MAX_STEPS or any(
        is_tensor(item)
        or isinstance(item, Mapping)
        or (isinstance(item, list) and _is_entered(item, is_tensor, depth + 1))
        for item in items
    )


class _Places(dict[int, Any]):
    """A list under construction: items by place."""


def build(leaves: Mapping[StatePath, object]) -> dict[Any, Any]:
    """Return the nested state of flat leaves. A list whose places are not 0 to n - 1 becomes a dict by place.

    Raises:
        InvalidCheckpointError: ``UCP-E-NAME`` where one leaf would lie inside another.
    """
    root: dict[Any, Any] = {}
    made = {id(root)}
    for path, leaf in leaves.items():
        container = root
        for step, following in pairwise(path):
            fresh: dict[Any, Any] = _Places() if type(following) is int else {}
            inner = container.setdefault(_key(step), fresh)
            if inner is fresh:
                made.add(id(inner))
            if id(inner) not in made or type(inner) is not type(fresh):
                raise _inside_another(path)
            container = inner
        if _key(path[-1]) in container:
            raise _inside_another(path)
        container[_key(path[-1])] = leaf
    _finish(root, made)
    return root


def _inside_another(path: StatePath) -> UcpError:
    return error("UCP-E-NAME", f"{dotted(path)!r} lies where another entry of the state lies")


def _finish(container: dict[Any, Any], made: set[int]) -> None:
    """Turn the places of lists into lists, inside ``container``; leaves are left alone."""
    for key, item in container.items():
        if id(item) in made:
            _finish(item, made)
            if type(item) is _Places:
                dense = item.keys() == set(range(len(item)))
                container[key] = [item[place] for place in range(len(item))] if dense else dict(item)


def _key(step: Step) -> Any:
    return step.number if isinstance(step, NumberKey) else step


def replace(state: Any, path: StatePath, value: object) -> None:
    """Put ``value`` where ``path`` leads in an existing nested state."""
    container = state
    for step in path[:-1]:
        container = container[_key(step)]
    container[_key(path[-1])] = value


def path_to_json(path: StatePath) -> list[JsonValue]:
    """Return a path as an annotation keeps it: a number key is an array of one number."""
    return [[step.number] if isinstance(step, NumberKey) else step for step in path]


def path_from_json(value: JsonValue) -> StatePath | None:
    """Return the path that an annotation keeps. Annotations are hints: anything unexpected is None."""
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_STEPS:
        return None
    steps: list[Step] = []
    for item in value:
        if type(item) is str or (type(item) is int and item >= 0):
            steps.append(item)
        elif isinstance(item, list) and len(item) == 1 and type(item[0]) is int:
            steps.append(NumberKey(item[0]))
        else:
            return None
    return tuple(steps)
