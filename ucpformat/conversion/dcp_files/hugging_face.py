"""Directories of DCP's ``HuggingFaceStorageWriter``: safetensors files, whole or one per rank.

``model-<i>-of-<n>.safetensors`` hold whole tensors; ``shard-<r>-model-<i>-of-<n>.safetensors`` hold what rank
``r - 1`` had of each, with its offset under ``DCP_SHARDING_INFO``. Consolidating leaves the shards in
``sharded/``. Nothing in a shard says how many ranks there were: without the last one an evenly sharded tensor
only looks smaller. So shards are read only where consolidated files beside them tell the shapes, or where the
caller knows the number. Where both are there the shards are read: torch 2.13 writes zero for 0-d tensors when
it consolidates. Source: hf_storage.py, _hf_utils.py and _consolidate_hf_safetensors.py of
torch.distributed.checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ucpformat.conversion.dcp_files.items import Catalogue, DcpTensor, Fragment, check_covers
from ucpformat.errors import UcpError, error
from ucpformat.tensor_files.safetensors_file import (
    SafetensorsEntry,
    SafetensorsHeader,
    parse_object,
    read_header,
    sizes,
)
from ucpformat.tensor_files.source_files import SourceFiles

__all__ = ["SHARDING_INFO", "is_shard", "is_whole", "read_hugging_face"]

SHARDING_INFO: Final = "DCP_SHARDING_INFO"
_INDEX: Final = "model.safetensors.index.json"
_FOLDER: Final = "sharded"
_WHOLE: Final = re.compile(r"model-(\d{5,})-of-(\d{5,})\.safetensors")
_SHARD: Final = re.compile(r"shard-(\d{5,})-model-(\d{5,})-of-(\d{5,})\.safetensors")
_MAX_INDEX: Final = 256 << 20


def is_whole(name: str) -> bool:
    """Return whether ``name`` is that of a file with whole tensors."""
    return _WHOLE.fullmatch(name) is not None


def is_shard(name: str) -> bool:
    """Return whether ``name`` is that of one rank's file."""
    return _SHARD.fullmatch(name) is not None


def read_hugging_face(files: SourceFiles, shard_count: int | None) -> Catalogue:
    """Return the tensors of the directory, checked; ``shard_count`` is the number of ranks that saved it.

    Raises ``UCP-E-SOURCE`` where files are missing, damaged or not provably all.
    """
    names = files.names()
    whole = [name for name in names if is_whole(name)]
    shards = [name for name in names if is_shard(name)]
    inner = [f"{_FOLDER}/{name}" for name in files.names(_FOLDER) if is_shard(name)]
    if shards and (whole or inner):
        raise _refused("rank files and other files lie side by side; keep one of them", shards[0])
    tensors = _whole_tensors(files, whole) if whole else None
    try:
        if shards or inner:
            tensors = _shard_tensors(files, shards or inner, tensors, shard_count)
        if tensors is None:
            raise _refused("there are no model or shard files", "")
        check_covers(tensors, "")
    except UcpError as refusal:
        if "missing" not in refusal.message:
            raise
        raise error(refusal.code, refusal.message + _absent(shards or inner), at=refusal.at) from None
    return Catalogue("hugging-face", tensors, {}, ())  # read_header has checked all offsets


def _header(files: SourceFiles, name: str) -> SafetensorsHeader:
    header = read_header(files, name)
    for key, entry in header.entries.items():
        if entry.packed:
            raise error("UCP-E-DTYPE", f"{key!r}: DCP shards of {entry.packed} are not supported", at=name)
    return header


def _refused(message: str, at: str) -> UcpError:
    return error("UCP-E-SOURCE", message, at=at)


def _whole_tensors(files: SourceFiles, names: Sequence[str]) -> dict[str, DcpTensor]:
    numbers = [(match[1], match[2]) for name in names if (match := _WHOLE.fullmatch(name))]
    _check_numbers(numbers, names[0], "model-{}-of-{}.safetensors")
    tensors: dict[str, DcpTensor] = {}
    files_by_key: dict[str, str] = {}
    for name in names:
        header = _header(files, name)
        for key, entry in header.entries.items():
            offset = (
                _offset(header, key, entry, name)
                if SHARDING_INFO in header.metadata
                else (0,) * len(entry.shape)
            )
            if key in tensors or any(offset):
                raise _refused(f"{key!r} is stored twice or in part in a file of whole tensors", name)
            fragment = Fragment(offset, entry.shape, entry.location, "raw")
            tensors[key] = DcpTensor(key, None, entry.dtype, entry.shape, (fragment,))
            files_by_key[key] = name
    _check_index(files, files_by_key)
    return tensors


def _check_index(files: SourceFiles, files_by_key: Mapping[str, str]) -> None:
    if _INDEX not in files.names():
        return
    weight_map = parse_object(files.read(_INDEX, _MAX_INDEX), _INDEX).get("weight_map")
    said = weight_map if isinstance(weight_map, dict) else {}
    for key in sorted(said.keys() | files_by_key.keys()):
        there, wanted = files_by_key.get(key, "no file"), said.get(key, "no file")
        if there != wanted:
            raise _refused(f"{key!r:.200} is in {there}, and by the index in {wanted!s:.200}", _INDEX)


