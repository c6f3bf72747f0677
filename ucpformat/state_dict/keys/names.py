"""Recognising model values and optimizer states among the keys of a DCP checkpoint.

DCP flattens a nested state dict: ``("model", "layers.0.w")`` becomes the key ``model.layers.0.w``, and the
planner keeps the path. Optimizer states come nested, ``("optim", "state", "layers.0.w", "exp_avg")``, or
flattened, ``("optim", "state.layers.0.w.exp_avg")`` (``flatten_optimizer_state_dict=True``). What is not
recognised keeps its whole key as the atom's name, with the slot ``value``. The map from keys to (atom, slot)
is injective whatever the keys are: a model or optimizer whose names collide is not recognised at all.
Source: torch/distributed/checkpoint/_nested_dict.py and state_dict.py of PyTorch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ucpformat.model.names import MAX_COMPONENT_BYTES, is_component
from ucpformat.state_dict.keys.paths import KeyPath

__all__ = ["Assignment", "Names", "Optimizer", "ParamGroup", "recognise"]

VALUE: Final = "value"
_MODEL_NAMES: Final = ("model", "model_state_dict")
_NO_COMPONENT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_STATE: Final = "state"
_GROUPS: Final = "param_groups"

Form = Literal["nested", "flattened"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a tensor goes: the atom's name and the slot."""

    name: str
    slot: str


@dataclass(frozen=True, slots=True)
class ParamGroup:
    """A parameter group's options: ``of`` is its index (nested) or one parameter's name (flattened).

    ``options`` are (option, key) in the order of the checkpoint.
    """

    of: int | str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A recognised optimizer: ``name`` is its dotted path (``optim``).

    ``object_states`` are states that are objects and not tensors, as (key, atom, slot).
    """

    name: str
    path: KeyPath
    form: Form
    object_states: tuple[tuple[str, str, str], ...]
    groups: tuple[ParamGroup, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """The assignment of every tensor key, and the optimizers that were recognised."""

    assignments: Mapping[str, Assignment]
    optimizers: tuple[Optimizer, ...]


@dataclass(slots=True)
class _Candidate:
    """What lies under one path that looks like an optimizer's state dict."""

    path: KeyPath
    forms: set[Form] = field(default_factory=set)
    states: dict[str, tuple[str | int, ...]] = field(default_factory=dict)  # key -> what follows "state"
    groups: dict[str, tuple[str | int, ...]] = field(
        default_factory=dict
    )  # key -> what follows "param_groups"


def recognise(tensors: Mapping[str, KeyPath | None], objects: Mapping[str, KeyPath | None]) -> Names:
    """Assign an atom and a slot to every tensor key; ``tensors`` and ``objects`` map keys to planner paths.

    A state is recognised only where its parameter has a value tensor. A pure function of its arguments.
    """
    everything = {**objects, **tensors}
    paths = {key: path if path is not None else _guess(key, everything) for key, path in everything.items()}
    optimizers = _candidates(paths)
    inside = {key for found in optimizers.values() for key in (*found.states, *found.groups)}
    models = _models({key: paths[key] for key in tensors if key not in inside})
    owners = {path: _owner(found, models, tensors) for path, found in optimizers.items()}
    named = {path for path in models if path and path[-1] in _MODEL_NAMES}
    chosen = named | {owner for owner in owners.values() if owner is not None}

    units: dict[KeyPath, dict[str, Assignment]] = {}
    for path in chosen:
        units[path] = {key: Assignment(name, VALUE) for name, key in models[path].items()}
    states: dict[KeyPath, dict[str, Assignment]] = {}
    for path, owner in owners.items():
        if owner is not None:
            states[path] = _states(optimizers[path], models[owner])
    _drop_collisions(tensors, units, states, owners)

    assignments = {key: Assignment(key, VALUE) for key in tensors}
    for part in (*units.values(), *states.values()):
        assignments.update({key: value for key, value in part.items() if key in tensors})
    found_optimizers = [
        _optimizer(optimizers[path], part, models[owner], tensors)
        for path, part in sorted(states.items(), key=lambda item: str(item[0]))
        if (owner := owners[path]) is not None and (part or not optimizers[path].states)
    ]
    return Names(assignments, tuple(found_optimizers))


def _guess(key: str, keys: Iterable[str]) -> KeyPath:
    """Return a path for a key without one: only optimizer states, and models where an optimizer is."""
    head, _, rest = key.partition(".")
    for section in (_STATE, _GROUPS):
        if rest.startswith(f"{section}."):
            return (head, rest)
    if head in _MODEL_NAMES and rest and any(f".{_STATE}." in other for other in keys):
        return (head, rest)
    return (key,)


def _candidates(paths: Mapping[str, KeyPath]) -> dict[KeyPath, _Candidate]:
    found: dict[KeyPath, _Candidate] = {}
    for key, path in paths.items():
        for index, part in enumerate(path):
            if not isinstance(part, str):  # one of a list of optimizers, as Lightning has
                continue
            section = next(
                (name for name in (_STATE, _GROUPS) if part == name or part.startswith(f"{name}.")), None
            )
            if section is None:
                continue
            nested = part == section
            rest = path[index + 1 :] if nested else (part[len(section) + 1 :],)
            if (nested and len(rest) < 2) or (not nested and index + 1 != len(path)):
                break
            candidate = found.setdefault(path[:index], _Candidate(path[:index]))
            candidate.forms.add("nested" if nested else "flattened")
            (candidate.states if section == _STATE else candidate.groups)[key] = rest
            break
    return {path: candidate for path, candidate in found.items() if len(candidate.forms) == 1}


