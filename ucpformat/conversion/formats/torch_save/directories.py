"""Directories of state dicts: what ``Accelerator.save_state`` writes, and Lightning's FSDP strategy.

Accelerate (accelerate/checkpointing.py and utils/fsdp_utils.py, 1.15): ``model.safetensors`` or ``pytorch_model.bin``,
``optimizer.bin``, ``scheduler.bin``, ``scaler.pt``, ``random_states_<rank>.pkl``, ``custom_checkpoint_<n>.pkl``; with
FSDP: ``pytorch_model_fsdp.bin``, or DCP directories ``pytorch_model_fsdp_<n>`` and ``optimizer_<n>``.
Lightning (lightning/pytorch/strategies/fsdp.py, 2.6): a DCP directory with the rest of the state in ``meta.pt``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.conversion.contract.foreign import PICKLE, Lost
from ucpformat.conversion.dcp_files.directory import DcpDirectory
from ucpformat.conversion.dcp_files.tensors import TensorSource
from ucpformat.conversion.formats.torch_save.importer import TORCH_SAVE_GLOBALS
from ucpformat.conversion.formats.torch_save.leaves import Leaves, TensorLeaf
from ucpformat.errors import UcpError, error
from ucpformat.tensor_files.safetensors_file import StoredTensor as RawTensor
from ucpformat.tensor_files.safetensors_file import read_header
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.tagged import encode
from ucpformat.tensor_files.torch_file import TorchFile, require_saved_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.conversion.contract.foreign import ForeignObjects
    from ucpformat.conversion.contract.job import Job
    from ucpformat.state_dict.keys.paths import StatePath

__all__ = ["FORMAT", "detect", "import_directory"]

FORMAT: Final = "accelerate"
_RANDOM: Final = re.compile(r"random_states_(\d+)\.pkl")
_MODEL: Final = re.compile(
    r"(?:model(_\d+)?\.safetensors|pytorch_model(_\d+)?\.bin|pytorch_model_fsdp(_\d+)?\.bin)"
)
_STATE: Final = re.compile(
    r"((?:optimizer|scheduler|sampler|dl_state_dict)(?:_\d+)?)\.bin|(scaler)\.pt|((?:custom_checkpoint|random_states)_\d+)\.pkl"
)
_FOLDER: Final = re.compile(r"(?:pytorch_model_fsdp|optimizer)_(\d+)")
_RANK_FILE: Final = re.compile(r"(?:pytorch_model_fsdp|optimizer).*_rank\d+\.bin")
_SEVERAL: Final = re.compile(
    r"(model|pytorch_model|pytorch_model_fsdp|optimizer|scheduler|custom_checkpoint)(?:_(\d{1,6}))?(\.safetensors|\.bin|\.pkl|)"
)
_RANK_DATA: Final = re.compile(r"__(\d{1,7})_\d+\.distcp")
_NUMBERED_FROM_0: Final = ("custom_checkpoint", "pytorch_model_fsdp")
_META: Final = "meta.pt"
_METADATA: Final = ".metadata"
_MAX_BLOB: Final = 64 << 20


def detect(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a directory that one of these saved; reads nothing and never raises."""
    try:
        names = SourceFiles(Path(path)).names()
    except (OSError, ValueError):
        return False
    return (
        any(map(_RANDOM.fullmatch, names))
        or (_META in names and _METADATA in names)
        or ("optimizer.bin" in names and any(map(_MODEL.fullmatch, names)))
    )


def import_directory(
    path: str | os.PathLike[str], *, foreign_objects: ForeignObjects = "refuse", order: str = ""
) -> Job:
    """Plan the conversion of such a directory; nothing in it is run, no tensor is read yet.

    Under ``opaque``, files whose pickles are not plain data are carried as blobs.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for what is damaged, or missing where the others show that it was there;
            ``UCP-E-PICKLE`` and ``UCP-E-OBJECT`` for what is not plain data; each names the file.
    """
    root = Path(path)
    files = SourceFiles(root)
    leaves = Leaves()
    ranks = sorted(int(match[1]) for name in files.names() if (match := _RANDOM.fullmatch(name)))
    missing = sorted(set(range(len(ranks))) - set(ranks))
    if missing:
        raise error(
            "UCP-E-SOURCE", "the random states of this rank are missing", at=f"random_states_{missing[0]}.pkl"
        )
    if _METADATA in files.names():
        _add_dcp(leaves, root, "", foreign_objects)
    for name in files.names():
        if _RANK_FILE.fullmatch(name):
            raise error(
                "UCP-E-SOURCE",
                "a rank's own file, which says of its tensors neither whose nor which part they are; save with"
                " SHARDED_STATE_DICT and use_dcp, or FULL_STATE_DICT",
                at=name,
            )
        if match := _MODEL.fullmatch(name):
            _add_model(leaves, files, name, (f"model{next(filter(None, match.groups()), '')}",))
        elif match := _STATE.fullmatch(name):
            _add_state(leaves, files, name, (next(filter(None, match.groups())),), foreign_objects)
        elif name == _META:
            _add_state(leaves, files, name, (), foreign_objects)
        elif (root / name).is_dir():
            if _FOLDER.fullmatch(name) is None:
                leaves.dropped.append(Lost(f"files/{name}", "a directory that Accelerate does not write"))
            else:
                _add_dcp(leaves, root / name, name, foreign_objects)
        elif name != _METADATA and not (_METADATA in files.names() and name.endswith(".distcp")):
            _add_other(leaves, files, name)
    if not any(path[0] == "model" for path in leaves.tensors):
        raise error(
            "UCP-E-SOURCE",
            "there is no model: no model.safetensors, pytorch_model.bin, pytorch_model_fsdp.bin or "
            "pytorch_model_fsdp_0",
            at=str(root),
        )
    if _META not in files.names():
        leaves.dropped += _missing(files.names())
    if ranks:
        _check_ranks(files, len(ranks))
    return leaves.job(FORMAT, order=order)


