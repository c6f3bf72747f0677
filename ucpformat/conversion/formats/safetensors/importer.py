"""Safetensors to universal checkpoint: every tensor an atom with the slot ``value``, files beside them as blobs.

With an index (``model.safetensors.index.json``: ``weight_map`` from names to files) weights are in the files that the
index names; without, in one file, or files numbered ``-<i>-of-<n>``. Source: ``get_checkpoint_shard_files`` of
transformers, and huggingface_hub/serialization/_base.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.conversion.contract.foreign import Lost
from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.conversion.contract.map_choice import apply_maps
from ucpformat.conversion.dcp_files.hugging_face import SHARDING_INFO
from ucpformat.errors import UcpError, error
from ucpformat.model.state import StateDocument
from ucpformat.model.values import encode
from ucpformat.state_dict.keys.origins import SOURCE, state_annotations
from ucpformat.tensor_files.safetensors_file import StoredTensor, parse_object, read_header
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue
    from ucpformat.tensor_files.safetensors_file import SafetensorsEntry, SafetensorsHeader

__all__ = ["FORMAT", "INDEX_METADATA", "METADATA", "STEP", "SUFFIX", "detect", "import_safetensors"]

FORMAT: Final = "safetensors"
METADATA: Final = "safetensors.metadata"
"""The value that holds ``__metadata__`` of the files, joined."""
INDEX_METADATA: Final = "safetensors.index_metadata"
"""The value that holds ``metadata`` of the index, but for the sizes."""

STEP: Final = "ucp_step"
"""The entry of ``__metadata__`` that holds the training step."""

SUFFIX: Final = ".safetensors"
INDEX_SUFFIX: Final = ".safetensors.index.json"
_NUMBERED: Final = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})\.safetensors")
_MAX_INDEX: Final = 256 << 20
_MAX_COMPANION: Final = 256 << 20
_OTHER_WEIGHTS: Final = re.compile(
    r".*\.(safetensors|safetensors\.index\.json|bin|bin\.index\.json|pt|pth|ckpt|h5|msgpack|onnx|gguf|ggml|ot|pkl|npz|tflite)"
)
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


@dataclass(frozen=True, slots=True)
class Weights:
    """The files that hold the weights with their headers, in order, and what the index says beside ``weight_map``."""

    files: SourceFiles
    headers: Mapping[str, SafetensorsHeader]
    index: str | None
    index_metadata: Mapping[str, JsonValue]
    odd: Sequence[Lost] = ()
    """What is missing or does not fit, although the rest can be read."""


def detect(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a safetensors file, or a directory with some at its top; never raises."""
    source = Path(path)
    try:
        if source.is_file():
            return source.name.endswith(SUFFIX)
        return any(name.endswith((SUFFIX, INDEX_SUFFIX)) for name in SourceFiles(source).names())
    except (OSError, ValueError):
        return False


def find_weights(path: str | os.PathLike[str], chosen: str) -> Weights:
    """Return the weights of a file or directory; ``chosen`` names one file or index of it, where there are several.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming the file, for what is missing, damaged or ambiguous.
    """
    source = Path(path)
    if source.is_file():
        files, chosen = SourceFiles.beside(source)
    else:
        files = SourceFiles(source)
    names = [name for name in files.names() if name.endswith((SUFFIX, INDEX_SUFFIX))]
    if chosen:
        if chosen not in names:
            raise _refused(
                f"there is no {chosen!r:.200}; there are {', '.join(names[:8]) or 'none'}", str(source)
            )
        names = [chosen]
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    if not names:
        raise _refused("there are no safetensors files", str(source))
    if len(indexes) > 1:
        raise _refused(
            f"several indexes: choose one with weights=NAME ({', '.join(indexes[:8])})", indexes[1]
        )
    if indexes:
        weights = _indexed(files, indexes[0])
        _refuse_others([name for name in names if name not in (indexes[0], *weights.headers)], indexes[0])
        return weights
    number = _NUMBERED.fullmatch(names[0])
    if source.is_file() and number is not None and int(number[3]) > 1:
        raise _refused(
            f"it is file {int(number[2])} of {int(number[3])} of a model: give the directory, or with "
            f"--from-set weights={names[0]} this file of it alone",
            names[0],
        )
    missing: list[Lost] = []
    if not chosen and (len(names) > 1 or number is not None):
        _check_numbers(names)
        index = f"{number[1] if number else 'model'}{INDEX_SUFFIX}"
        missing.append(
            Lost(f"files/{index}", "it is missing: what it says beside names is lost", matters=False)
        )
    headers = {name: read_header(files, name) for name in names}
    _check_whole(headers)
    return Weights(files, headers, None, {}, missing)


