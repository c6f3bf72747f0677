"""What an importer keeps of where things came from, as annotations: the way back restores every key by it.

The annotation `SOURCE` stands on slots (``path``: the path in the nested state dict), on atoms with tied names
(``aliases``: their paths) and on the state document (``kind``, ``paths`` of values that are not at the top level,
and per optimizer its ``path`` and ``form``). Annotations bind nobody: readers take anything unexpected as absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ucpformat.model.state import StateDocument
from ucpformat.state_dict.keys.groups import GroupOrigin, gather_groups
from ucpformat.state_dict.keys.paths import KeyPath, NumberKey, StatePath, path_from_json, path_to_json

if TYPE_CHECKING:
    from collections.abc import Collection

    from ucpformat.jsonio import JsonValue
    from ucpformat.state_dict.keys.names import Form, Names

    class _Named(Protocol):
        """An atom, of a checkpoint or declared: `alias_paths` reads both attributes, which raise nothing."""

        @property
        def aliases(self) -> tuple[str, ...]: ...
        @property
        def annotations(self) -> Mapping[str, JsonValue]: ...


__all__ = [
    "SOURCE",
    "alias_annotations",
    "alias_paths",
    "group_origin",
    "key_path",
    "slot_annotations",
    "slot_path",
    "state_annotations",
    "state_document",
    "value_paths",
]

SOURCE: Final = "org.ucpformat.source"


def slot_annotations(path: StatePath) -> dict[str, JsonValue]:
    """Return annotations of a slot that came from ``path``."""
    return {SOURCE: {"path": path_to_json(path)}}


def slot_path(atom: str, slot: str, annotations: Mapping[str, JsonValue]) -> StatePath:
    """Return the path of a slot in a state dict: where it came from, else where ``get_state_dict`` has such states."""
    found = annotations.get(SOURCE)
    path = path_from_json(found.get("path")) if isinstance(found, dict) else None
    if path is not None:
        return path
    return ("model", atom) if slot == "value" else ("optim", "state", atom, slot)


def alias_annotations(paths: Sequence[StatePath]) -> dict[str, JsonValue]:
    """Return annotations of an atom whose value has tied names, which came from ``paths``."""
    return {SOURCE: {"aliases": [path_to_json(path) for path in paths]}} if paths else {}


def alias_paths(atom: _Named) -> list[StatePath]:
    """Return where the tied names of an atom's value belong in a state dict."""
    source = atom.annotations.get(SOURCE)
    kept = source.get("aliases") if isinstance(source, dict) else None
    if isinstance(kept, list):
        paths = [path_from_json(item) for item in kept]
        return [path for path in paths if path is not None]
    return [("model", alias) for alias in atom.aliases]


def state_annotations(
    kind: str, optimizers: Mapping[str, tuple[KeyPath, Form]], paths: Mapping[str, StatePath | None]
) -> dict[str, JsonValue]:
    """Return annotations of the state document."""
    return {
        SOURCE: {
            "kind": kind,
            "optimizers": {
                name: {"path": path_to_json(path), "form": form} for name, (path, form) in optimizers.items()
            },
            "paths": {
                name: path_to_json(path) for name, path in paths.items() if path not in (None, (name,))
            },
        }
    }


def _member(state: StateDocument, member: str) -> Mapping[str, JsonValue]:
    found = state.annotations.get(SOURCE)
    value = found.get(member) if isinstance(found, dict) else None
    return value if isinstance(value, dict) else {}


def value_paths(state: StateDocument) -> dict[str, StatePath]:
    """Return paths of values and blobs that are not at the top level, by name."""
    found = {name: path_from_json(value) for name, value in _member(state, "paths").items()}
    return {name: path for name, path in found.items() if path is not None}


def group_origin(state: StateDocument, name: str) -> GroupOrigin:
    """Return how an optimizer's groups were held; as ``get_state_dict`` has them where that is not known."""
    value = _member(state, "optimizers").get(name)
    path = path_from_json(value.get("path")) if isinstance(value, dict) else None
    form: Form = "flattened" if isinstance(value, dict) and value.get("form") == "flattened" else "nested"
    return GroupOrigin(key_path(path) if path is not None else (name,), form)


def key_path(path: StatePath) -> KeyPath:
    """Return a path as DCP has it: an integer key of a mapping is a number."""
    return tuple(step.number if isinstance(step, NumberKey) else step for step in path)


def state_document(
    kind: str,
    encoded: Mapping[str, JsonValue],
    paths: Mapping[str, StatePath | None],
    key_paths: Mapping[str, KeyPath | None],
    names: Names,
    atoms: frozenset[str],
    *,
    blobs: Collection[str] = (),
) -> StateDocument:
    """Return the document of encoded objects, by dotted name; ``kind`` says what they were taken from.

    ``blobs`` are names of objects that are carried as bytes, whose paths are noted as well.
    """
    values = dict(encoded)
    optimizers = {}
    origins = {}
    for optimizer in names.optimizers:
        gathered = gather_groups(optimizer, values, key_paths, atoms)
        if gathered is not None:
            optimizers[optimizer.name] = gathered
            origins[optimizer.name] = (optimizer.path, optimizer.form)
            for group in optimizer.groups:
                for _, key in group.options:
                    del values[key]
    annotations = state_annotations(
        kind, origins, {name: path for name, path in paths.items() if name in values or name in blobs}
    )
    return StateDocument(values, optimizers, {}, annotations)
