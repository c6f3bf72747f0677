"""Objects of a state dict as a state document: parameter groups where they are recognised, values elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ucpformat.model.state import StateDocument
from ucpformat.state_dict.keys.groups import gather_groups
from ucpformat.state_dict.keys.origins import state_annotations

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ucpformat.jsonio import JsonValue
    from ucpformat.state_dict.keys.names import Names
    from ucpformat.state_dict.keys.paths import KeyPath, StatePath

__all__ = ["state_document"]


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
    """The document of encoded objects, by dotted name; ``kind`` says what they were taken from.

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
