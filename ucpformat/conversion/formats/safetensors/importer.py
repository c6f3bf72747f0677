"""Safetensors to universal checkpoint: every tensor an atom with the slot ``value``, files beside them as blobs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.conversion.contract.foreign import Lost
from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.conversion.contract.map_choice import apply_maps
from ucpformat.conversion.formats.safetensors.directory import companions, find_weights
from ucpformat.errors import error
from ucpformat.model.state import StateDocument
from ucpformat.model.values import encode
from ucpformat.state_dict.keys.origins import SOURCE, state_annotations
from ucpformat.tensor_files.safetensors_file import StoredTensor
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from ucpformat.conversion.formats.safetensors.directory import Weights
    from ucpformat.jsonio import JsonValue
    from ucpformat.tensor_files.safetensors_file import SafetensorsEntry

__all__ = ["FORMAT", "INDEX_METADATA", "METADATA", "STEP", "import_safetensors"]

FORMAT: Final = "safetensors"
METADATA: Final = "safetensors.metadata"
"""The value that holds ``__metadata__`` of the files, joined."""
INDEX_METADATA: Final = "safetensors.index_metadata"
"""The value that holds ``metadata`` of the index, but for the sizes."""

STEP: Final = "ucp_step"
"""The entry of ``__metadata__`` that holds the training step."""

_COMPUTED: Final = ("total_size", "total_parameters")
_STEP: Final = re.compile("0|[1-9][0-9]{0,14}")
_MEDIA_TYPES: Final = {".json": "application/json", ".md": "text/markdown", ".txt": "text/plain"}


def import_safetensors(path: str | os.PathLike[str], *, settings: Mapping[str, str]) -> Job:
    """Plan the conversion of a safetensors file or a model's directory; no tensor is read yet.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming the file, for what is damaged, incomplete or ambiguous.
        UcpError: as `apply_maps`.
    """
    weights = find_weights(path, settings.get("weights", ""))
    atoms, sources = [], []
    for header in weights.headers.values():
        for key, entry in header.entries.items():
            spec = _slot(entry)
            atoms.append(AtomSpec(key, {"value": spec}))
            read = StoredTensor(weights.files, entry.location, spec.dtype, spec.shape)
            sources.append(SlotSource(key, "value", read))
    metadata = _metadata(weights)
    step = metadata.get(STEP)
    blobs: dict[str, bytes] = {}
    left: list[Lost] = []
    if Path(path).is_dir():
        blobs, left = companions(weights)
    job = Job(
        atoms,
        sources,
        StateDocument(_values(metadata, weights), {}, {}, state_annotations(FORMAT, {}, {})),
        {
            name: (_MEDIA_TYPES.get(Path(name).suffix, "application/octet-stream"), data)
            for name, data in blobs.items()
        },
        step=int(step) if isinstance(step, str) and _STEP.fullmatch(step) else None,
        dropped=[*weights.odd, *left],
    )
    if settings.get("map") and any(
        entry.packed.startswith("F6")
        for header in weights.headers.values()
        for entry in header.entries.values()
    ):
        raise error(
            "UCP-E-DTYPE", "tensors of 6-bit elements are carried as bytes, and no atom map can be applied"
        )
    job, dropped = apply_maps(job, settings)
    return replace(job, dropped=[*job.dropped, *(Lost(what, "the atom map says so") for what in dropped)])


def _slot(entry: SafetensorsEntry) -> SlotSpec:
    if entry.packed.startswith("F6"):
        # There is no such type here: the bytes are kept as they are, and the annotation says what they were.
        note: dict[str, JsonValue] = {SOURCE: {FORMAT: {"dtype": entry.packed, "shape": list(entry.shape)}}}
        return SlotSpec("uint8", (entry.location.length,), annotations=note)
    return SlotSpec(entry.dtype, entry.shape)


def _metadata(weights: Weights) -> dict[str, object]:
    """Return metadata of the files: joined where they agree, else by file."""
    joined: dict[str, object] = {}
    for header in weights.headers.values():
        for key, text in header.metadata.items():
            if joined.setdefault(key, text) != text:
                return {name: dict(header.metadata) for name, header in weights.headers.items()}
    return joined


def _values(metadata: Mapping[str, object], weights: Weights) -> dict[str, JsonValue]:
    values: dict[str, object] = {METADATA: {key: text for key, text in metadata.items() if key != STEP}}
    values[INDEX_METADATA] = {
        key: value for key, value in weights.index_metadata.items() if key not in _COMPUTED
    }
    return {name: encode(value, at=name) for name, value in values.items() if value}
