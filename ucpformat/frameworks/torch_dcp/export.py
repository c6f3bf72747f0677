"""Writing a DCP directory that stock ``torch.distributed.checkpoint.load`` reads.

Items are ``torch.save`` archives one after another in ``__0_0.distcp``; ``.metadata`` is a pickle of torch's
own classes and appears last, at once. Source: torch/distributed/checkpoint/filesystem.py and metadata.py of
PyTorch 2.13.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from ucpformat.errors import error
from ucpformat.frameworks.torch_dcp.items import KeyPath
from ucpformat.frameworks.torch_dcp.objects import TORCH_DTYPES
from ucpformat.frameworks.torch_dcp.revive import revive, tensor_from_bytes
from ucpformat.frameworks.torch_dcp.strided import slabs

__all__ = ["ExportTensor", "flush_directory", "write_dcp"]

_FILE: Final = "__0_0.distcp"
_METADATA: Final = ".metadata"
_TEMPORARY: Final = ".metadata.tmp"
_BOX_BYTES: Final = 128 << 20  # the box and torch's copy of it stay under 256 MiB
_TORCH_NAMES: Final = {name: (torch_name, size) for torch_name, (name, size) in TORCH_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class ExportTensor:
    """A tensor to write: ``dtype`` in Zarr's spelling.

    ``read_box(offset, shape, out)`` fills ``out``, a contiguous array of bytes, with the little-endian
    elements of a box in C order.
    """

    dtype: str
    shape: tuple[int, ...]
    read_box: Callable[[tuple[int, ...], tuple[int, ...], npt.NDArray[np.uint8]], None]


def write_dcp(
    path: str | os.PathLike[str],
    tensors: Mapping[str, ExportTensor],
    objects: Mapping[str, object],
    planner_data: Mapping[str, KeyPath],
    *,
    stored: Mapping[str, bytes] | None = None,
    box_bytes: int = _BOX_BYTES,
) -> None:
    """Write ``tensors`` and ``objects`` under DCP's keys into the directory ``path``, new or empty.

    ``planner_data`` gives the path in the nested state dict that a key spells; a key without one is a name at
    the top level. Stand-ins of `objects` become what they stand for; ``stored`` are objects as the bytes that
    another DCP directory held (`DcpDirectory.read_object_bytes`), written as they are. One box of at most
    ``box_bytes`` (or one element) is held at a time. Raises ``UCP-E-EXISTS``, ``UCP-E-NAME``, ``UCP-E-DTYPE``,
    ``UCP-E-OBJECT``, and what ``read_box`` raises; nothing is left behind then.
    """
    stored = stored or {}
    paths = _paths(tensors, {**objects, **stored}, planner_data)
    with _fresh_directory(path) as root:
        _write_items(root, tensors, objects, paths, stored, box_bytes)


def _write_items(
    root: Path,
    tensors: Mapping[str, ExportTensor],
    objects: Mapping[str, object],
    paths: Mapping[str, KeyPath],
    stored: Mapping[str, bytes],
    box_bytes: int,
) -> None:
    import torch
    from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
    )

    listed: dict[str, Any] = {}
    places: dict[Any, Any] = {}
    with (root / _FILE).open("xb") as stream:

        def write(item: object, index: Any) -> None:
            start = stream.tell()
            torch.save(item, stream)
            places[index] = _StorageInfo(_FILE, start, stream.tell() - start)

        for key, archive in stored.items():
            listed[key] = BytesStorageMetadata()
            places[MetadataIndex(key)] = _StorageInfo(_FILE, stream.tell(), len(archive))
            stream.write(archive)
        for key, value in objects.items():
            listed[key] = BytesStorageMetadata()
            write(revive(value, key), MetadataIndex(key))
        for key, tensor in tensors.items():
            name, size = _TORCH_NAMES[tensor.dtype]
            chunks: list[Any] = []
            for offset, shape in slabs(tensor.shape, size, box_bytes):
                data = np.empty(math.prod(shape) * size, dtype=np.uint8)
                if data.size:
                    tensor.read_box(offset, shape, data)
                write(tensor_from_bytes(data, name, shape), MetadataIndex(key, offset, len(chunks)))
                chunks.append(ChunkStorageMetadata(torch.Size(offset), torch.Size(shape)))
            properties = TensorProperties(dtype=getattr(torch, name))
            listed[key] = TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)
        _flush(stream)
    metadata = Metadata(listed, paths, places, StorageMeta(), CURRENT_DCP_VERSION)
    temporary = root / _TEMPORARY
    with temporary.open("xb") as stream:
        pickle.dump(metadata, stream)
        _flush(stream)
    temporary.rename(root / _METADATA)
    flush_directory(root)


def _paths(
    tensors: Mapping[str, ExportTensor], objects: Mapping[str, object], given: Mapping[str, KeyPath]
) -> dict[str, KeyPath]:
    if twice := tensors.keys() & objects.keys():
        raise error("UCP-E-NAME", f"{min(twice)!r} is a tensor and an object")
    paths = {key: tuple(given.get(key, (key,))) for key in (*tensors, *objects)}
    for key, path in paths.items():
        if ".".join(map(str, path)) != key:
            raise error(
                "UCP-E-NAME", f"the path {path} does not spell the key {key!r}, which DCP derives from it"
            )
    for key, tensor in tensors.items():
        if tensor.dtype not in _TORCH_NAMES:
            raise error("UCP-E-DTYPE", f"{key!r}: torch has no data type for {tensor.dtype}")
    return paths


@contextmanager
def _fresh_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A directory that is new or empty, and is so again if the body raises."""
    root = Path(path)
    existed = root.exists()
    if existed and (not root.is_dir() or any(root.iterdir())):
        raise error("UCP-E-EXISTS", "the destination is not an empty directory; choose another", at=str(root))
    root.mkdir(parents=True, exist_ok=True)
    try:
        yield root
    except BaseException:
        for name in (_FILE, _TEMPORARY):
            (root / name).unlink(missing_ok=True)
        if not existed:
            with suppress(OSError):  # somebody else may have put something there
                root.rmdir()
        raise


def _flush(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def flush_directory(root: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