def _check_ranks(files: SourceFiles, count: int) -> None:
    """Refuse where more ranks wrote parts of tensors than there are random states of."""
    for folder in filter(_FOLDER.fullmatch, files.names()):
        for name in files.names(folder):
            match = _RANK_DATA.fullmatch(name)
            if match is not None and int(match[1]) >= count:
                raise error(
                    "UCP-E-SOURCE",
                    f"the random states of this rank are missing, which wrote {folder}/{name}",
                    at=f"random_states_{count}.pkl",
                )


def _missing(names: Sequence[str]) -> list[Lost]:
    """Return what ``save_state`` writes always, or for nearly every job, and is not here.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for one of several models, optimizers, schedulers or objects, which are
            numbered from 0 on, without those before.
    """
    numbered: dict[tuple[str, str], dict[int, str]] = {}
    for name in names:
        if match := _SEVERAL.fullmatch(name):
            numbered.setdefault((match[1], match[3]), {})[int(match[2] or 0)] = name
    for (base, suffix), numbers in numbered.items():
        gap = next((number for number in range(len(numbers)) if number not in numbers), None)
        if gap is not None:
            is_bare = gap == 0 and base not in _NUMBERED_FROM_0
            raise error(
                "UCP-E-SOURCE",
                f"it is missing, and {numbers[max(numbers)]} is there",
                at=f"{base}{suffix}" if is_bare else f"{base}_{gap}{suffix}",
            )
    left = []
    if not any(map(_RANDOM.fullmatch, names)):
        left.append(Lost("files/random_states_0.pkl", "it is missing: Accelerate writes one of every rank"))
    if not any(name.startswith("optimizer") for name in names):
        why = "it is missing: the states of the job's optimizer, if it had one, are lost"
        left.append(Lost("files/optimizer.bin", why, matters=False))
    return left


def _add_model(leaves: Leaves, files: SourceFiles, name: str, at: StatePath) -> None:
    if any(path[: len(at)] == at for path in leaves.tensors):
        raise error("UCP-E-SOURCE", "a second file of the same model: keep one of them", at=name)
    if not name.endswith(".safetensors"):
        file = TorchFile(files, name, TORCH_SAVE_GLOBALS)
        leaves.add_file(file, file.tree, at)
        return
    for key, entry in read_header(files, name).entries.items():
        if entry.packed:
            raise error("UCP-E-DTYPE", f"{key!r:.200}: {entry.packed} is not of torch", at=name)
        read = RawTensor(files, entry.location, entry.dtype, entry.shape)
        leaves.tensors[(*at, key)] = TensorLeaf(entry.dtype, entry.shape, read)


def _add_state(
    leaves: Leaves, files: SourceFiles, name: str, at: StatePath, foreign_objects: ForeignObjects
) -> None:
    try:
        file = TorchFile(files, name, TORCH_SAVE_GLOBALS)
        require_saved_name(file.saved_name, name)
        part = Leaves()
        part.add_file(file, file.tree, at)
    except UcpError as refusal:
        if refusal.code not in ("UCP-E-PICKLE", "UCP-E-OBJECT") or foreign_objects == "refuse":
            raise
        leaves.blobs[name] = ("application/octet-stream", files.read(name, _MAX_BLOB))
        return
    leaves.tensors.update(part.tensors)
    leaves.objects.update(part.objects)


def _add_dcp(leaves: Leaves, folder: Path, name: str, foreign_objects: ForeignObjects) -> None:
    """Add a DCP directory: its keys begin with ``model`` or ``optimizer``, numbered for folders after the first."""
    directory = DcpDirectory.open(folder)
    number = name.rpartition("_")[2] if name else "0"

    def place(key: str, path: tuple[str | int, ...] | None) -> StatePath:
        state_path = path or (key,)
        return state_path if number == "0" else (f"{state_path[0]}_{number}", *state_path[1:])

    for key, tensor in directory.tensors.items():
        source = TensorSource(directory, tensor)
        leaves.tensors[place(key, tensor.path)] = TensorLeaf(tensor.dtype, tensor.shape, source)
    for key, item in directory.objects.items():
        at = place(key, item.path)
        if len(item.locations) > 1:
            raise error("UCP-E-SOURCE", f"each rank saved another value of {key!r}", at=f"{folder}#{key}")
        directory.verify(key)
        try:
            leaves.objects[at] = encode(directory.read_object(key), at=key)
        except UcpError as refusal:
            if refusal.code not in ("UCP-E-PICKLE", "UCP-E-OBJECT") or foreign_objects == "refuse":
                raise error(refusal.code, refusal.message, at=f"{folder}#{key}") from refusal
            leaves.blobs[".".join(map(str, at))] = (PICKLE, directory.read_object_bytes(key))


def _add_other(leaves: Leaves, files: SourceFiles, name: str) -> None:
    if name.endswith((".json", ".txt", ".md", ".jinja", ".model")) and files.size(name) <= _MAX_BLOB:
        leaves.blobs[name] = ("application/octet-stream", files.read(name, _MAX_BLOB))
    else:
        leaves.dropped.append(Lost(f"files/{name}", "a file that Accelerate does not write"))