def _models(paths: Mapping[str, KeyPath]) -> dict[KeyPath, dict[str, str]]:
    """Return, for each path that may be a model's, its tensors: fully qualified name -> key."""
    models: dict[KeyPath, dict[str, str]] = {}
    for key, path in paths.items():
        cut = next((i + 1 for i, part in enumerate(path[:-1]) if part in _MODEL_NAMES), len(path) - 1)
        name = ".".join(map(str, path[cut:]))
        if name:
            models.setdefault(path[:cut], {})[name] = key
    return models


def _owner(
    found: _Candidate, models: Mapping[KeyPath, Mapping[str, str]], tensors: Mapping[str, object]
) -> KeyPath | None:
    """Return the one model that the optimizer belongs to: by name, else by holding all its parameters."""
    wanted = [rest for key, rest in found.states.items() if key in tensors] or [*found.states.values()]
    if not wanted:
        wanted = [rest for rest in found.groups.values() if isinstance(rest[0], str)]
    hits = {path: sum(_split(rest, names) is not None for rest in wanted) for path, names in models.items()}
    by_name = [
        path for path, count in hits.items() if path and path[-1] in _MODEL_NAMES and (count or not wanted)
    ]
    by_content = [path for path, count in hits.items() if count and count == len(wanted)]
    for owners in (by_name, by_content):
        if owners:
            return owners[0] if len(owners) == 1 else None
    return None


def _split(rest: tuple[str | int, ...], names: Mapping[str, str]) -> tuple[str, str] | None:
    """Split what follows ``state`` into a parameter of ``names`` and a slot; the longest name wins."""
    if not isinstance(rest[0], str):
        return None  # an optimizer's own count of its parameters, which names none
    if len(rest) > 1:
        name, slot = rest[0], ".".join(map(str, rest[1:]))
        return (name, slot) if name in names and slot else None
    text = rest[0]
    end = text.rfind(".")
    while end > 0:
        if text[:end] in names and text[end + 1 :]:
            return text[:end], text[end + 1 :]
        end = text.rfind(".", 0, end)
    return None


def _states(found: _Candidate, names: Mapping[str, str]) -> dict[str, Assignment]:
    return {
        key: Assignment(parts[0], _slot(parts[1]))
        for key, rest in found.states.items()
        if (parts := _split(rest, names)) is not None
    }


def _slot(text: str) -> str:
    """Return the name of a slot for a state: the state's, or, where that is no component of a key, what is left of it.

    bitsandbytes keeps its states in ``__bnb_optimizer_quant_state__``. The path is kept beside it in any case.
    """
    if is_component(text):
        return text
    return _NO_COMPONENT.sub("_", text).lstrip("._")[:MAX_COMPONENT_BYTES].rstrip(".") or VALUE


def _drop_collisions(
    tensors: Mapping[str, object],
    units: dict[KeyPath, dict[str, Assignment]],
    states: dict[KeyPath, dict[str, Assignment]],
    owners: Mapping[KeyPath, KeyPath | None],
) -> None:
    """Give up models and optimizers until no two keys share an atom and a slot."""
    while True:
        taken: dict[Assignment, list[tuple[dict[KeyPath, dict[str, Assignment]], KeyPath]]] = {}
        recognised: set[str] = set()
        for group in (units, states):
            for path, part in group.items():
                recognised |= part.keys()
                for assignment in part.values():
                    taken.setdefault(assignment, []).append((group, path))
        plain = {Assignment(key, VALUE) for key in tensors if key not in recognised}
        losers = [
            member
            for assignment, members in taken.items()
            if len(members) > 1 or assignment in plain
            for member in members
            # A root model's names are its keys: it cannot step back, the others can.
            if member[0] is states or member[1] != ()
        ]
        if not losers:
            return
        for group, path in losers:
            group.pop(path, None)
        for path, owner in owners.items():
            if owner is not None and owner not in units:
                states.pop(path, None)


def _optimizer(
    found: _Candidate, part: Mapping[str, Assignment], names: Mapping[str, str], tensors: Mapping[str, object]
) -> Optimizer:
    form = next(iter(found.forms))
    groups: dict[int | str, list[tuple[str, str]]] = {}
    for key, rest in found.groups.items():
        if form == "nested" and isinstance(rest[0], int):
            groups.setdefault(rest[0], []).append((".".join(map(str, rest[1:])), key))
        elif form == "flattened" and (parts := _split(rest, names)) is not None:
            groups.setdefault(parts[0], []).append((parts[1], key))
    return Optimizer(
        ".".join(map(str, found.path)),
        found.path,
        form,
        tuple((key, to.name, to.slot) for key, to in part.items() if key not in tensors),
        tuple(ParamGroup(of, tuple(options)) for of, options in groups.items()),
    )
