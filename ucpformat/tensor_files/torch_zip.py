"""Reading a ``torch.save`` archive without torch: tensors as byte ranges, objects as plain data.

An archive is a zip of stored records: ``<name>/data.pkl`` (a pickle of protocol 2 whose persistent ids name
storages), ``<name>/data/<key>`` (the storages), ``<name>/byteorder``. Source: torch/serialization.py and
torch/_utils.py of PyTorch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.tensor_files.allowed_globals import OBJECT_GLOBALS, StorageKind
from ucpformat.tensor_files.byte_source import ByteSource, element_view, read_strided
from ucpformat.tensor_files.numpy_values import extents_of
from ucpformat.tensor_files.object_tree import Instance, Limits, check_tree, refused
from ucpformat.tensor_files.shared_check import PIECE_BYTES, OpenSource, Step, record_steps
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES, TensorValue, TorchDtype, item_size
from ucpformat.tensor_files.unpickle import Constructor, Globals, unpickle
from ucpformat.tensor_files.zip_records import (
    ZipRecord,
    check_crc,
    read_record,
    record_start,
    zip_records,
)

__all__ = ["Storage", "StoredTensor", "TorchArchive", "rebuilders", "swap_bytes"]

_TENSOR_LIMITS: Final = Limits(pickle_bytes=1 << 20, nodes=1 << 16)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor inside an archive. ``start`` is the byte of its first element, ``strides`` count elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    storage: ZipRecord
    byteorder: str


@dataclass(frozen=True, slots=True)
class Storage:
    """A record that tensors are views of; ``dtype`` is torch's name, empty where the storage has no type."""

    record: ZipRecord
    dtype: str


