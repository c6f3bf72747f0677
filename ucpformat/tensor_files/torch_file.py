"""One file that ``torch.save`` wrote: its objects as plain data, its tensors read in part and checked."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ucpformat.errors import error
from ucpformat.model.values import NamedValue
from ucpformat.tensor_files.byte_source import FileRange, element_view, open_range, read_strided
from ucpformat.tensor_files.deepspeed_globals import DEEPSPEED_GLOBALS, instance_state
from ucpformat.tensor_files.legacy_archive import open_archive
from ucpformat.tensor_files.object_tree import Instance, Limits
from ucpformat.tensor_files.shared_check import SharedChecks, record_steps
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES, TensorValue, item_size
from ucpformat.tensor_files.torch_zip import StoredTensor, swap_bytes
from ucpformat.tensor_files.unpickle import Globals
from ucpformat.tensor_files.zip_records import ZipRecord

__all__ = ["TorchFile", "rank_file", "require_saved_name"]

_LIMITS: Final = Limits()
_MAX_VALUE_BYTES: Final = 64 << 20
"""Largest tensor that is carried as a value, not as an atom."""

_TORCH_NAMES: Final = {zarr: name for name, (zarr, _) in TORCH_DTYPES.items()}


class TorchFile:
    """A file of a checkpoint directory; ``tree`` is its object with tensors as `StoredTensor`. Thread-safe.

    ``allowed`` is what it may name beyond plain data and torch's tensors.

    Raises ``UCP-E-SOURCE``, ``UCP-E-PICKLE``, ``UCP-E-LIMIT``, ``UCP-E-LINK``, naming the file. Nothing in it is run.
    """

    def __init__(self, files: SourceFiles, name: str, allowed: Globals = DEEPSPEED_GLOBALS) -> None:
        self.name = name
        self._files = files
        self._size = files.size(name)
        self._checks = SharedChecks[ZipRecord](lambda record: record_steps(self._open, [record]))
        with self._open() as source:
            archive = open_archive(source)
            self._has_checksums = archive.has_checksums
            self.saved_name = archive.name
            self.tree = archive.read_tree(allowed, _LIMITS)

    def _open(self) -> AbstractContextManager[FileRange]:
        return open_range(self._files.root / self.name, 0, self._size, self.name)

    def read(
        self, stored: StoredTensor, offset: int, strides: Sequence[int], target: npt.NDArray[Any]
    ) -> None:
        """Fill ``target`` (a view from `element_view`) with elements at ``offset`` and ``strides`` of a tensor.

        Both count elements from the first of the tensor. The first read of a storage checks its CRC-32.
        """
        size = item_size(_TORCH_NAMES[stored.dtype])
        if self._has_checksums:
            self._checks.run(stored.storage)
        with self._open() as source:
            read_strided(source, stored.start + offset * size, strides, target)
        if stored.byteorder == "big":
            data = target.copy().reshape(-1).view("u1")
            swap_bytes(data, _TORCH_NAMES[stored.dtype])
            target[...] = data.view(target.dtype).reshape(target.shape)

    def array(self, stored: StoredTensor) -> TensorValue:
        """Return a small tensor in full. Raises ``UCP-E-LIMIT`` for one above 64 MiB."""
        dtype = _TORCH_NAMES[stored.dtype]
        length = math.prod(stored.shape) * item_size(dtype)
        if length > _MAX_VALUE_BYTES:
            raise error(
                "UCP-E-LIMIT",
                f"a tensor of {length} bytes outside parameters, buffers and optimizer states",
                at=self.name,
            )
        data = np.zeros(length, np.uint8)
        if length:
            self.read(stored, 0, stored.strides, element_view(data, item_size(dtype), stored.shape))
        return TensorValue(dtype, stored.shape, data.tobytes())

    def plain(self, value: object) -> object:
        """Return ``value``, a part of ``tree``, as what `tagged.encode` takes: tensors read, foreign objects named."""
        if isinstance(value, StoredTensor):
            return self.array(value)
        if isinstance(value, Instance):
            return NamedValue(value.kind, self.plain(instance_state(value)))
        if type(value) in (list, tuple):
            return type(value)(self.plain(item) for item in value)  # type: ignore[attr-defined, call-arg]
        if type(value) in (dict, OrderedDict):
            return type(value)((key, self.plain(item)) for key, item in value.items())  # type: ignore[attr-defined, call-arg]
        return value


def rank_file(files: SourceFiles, name: str, siblings: Sequence[str] = ()) -> TorchFile:
    """Return a file among similar ones, each of a rank, layer or expert: the one that was saved under this name.

    ``torch.save`` keeps the name it was given in the archive, which is all that tells the files of two ranks apart
    where both hold as much. ``siblings`` are names, without suffix, that differ by more than numbers.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` where another rank's file has its name; what `TorchFile` raises.
    """
    file = TorchFile(files, name)
    require_saved_name(file.saved_name, name, siblings)
    return file


def require_saved_name(saved: str, name: str, siblings: Sequence[str] = ()) -> None:
    """Refuse a file whose archive has the name of another one of its kind; see `rank_file`."""
    stem = PurePosixPath(name).stem
    if saved != stem and (_without_numbers(saved) == _without_numbers(stem) or saved in siblings):
        raise error(
            "UCP-E-SOURCE",
            f"it was saved as {saved}.pt: two files were exchanged, or one was renamed; give each its own name again",
            at=name,
        )


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)
