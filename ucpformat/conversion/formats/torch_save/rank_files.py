"""Directories in which every rank saved a file of its own by ``torch.save``, with FSDP1's sharded state dicts.

``model-rank0.pt``, ``model-rank1.pt``, ...: names that differ in a number behind ``rank``. Several such rows of files
are one state, each under what its names begin with.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ucpformat.conversion.contract.foreign import Lost
from ucpformat.conversion.contract.sources import EqualSources, Whole
from ucpformat.conversion.formats.torch_save.leaves import Leaves, TensorLeaf
from ucpformat.conversion.formats.torch_save.sharded import RANK_GLOBALS, SHARDED, Sharded, joined, refusal
from ucpformat.errors import UcpError, error
from ucpformat.model.values import PerRankValues
from ucpformat.state_dict.keys.paths import StatePath, dotted, flatten
from ucpformat.tensor_files.byte_source import open_range
from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.tagged import encode
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor
from ucpformat.tensor_files.zip_records import read_record, zip_records

if TYPE_CHECKING:
    from ucpformat.conversion.contract.job import Job, ReadBox

__all__ = ["FORMAT", "detect", "import_rank_files"]

FORMAT: Final = "torch-ranks"
_RANK: Final = re.compile(r"(.*?)[._-]?rank[._-]?(\d{1,7})((?:[._-].*)?\.(?:pt|pth|bin|ckpt))", re.IGNORECASE)
_MARK: Final = b"torch.distributed._shard.sharded_tensor.api"
_MAX_PICKLE: Final = 64 << 20
_LOOKED_AT: Final = 3
"""How many files of a row are looked at: the first may be the one that is damaged."""
_FLAT: Final = ("_flat_param", "flat_param")


def detect(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a directory of ranks' files that name a `ShardedTensor`; never raises."""
    root = Path(path)
    try:
        rows = _rows(SourceFiles(root).names()) if root.is_dir() else {}
    except (OSError, ValueError, UcpError):
        return False
    return any(
        _names_sharded(root / name) for row in rows.values() for name in sorted(row.values())[:_LOOKED_AT]
    )


def _names_sharded(path: Path) -> bool:
    """Return whether a file is an archive that names a `ShardedTensor`; one that is damaged is not."""
    with suppress(OSError, ValueError, UcpError):
        return _has_mark(path)
    return False


def _has_mark(path: Path) -> bool:
    with open_range(path, 0, path.stat().st_size, path.name) as source:
        records = zip_records(source)
        pickles = [name for name in records if name.endswith("/data.pkl")]
        return bool(pickles) and _MARK in read_record(source, records[pickles[0]], _MAX_PICKLE)


def _rows(names: Sequence[str]) -> dict[tuple[str, str], dict[int, str]]:
    """Return files of ranks, by what is before and behind the number."""
    rows: dict[tuple[str, str], dict[int, str]] = {}
    for name in names:
        if match := _RANK.fullmatch(name):
            rows.setdefault((match[1], match[3]), {})[int(match[2])] = name
    return rows


def import_rank_files(path: str | os.PathLike[str], *, order: str = "", replicas: str = "") -> Job:
    """Plan the conversion of such a directory; nothing in it is run, no tensor of a model is read yet.

    Sharded tensors are put together. Whole tensors beside them have to be equal on all ranks, unless ``replicas`` is
    ``first``, for rank 0's. What differs elsewhere becomes a value of each rank's own.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for what is damaged, for a rank that is missing, for files of two saves and
            for ``LOCAL_STATE_DICT``; ``UCP-E-PICKLE`` and ``UCP-E-OBJECT`` for what is not plain data.
        MismatchError: ``UCP-E-MISMATCH`` for ``replicas`` that is neither.
    """
    if replicas not in ("", "equal", "first"):
        raise error("UCP-E-MISMATCH", f"replicas is equal or first, not {replicas!r:.40}")
    root = Path(path)
    files = SourceFiles(root)
    rows = _rows(files.names())
    if not rows:
        raise refusal("there are no files of ranks, such as model-rank0.pt", str(root))
    leaves = Leaves()
    known = {name for row in rows.values() for name in row.values()}
    leaves.dropped += [
        Lost(f"files/{name}", "not the file of a rank") for name in files.names() if name not in known
    ]
    for (before, _), row in rows.items():
        ranks = sorted(row)
        if ranks != list(range(len(ranks))):
            missing = next(rank for rank in range(len(ranks)) if rank not in row)
            raise refusal(
                f"it is missing, beside {row[ranks[-1]]}; copy the files of all ranks into one directory",
                _name_like(row[ranks[-1]], missing),
            )
        held = [TorchFile(files, row[rank], RANK_GLOBALS) for rank in ranks]
        prefix: StatePath = (before,) if len(rows) > 1 and before else ()
        _add_row(leaves, held, prefix, has_equal=replicas != "first")
    return leaves.job(FORMAT, order=order)