class TorchArchive:
    """One ``torch.save`` archive that fills a byte source. Raises ``UCP-E-SOURCE`` where it is none."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._records = zip_records(source)
        pickles = [name for name in self._records if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise error(
                "UCP-E-SOURCE", "the archive has no data.pkl: not written by torch.save", at=source.at
            )
        self._prefix = pickles[0].removesuffix("data.pkl")
        self.byteorder = self._read_byteorder()
        self._pickle_bytes = 0
        self.has_checksums = self._records[pickles[0]].crc != 0
        self.name = self._prefix.removesuffix("/")
        """What ``torch.save`` was told to call the file, without its suffix; ``archive`` where it was told nothing."""

    def _read_byteorder(self) -> str:
        record = self._records.get(f"{self._prefix}byteorder")
        text = b"little" if record is None else read_record(self._source, record, 16)
        if text not in (b"little", b"big"):
            raise error("UCP-E-SOURCE", "the archive's byte order is unknown", at=self._source.at)
        return text.decode()

    def tensor(self) -> StoredTensor:
        """Return where the one tensor of the archive lies; reads none of its data.

        Raises ``UCP-E-SOURCE`` where the archive holds something else, ``UCP-E-PICKLE``, ``UCP-E-DTYPE``.
        """
        found = self._load(self._stored, _TENSOR_LIMITS)
        if not isinstance(found, StoredTensor):
            raise error(
                "UCP-E-SOURCE", f"the item holds a {type(found).__name__}, not a tensor", at=self._source.at
            )
        return found

    def read_object(self, limits: Limits, also_allowed: Globals | None = None) -> object:
        """Return the object of the archive as plain data (see `objects`), tensors inside it in full.

        ``also_allowed`` are further globals, whose `Instance` may then be among the data.

        Raises ``UCP-E-PICKLE``, ``UCP-E-LIMIT``, ``UCP-E-SOURCE``, ``UCP-E-DTYPE``.
        """

        def value(*parts: Any) -> TensorValue:
            return self._value(self._stored(*parts), limits)

        found = self._load(value, limits, also_allowed)
        bounded = limits.of(self._source.size)  # its tensors are part of the object
        check_tree((found,), at=self._source.at, limits=bounded, also=(Instance,) if also_allowed else ())
        return found

    def read_tree(self, also_allowed: Globals, limits: Limits) -> object:
        """Return the object of the archive, its tensors as `StoredTensor`, of whose data nothing is read.

        ``also_allowed`` are further globals; an `Instance` is data. Raises as `read_object` does.
        """
        found = self._load(self._stored, limits, also_allowed)
        bounded = limits.of(self._pickle_bytes)
        check_tree((found,), at=self._source.at, limits=bounded, also=(StoredTensor, Instance))
        return found

    def check(self) -> None:
        """Compare every record with its checksum, where there are checksums. Raises ``UCP-E-SOURCE``."""
        if self.has_checksums:
            for record in self._records.values():
                check_crc(self._source, record)

    def check_steps(self, opened: OpenSource) -> list[Step]:
        """Do what `check` does for small records, and return steps that do it for large ones.

        ``opened`` opens the archive's source anew.
        """
        if not self.has_checksums:
            return []
        large: list[ZipRecord] = []
        for record in self._records.values():
            if record.length > PIECE_BYTES:
                large.append(record)
            else:
                check_crc(self._source, record)
        return record_steps(opened, large)

    def _load(
        self, rebuild: Callable[..., object], limits: Limits, also_allowed: Globals | None = None
    ) -> object:
        record = self._records[f"{self._prefix}data.pkl"]
        data = read_record(self._source, record, limits.pickle_bytes)
        self._pickle_bytes = len(data)
        if self.has_checksums:
            check_crc(self._source, record)
        return unpickle(
            data,
            {**OBJECT_GLOBALS, **rebuilders(rebuild), **(also_allowed or {})},
            at=self._source.at,
            persistent=self._storage,
            limits=limits,
        )

    def _storage(self, identifier: object) -> object:
        # ("storage", class, key, location, number of elements); an untyped storage counts bytes.
        if not isinstance(identifier, tuple) or len(identifier) != 5 or identifier[0] != "storage":
            raise refused("the pickle refers to something that is not a storage", self._source.at)
        _, kind, key, _, count = identifier
        record = self._records.get(f"{self._prefix}data/{key}") if isinstance(key, str) else None
        if not isinstance(kind, StorageKind) or record is None or type(count) is not int:
            raise refused("the pickle refers to a storage that the archive does not hold", self._source.at)
        dtype = str(kind)
        if record.length != count * (item_size(dtype) if dtype else 1):
            raise error(
                "UCP-E-SOURCE", f"storage {key!r} has another length than recorded", at=self._source.at
            )
        return Storage(record, dtype)

    def _stored(
        self, storage: object, dtype: str | None, offset: object, size: object, stride: object
    ) -> StoredTensor:
        if not isinstance(storage, Storage) or type(offset) is not int:
            raise refused("a tensor has no storage", self._source.at)
        name = storage.dtype if dtype is None else dtype
        if name not in TORCH_DTYPES:
            raise error("UCP-E-DTYPE", f"the torch data type {name!r} is not supported", at=self._source.at)
        shape, strides = extents_of(size), extents_of(stride)
        width = item_size(name)
        if len(shape) != len(strides):
            raise refused("a tensor has another number of strides than dimensions", self._source.at)
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if math.prod(shape) and not 0 <= offset * width <= (last + 1) * width <= storage.record.length:
            raise error("UCP-E-SOURCE", "a tensor leaves its storage", at=self._source.at)
        start = self._start_of(storage.record) + offset * width
        return StoredTensor(TORCH_DTYPES[name][0], shape, strides, start, storage.record, self.byteorder)

    def _start_of(self, record: ZipRecord) -> int:
        return record_start(self._source, record)

    def _value(self, stored: StoredTensor, limits: Limits) -> TensorValue:
        length = math.prod(stored.shape) * item_size(stored.dtype)
        if length > limits.nodes * 16:
            raise error("UCP-E-LIMIT", f"a tensor of {length} bytes inside an object", at=self._source.at)
        data = np.zeros(length, dtype=np.uint8)
        read_strided(
            self._source,
            stored.start,
            stored.strides,
            element_view(data, item_size(stored.dtype), stored.shape),
        )
        if stored.byteorder == "big":
            swap_bytes(data, stored.dtype)
        return TensorValue(stored.dtype, stored.shape, data.tobytes())


def swap_bytes(data: np.ndarray[Any, np.dtype[np.uint8]], dtype: str) -> None:
    """Turn the byte order of ``data``, elements of ``dtype``, in place."""
    width = item_size(dtype) // (2 if dtype.startswith("complex") else 1)
    if width > 1:
        data.reshape(-1).view(f"u{width}").byteswap(inplace=True)


def rebuilders(rebuild: Callable[..., object]) -> dict[tuple[str, str], object]:
    """Return torch._utils' functions; ``rebuild(storage, dtype, offset, size, stride)`` does the work."""

    def plain(parts: tuple[Any, ...], metadata: tuple[Any, ...]) -> None:
        if len(parts) > 1 and parts[1]:
            raise ValueError("a tensor with hooks")
        if len(metadata) > 1 or any(metadata):
            raise ValueError("a tensor that is conjugated or negated only by a mark")

    def version_1(parts: tuple[Any, ...]) -> object:
        storage, offset, size, stride = parts
        return rebuild(storage, None, offset, size, stride)

    def version_2(parts: tuple[Any, ...]) -> object:
        storage, offset, size, stride = parts[:4]
        plain(parts[4:6], parts[6:])
        return rebuild(storage, None, offset, size, stride)

    def version_3(parts: tuple[Any, ...]) -> object:
        storage, offset, size, stride = parts[:4]
        plain(parts[4:6], parts[7:])
        if not isinstance(parts[6], TorchDtype):
            raise ValueError("a tensor without a data type")
        return rebuild(storage, parts[6].name, offset, size, stride)

    def parameter(parts: tuple[Any, ...]) -> object:
        data, *_ = parts
        if not isinstance(data, StoredTensor | TensorValue):
            raise ValueError("a parameter without a tensor")
        return data

    functions: dict[str, Callable[[tuple[Any, ...]], object]] = {
        "_rebuild_tensor": version_1,
        "_rebuild_tensor_v2": version_2,
        "_rebuild_tensor_v3": version_3,
        "_rebuild_parameter": parameter,
    }
    return {("torch._utils", name): Constructor(name, call) for name, call in functions.items()}
