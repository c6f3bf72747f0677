"""Optimizer parameter groups between the keys of state dicts and the state document (SPEC section 15, appendix A.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from ucpformat.jsonio import JsonValue, dumps_canonical, equal
from ucpformat.model.state import Optimizer, ParameterGroup
from ucpformat.state_dict.keys.names import Form
from ucpformat.state_dict.keys.names import Optimizer as NamedOptimizer
from ucpformat.state_dict.keys.paths import KeyPath

__all__ = ["GroupOrigin", "expand_groups", "gather_groups"]

_GROUPS = "param_groups"
_PARAMS = "params"


@dataclass(frozen=True, slots=True)
class GroupOrigin:
    """How a state dict held an optimizer's groups: the path of its state dict, and whether that was flattened."""

    path: KeyPath
    form: Form


def gather_groups(
    found: NamedOptimizer,
    objects: Mapping[str, JsonValue],
    paths: Mapping[str, KeyPath | None],
    atoms: frozenset[str],
) -> Optimizer | None:
    """Return the parameter groups of a recognised optimizer, from its encoded objects.

    None where the groups cannot be expressed without loss: what `expand_groups` would make of them is compared.
    """
    keys = {key for group in found.groups for _, key in group.options}
    if not keys or not keys <= objects.keys():
        return None
    gathered = _nested(found, objects) if found.form == "nested" else _flattened(found, objects)
    if gathered is None or not all(name in atoms for group in gathered.groups for name in group.atoms):
        return None
    if len({name for group in gathered.groups for name in group.atoms}) != sum(
        len(group.atoms) for group in gathered.groups
    ):
        return None
    again = expand_groups(gathered, GroupOrigin(found.path, found.form))
    same = again.keys() == keys and all(
        equal(objects[key], value) and paths[key] in (None, path) for key, (path, value) in again.items()
    )
    return gathered if same else None


def _nested(found: NamedOptimizer, objects: Mapping[str, JsonValue]) -> Optimizer | None:
    groups = []
    for index, group in enumerate(sorted(found.groups, key=lambda group: group.of)):
        options = {option: objects[key] for option, key in group.options}
        names = options.pop(_PARAMS, None)
        if group.of != index or type(names) is not list or not all(type(name) is str for name in names):
            return None
        groups.append(ParameterGroup(tuple(cast("list[str]", names)), options))
    return Optimizer(tuple(groups))


def _flattened(found: NamedOptimizer, objects: Mapping[str, JsonValue]) -> Optimizer:
    """Group parameters with equal options; groups are in the order of their first parameters."""
    members: dict[bytes, tuple[list[str], dict[str, JsonValue]]] = {}
    for group in found.groups:
        options = {option: objects[key] for option, key in group.options}
        text = dumps_canonical(dict(sorted(options.items())))
        members.setdefault(text, ([], options))[0].append(str(group.of))
    return Optimizer(tuple(ParameterGroup(tuple(names), options) for names, options in members.values()))


def expand_groups(optimizer: Optimizer, origin: GroupOrigin) -> dict[str, tuple[KeyPath, JsonValue]]:
    """Return the state dict's keys for an optimizer's groups: key to path and encoded object."""
    expanded: dict[str, tuple[KeyPath, JsonValue]] = {}

    def put(path: KeyPath, value: JsonValue) -> None:
        expanded[".".join(map(str, path))] = (path, value)

    for index, group in enumerate(optimizer.groups):
        if origin.form == "nested":
            for option, value in group.options.items():
                put((*origin.path, _GROUPS, index, option), value)
            put((*origin.path, _GROUPS, index, _PARAMS), list(group.atoms))
        else:
            for name in group.atoms:
                for option, value in group.options.items():
                    put((*origin.path, f"{_GROUPS}.{name}.{option}"), value)
    return expanded