def _name_like(name: str, rank: int) -> str:
    """Return what the file of another rank is called."""
    match = _RANK.fullmatch(name)
    if match is None:
        raise AssertionError("names of ranks' files have numbers")
    return f"{name[: match.start(2)]}{rank:0{len(match[2])}}{name[match.end(2) :]}"


def _is_leaf(value: object) -> bool:
    return isinstance(value, StoredTensor) or (isinstance(value, Instance) and value.kind == SHARDED)


def _add_row(leaves: Leaves, files: Sequence[TorchFile], prefix: StatePath, *, has_equal: bool) -> None:
    states = []
    for file in files:
        if not isinstance(file.tree, Mapping):
            raise refusal(f"it holds a {type(file.tree).__name__} and no state dict", file.name)
        states.append(flatten(file.tree, _is_leaf))
    first = states[0]
    for file, state in zip(files[1:], states[1:], strict=True):
        if odd := first.keys() ^ state.keys():
            raise refusal(
                f"{dotted(min(odd, key=str))!r:.200} is in this file or in {files[0].name}, not in both: two saves",
                file.name,
            )
    for path in first:
        if path and path[-1] in _FLAT:
            raise refusal(
                f"{dotted(path)!r:.200} is a flat parameter of LOCAL_STATE_DICT, which does not say which parts of "
                "which parameters it holds; load it in its job and save with SHARDED_STATE_DICT",
                files[0].name,
            )
    sharded = {path for path, leaf in first.items() if isinstance(leaf, Instance) and _is_leaf(leaf)}
    if not sharded:
        raise refusal(
            "no tensor in it says which part of which it is; save with SHARDED_STATE_DICT, or whole",
            files[0].name,
        )
    parts = {path[0] if len(path) > 1 else None for path in sharded}
    for path in first:
        values = [state[path] for state in states]
        place = (*prefix, *path)
        if path in sharded:
            leaves.tensors[place] = _sharded(dotted(place), files, values)
        elif len(whole := [value for value in values if isinstance(value, StoredTensor)]) == len(values):
            is_model = None in parts or path[0] in parts
            _add_tensor(leaves, place, files, whole, is_model=is_model, has_equal=has_equal)
        else:
            _add_object(leaves, place, files, values)


def _sharded(name: str, files: Sequence[TorchFile], values: Sequence[Any]) -> TensorLeaf:
    shards = []
    for rank, (file, value) in enumerate(zip(files, values, strict=True)):
        if not _is_leaf(value) or not isinstance(value, Instance):
            raise refusal(f"{name!r:.200} is sharded in {files[0].name}, and not here: two saves", file.name)
        sharded = Sharded.read(value, name, file.name)
        if sharded.world is not None and sharded.world != len(files):
            raise refusal(
                f"{sharded.world} ranks saved, and there are files of {len(files)}; copy those of all ranks, "
                f"{_name_like(file.name, len(files))} too",
                file.name,
            )
        if sharded.rank is not None and sharded.rank != rank:
            raise refusal(f"rank {sharded.rank} wrote it, and not the rank in its name", file.name)
        shards.append((file, sharded))
    return TensorLeaf(shards[0][1].dtype, shards[0][1].shape, joined(name, shards))


def _add_tensor(
    leaves: Leaves,
    place: StatePath,
    files: Sequence[TorchFile],
    values: Sequence[StoredTensor],
    *,
    is_model: bool,
    has_equal: bool,
) -> None:
    """Add a whole tensor of each rank: one tensor where they are equal, or have to be."""
    first = values[0]
    alike = all((value.dtype, value.shape) == (first.dtype, first.shape) for value in values)
    if not is_model:
        arrays = [file.array(value) for file, value in zip(files, values, strict=True)]
        if any(array != arrays[0] for array in arrays):
            _add_object(leaves, place, files, values)
            return
    elif not alike:
        raise refusal(f"{dotted(place)!r:.200} has another shape or data type on another rank", files[0].name)
    read: ReadBox = Whole(files[0], first)
    if is_model and has_equal:
        for file, value in zip(files[1:], values[1:], strict=True):
            read = EqualSources(read, Whole(file, value), dotted(place), file.name)
    leaves.tensors[place] = TensorLeaf(first.dtype, first.shape, read)


def _add_object(leaves: Leaves, place: StatePath, files: Sequence[TorchFile], values: Sequence[Any]) -> None:
    """Add what is no tensor of a model: one value where all ranks have the same, else each rank's own."""
    name = dotted(place)
    try:
        plain = [file.plain(value) for file, value in zip(files, values, strict=True)]
        encoded = [encode(value, at=name) for value in plain]
        leaves.objects[place] = (
            encoded[0]
            if all(value == encoded[0] for value in encoded)
            else encode(PerRankValues(tuple(plain), "refuse", "rank"), at=name)
        )
    except UcpError as problem:
        raise error(problem.code, f"{name!r:.200}: {problem.message}", at=files[0].name) from problem