def _refused(message: str, at: str) -> UcpError:
    return error("UCP-E-SOURCE", message, at=at)


def _indexed(files: SourceFiles, index: str) -> Weights:
    document = parse_object(files.read(index, _MAX_INDEX), index)
    weight_map = document.pop("weight_map", None)
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise _refused("the index has no weight_map from names to files", index)
    headers = {name: read_header(files, name) for name in sorted(set(weight_map.values()))}
    _check_whole(headers)
    held = {key: name for name, header in headers.items() for key in header.entries}
    for key in sorted(held.keys() | weight_map.keys()):
        there, said = held.get(key, "no file"), weight_map.get(key, "no file")
        if there != said:
            raise _refused(f"{key!r:.200} is in {there}, and by the index in {said}", index)
    metadata = document.get("metadata")
    noted = metadata if isinstance(metadata, dict) else {}
    said, actual = noted.get("total_size"), sum(_nbytes(header) for header in headers.values())
    odd = []
    if type(said) in (int, float) and said != actual:
        # Converters of published models have counted in another type, or tied tensors twice; names decide.
        why = f"its total_size is {said}, and the tensors that it names have {actual} bytes"
        odd.append(Lost(f"files/{index}", why, matters=False))
    return Weights(files, headers, index, noted, odd)


def _nbytes(header: SafetensorsHeader) -> int:
    return sum(entry.location.length for entry in header.entries.values())


def _check_numbers(names: Sequence[str]) -> None:
    """Refuse files that are not 1 to n of n under one name."""
    matches = [match for name in names if (match := _NUMBERED.fullmatch(name))]
    if len(matches) != len(names) or len({(match[1], match[3]) for match in matches}) != 1:
        _refuse_others(names[1:], names[0])
    count = int(matches[0][3])
    missing = set(range(1, min(count, 1_000_000) + 1)) ^ {int(match[2]) for match in matches}
    if missing:
        gone = f"{matches[0][1]}-{min(missing):05}-of-{matches[0][3]}{SUFFIX}"
        raise _refused(
            f"file {min(missing)} of {count} is missing, beside {names[0]}, and there is no index", gone
        )


def _refuse_others(names: Sequence[str], chosen: str) -> None:
    if names:
        raise _refused(
            f"it is not one of the files of {chosen}: choose what is to be read with weights=NAME", names[0]
        )


def _check_whole(headers: Mapping[str, SafetensorsHeader]) -> None:
    places: dict[str, str] = {}
    for name, header in headers.items():
        if SHARDING_INFO in header.metadata:
            raise _refused("written by torch's HuggingFaceStorageWriter: read it with --from dcp", name)
        for key in header.entries:
            if places.setdefault(key, name) != name:
                raise _refused(f"{key!r:.200} is in {places[key]} as well", name)


def companions(weights: Weights) -> tuple[dict[str, bytes], list[Lost]]:
    """Return the other files at the top of the directory with their bytes, and those that are left out with the reason.

    Hidden files and folders (``.gitattributes``, ``.cache``) are nobody's loss.
    """
    blobs: dict[str, bytes] = {}
    left: list[Lost] = []
    for name in weights.files.names():
        if name in weights.headers or name == weights.index:
            continue
        if (weights.files.root / name).is_dir():
            why, matters = "a directory inside the model's", not name.startswith(".")
            left.append(Lost(f"files/{name}", why, matters))
        elif name.startswith("."):
            left.append(Lost(f"files/{name}", "a hidden file", matters=False))
        elif _OTHER_WEIGHTS.fullmatch(name):
            left.append(Lost(f"files/{name}", "other weights beside the ones that are read"))
        elif weights.files.size(name) > _MAX_COMPANION:
            left.append(Lost(f"files/{name}", f"a file of more than {_MAX_COMPANION >> 20} MiB"))
        else:
            blobs[name] = weights.files.read(name, _MAX_COMPANION)
    return blobs, left