def _shard_tensors(
    files: SourceFiles,
    names: Sequence[str],
    whole: Mapping[str, DcpTensor] | None,
    shard_count: int | None,
) -> dict[str, DcpTensor]:
    matches = [match for name in names if (match := _SHARD.fullmatch(name.rpartition("/")[2]))]
    _check_numbers(
        [(match[2], match[3]) for match in matches], names[0], "shard-00001-model-{}-of-{}.safetensors"
    )
    ranks = {int(match[1]) for match in matches}
    count = max(ranks) if shard_count is None else shard_count
    missing = set(range(1, count + 1)) ^ ranks
    if missing:
        raise _refused(
            f"the files of shard {min(missing)} are missing, or there are more than expected",
            f"shard-{min(missing):05}-model-00001-of-{matches[0][3]}.safetensors",
        )
    if whole is None and shard_count is None:
        raise _refused(
            "shards do not say how many there are, so a missing last one could not be seen: give the"
            " number of ranks that saved them (--shards N, in Python shard_count=N), or keep them in `sharded`"
            " beside the consolidated files",
            names[0],
        )
    pieces: dict[str, list[tuple[tuple[int, ...], SafetensorsEntry]]] = {}
    for name in names:
        header = _header(files, name)
        for key, entry in header.entries.items():
            pieces.setdefault(key, []).append((_offset(header, key, entry, name), entry))
    if whole is not None and whole.keys() != pieces.keys():
        raise _refused(
            "the shards and the consolidated files do not name the same tensors: a shard is missing, or odd",
            names[0],
        )
    return {key: _joined(key, parts, whole) for key, parts in pieces.items()}


def _absent(names: Sequence[str]) -> str:
    """Return the files of parts that a rank, up to one more than there are, has not: what a refusal says in the end.

    Not all of them need have been written: a rank that holds nothing of a part writes no file for it.
    """
    matches = [match for name in names if (match := _SHARD.fullmatch(name.rpartition("/")[2]))]
    ranks, parts = ({int(match[group]) for match in matches} for group in (1, 2))
    held = {(int(match[1]), int(match[2])) for match in matches}
    absent = [
        f"shard-{rank:05}-model-{part:05}-of-{matches[0][3]}.safetensors"
        for rank in range(1, max(ranks, default=0) + 2)
        for part in sorted(parts)
        if (rank, part) not in held
    ]
    return f"; there is no {', '.join(absent[:8])}" if absent else ""


def _joined(
    key: str,
    parts: Sequence[tuple[tuple[int, ...], SafetensorsEntry]],
    whole: Mapping[str, DcpTensor] | None,
) -> DcpTensor:
    first = parts[0][1]
    at = first.location.file
    if any(entry.dtype != first.dtype or len(entry.shape) != len(first.shape) for _, entry in parts):
        raise _refused(f"the shards disagree about the data type or the dimensions of {key!r}", at)
    ends = [
        [start + size for start, size in zip(offset, entry.shape, strict=True)] for offset, entry in parts
    ]
    shape = tuple(map(max, *ends)) if len(ends) > 1 else tuple(ends[0])
    if whole is not None and (whole[key].shape, whole[key].dtype) != (shape, first.dtype):
        raise _refused(
            f"{key!r} has another shape or data type in the consolidated files: a shard is missing", at
        )
    fragments = tuple(
        Fragment(offset, entry.shape, entry.location, "raw") for offset, entry in parts if all(entry.shape)
    )
    return DcpTensor(key, None, first.dtype, shape, fragments)


def _offset(header: SafetensorsHeader, key: str, entry: SafetensorsEntry, name: str) -> tuple[int, ...]:
    text = header.metadata.get(SHARDING_INFO)
    if text is None:
        raise _refused(f"the shard has no {SHARDING_INFO}", name)
    info = parse_object(text.encode("utf-8", "surrogatepass"), name).get(key)
    offset = sizes(info.get("saved_offsets") if isinstance(info, dict) else None, name)
    if len(offset) != len(entry.shape):
        raise _refused(f"the offset of {key!r} has another number of dimensions than its shape", name)
    return offset


def _check_numbers(numbers: Iterable[tuple[str, str]], at: str, name: str) -> None:
    """Refuse where the files ``i`` of ``n`` are not 1 to n with one n; ``name`` is what they are called."""
    pairs = list(numbers)
    counts = {int(count) for _, count in pairs}
    if len(counts) != 1:
        raise _refused("the files come from checkpoints of different numbers of files", at)
    missing = set(range(1, min(counts.pop(), 1_000_000) + 1)) ^ {int(index) for index, _ in pairs}
    if missing:
        raise _refused(
            f"file {min(missing)} of the checkpoint is missing",
            name.format(f"{min(missing):05}", pairs[0][1]),
        )
