"""Universal checkpoint to safetensors: the weights, under the names that are asked for, and the files beside them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.conversion.contract.casting import cast_job
from ucpformat.conversion.contract.foreign import ExportPlan, Lost
from ucpformat.conversion.contract.map_choice import apply_maps
from ucpformat.conversion.contract.weights import weights_alone
from ucpformat.conversion.formats.safetensors.importer import FORMAT, INDEX_METADATA, METADATA, STEP, SUFFIX
from ucpformat.conversion.formats.safetensors.write import OutTensor, index_document, shards, write_file
from ucpformat.errors import UcpError, error
from ucpformat.model.values import decode
from ucpformat.state_dict.keys.origins import SOURCE
from ucpformat.tensor_files.out_files import OutFile, OutFiles, text_file
from ucpformat.tensor_files.safetensors_file import FOUR_BITS, STORED_NAMES

if TYPE_CHECKING:
    from ucpformat.conversion.contract.content import Content
    from ucpformat.conversion.contract.job import Job, ReadBox
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.state import StateDocument
    from ucpformat.writer import SlotSpec

__all__ = ["export_safetensors"]

_SIZE: Final = re.compile(r"([0-9]{1,15})\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_DEFAULT_SIZE: Final = "5GB"
_PACKED: Final = ("F6_E2M3", "F6_E3M2")
_FILE_NAME: Final = re.compile(r"(?!\.)[^/\\\x00-\x1f:]{1,200}")


def export_safetensors(
    content: Content,
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, str],
) -> ExportPlan:
    """Plan a model's directory, or a single file where ``path`` ends in ``.safetensors``.

    Raises:
        UcpError: ``UCP-E-MISMATCH`` for settings; ``UCP-E-DTYPE`` for types that safetensors lacks; as `apply_maps` and
            `cast_job`.
    """
    limit = _bytes(settings.get("max_shard_size") or _DEFAULT_SIZE)
    job, left = weights_alone(content.job, settings)
    dropped = [Lost(what, why) for what, why in left.items()]
    job, unmapped = apply_maps(job, settings)
    dropped += [Lost(what, "the atom map says so") for what in unmapped]
    cast: list[str] = []
    if settings.get("dtype"):
        job, cast = cast_job(job, settings["dtype"])
    tensors = _tensors(job, copies=_copies(settings.get("aliases") or "copy"))
    metadata, index_metadata, values = _metadata(job.state)
    if job.step is not None:
        metadata[STEP] = str(job.step)
    dropped += [Lost(f"values/{name}", "safetensors hold text beside tensors") for name in values]
    dropped += [Lost(f"optimizers/{name}", "safetensors hold no optimizer") for name in job.state.optimizers]
    single = Path(path).name.endswith(SUFFIX)
    beside: dict[str, bytes] = {}
    for name, (_, data) in job.blobs.items():
        if single:
            dropped.append(Lost(f"blobs/{name}", "there is no directory to put it into"))
        elif _FILE_NAME.fullmatch(name) is None or name.endswith((SUFFIX, ".safetensors.index.json")):
            dropped.append(Lost(f"blobs/{name}", "its name cannot be that of a file beside the weights"))
        else:
            beside[name] = data

    if single:
        files = OutFiles([_file(Path(path).name, tensors, metadata)], is_single=True)
    else:
        files = _directory(tensors, limit, metadata, index_metadata, beside)
    told = dict.fromkeys(cast, settings.get("dtype", ""))
    return ExportPlan(len(beside) + len(metadata), files=files, dropped=dropped, cast=told)


def _file(name: str, tensors: Sequence[OutTensor], metadata: Mapping[str, str]) -> OutFile:
    nbytes = sum(tensor.nbytes for tensor in tensors)
    return OutFile(name, nbytes, partial(write_file, tensors=tensors, metadata=metadata))


def _directory(
    tensors: list[OutTensor],
    limit: int,
    metadata: Mapping[str, str],
    index_metadata: Mapping[str, object],
    beside: Mapping[str, bytes],
) -> OutFiles:
    parts = shards(tensors, limit)
    names = (
        [f"model{SUFFIX}"]
        if len(parts) == 1
        else [f"model-{number:05}-of-{len(parts):05}{SUFFIX}" for number in range(1, len(parts) + 1)]
    )
    files = [_file(name, part, metadata) for name, part in zip(names, parts, strict=True)]
    files += [text_file(name, data) for name, data in beside.items()]
    if len(parts) == 1:
        return OutFiles(files)
    # Last: without it, nobody takes some of the files for all.
    document = index_document(dict(zip(names, parts, strict=True)), index_metadata)
    return OutFiles(files, lambda _: [text_file(f"model{SUFFIX}.index.json", document)])


def _tensors(job: Job, *, copies: bool) -> list[OutTensor]:
    """Return what is written, in order of name; tied weights under each of their names, or under the first."""
    read = {source.atom: source.read for source in job.sources}
    tensors = [
        _tensor(name, atom.slots["value"], read[atom.name])
        for atom in job.atoms
        for name in (atom.name, *(atom.aliases if copies else ()))
    ]
    names = [tensor.name for tensor in tensors]
    if "__metadata__" in names:
        raise error("UCP-E-NAME", "safetensors keep the name '__metadata__' for themselves; rename the atom")
    return sorted(tensors, key=lambda tensor: tensor.name)


def _tensor(name: str, slot: SlotSpec, read: ReadBox) -> OutTensor:
    packed = _packed(slot)
    if packed is not None:
        return OutTensor(name, *packed, slot.dtype, slot.shape, read)
    stored = STORED_NAMES.get(slot.dtype)
    if stored is None or (slot.dtype == FOUR_BITS and math.prod(slot.shape) % 2):
        odd = " with an odd number of elements" if stored else ""
        raise error("UCP-E-DTYPE", f"safetensors have no {slot.dtype}{odd}: give dtype=TYPE to cast", at=name)
    return OutTensor(name, stored, slot.shape, slot.dtype, slot.shape, read)


def _packed(slot: SlotSpec) -> tuple[str, tuple[int, ...]] | None:
    """Return the type and shape of what was carried as bytes. Annotations are hints: what does not fit is ignored."""
    source = slot.annotations.get(SOURCE)
    kept = source.get(FORMAT) if isinstance(source, dict) else None
    if not isinstance(kept, dict) or slot.dtype != "uint8":
        return None
    kind, shape = kept.get("dtype"), kept.get("shape")
    if kind not in _PACKED or not isinstance(shape, list):
        return None
    extents = tuple(extent for extent in shape if type(extent) is int and extent >= 0)
    if len(extents) != len(shape) or math.prod(extents) * 6 != math.prod(slot.shape) * 8:
        return None
    return str(kind), extents


def _metadata(state: StateDocument) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """Return the files' metadata, the index', and the names of values that have no place."""
    metadata: dict[str, str] = {"format": "pt"}
    index: dict[str, object] = {}
    left = []
    for name, value in state.values.items():
        decoded = _decoded(value, name) if name in (METADATA, INDEX_METADATA) else None
        texts = isinstance(decoded, dict) and all(isinstance(text, str) for text in decoded.values())
        if isinstance(decoded, dict) and name == INDEX_METADATA:
            index.update(decoded)
        elif isinstance(decoded, dict) and texts:
            metadata.update(decoded)
        else:
            left.append(name)
    return metadata, index, left


def _decoded(value: JsonValue, name: str) -> object:
    try:
        return decode(value, at=name)
    except UcpError:
        return None


def _bytes(text: str) -> int:
    """Return a size as transformers has them: 5GB is 5 * 10^9 bytes, 5GiB 5 * 2^30."""
    match = _SIZE.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise error("UCP-E-MISMATCH", f"{text!r:.40} is no size such as 5GB or 500MiB", at="max_shard_size")
    power = "KMGT".find(match[2].upper()) + 1 if match[2] else 0
    return int(match[1]) * int((1024 if match[3] else 1000) ** power)


def _copies(choice: str) -> bool:
    if choice not in ("copy", "leave"):
        raise error("UCP-E-MISMATCH", f"{choice!r:.40} is none of copy, leave", at="aliases")
    return choice == "copy"
