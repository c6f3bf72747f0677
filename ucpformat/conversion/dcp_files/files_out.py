"""Writing a DCP directory that stock ``torch.distributed.checkpoint.load`` reads.

Items are ``torch.save`` archives one after another in ``__0_<n>.distcp``; ``.metadata`` appears last (`metadata_out`).
Source: torch/distributed/checkpoint/filesystem.py of PyTorch 2.6 to 2.15.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ucpformat.conversion.contract.content import slot_blocks
from ucpformat.conversion.dcp_files.items import KeyPath
from ucpformat.conversion.dcp_files.metadata_out import ListedBox, ListedTensor, metadata_pickle
from ucpformat.conversion.engine.work_order import batch_size
from ucpformat.errors import error
from ucpformat.tensor_files.byte_source import Location, slabs
from ucpformat.tensor_files.out_files import OutFile, OutFiles
from ucpformat.tensor_files.revive import revive
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES
from ucpformat.tensor_files.torch_archive_writer import OutTensor, write_archive

if TYPE_CHECKING:
    from ucpformat.geometry import Box
    from ucpformat.jsonio import JsonValue

__all__ = ["ExportTensor", "dcp_files"]

_METADATA: Final = ".metadata"
_BOX_BYTES: Final = 128 << 20
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


def dcp_files(
    tensors: Mapping[str, ExportTensor],
    objects: Mapping[str, object],
    planner_data: Mapping[str, KeyPath],
    *,
    stored: Mapping[str, bytes] | None = None,
    box_bytes: int = _BOX_BYTES,
) -> OutFiles:
    """Return the files of a DCP directory with ``tensors`` and ``objects`` under DCP's keys.

    ``planner_data`` gives the path in the nested state dict that a key spells; a key without one is a name at
    the top level. Stand-ins of `objects` become what they stand for; ``stored`` are objects as the bytes that
    another DCP directory held (`DcpDirectory.read_object_bytes`), written as they are. A tensor is an item for each
    ``box_bytes``, which stock torch reads at once; one block of it is held here at a time.

    Raises ``UCP-E-NAME`` and ``UCP-E-DTYPE``, and as files are written ``UCP-E-OBJECT`` and what ``read_box`` raises.
    """
    stored = stored or {}
    paths = _paths(tensors, {**objects, **stored}, planner_data)
    boxes = [
        _Box(key, tensor, offset, shape)
        for key, tensor in tensors.items()
        for offset, shape in slabs(tensor.shape, _TORCH_NAMES[tensor.dtype][1], box_bytes)
    ]
    size = batch_size(sum(box.nbytes for box in boxes))
    shares: list[list[_Box]] = [[]]
    held = 0
    for box in boxes:
        if held >= size:
            shares.append([])
            held = 0
        shares[-1].append(box)
        held += box.nbytes
    parts = []
    for number, share in enumerate(shares):
        beside = (objects, stored) if number == 0 else ({}, {})
        write = partial(_write_items, share, *beside)
        parts.append(OutFile(f"__0_{number}.distcp", sum(box.nbytes for box in share), write))

    def closing(notes: Mapping[str, JsonValue]) -> list[OutFile]:
        return [OutFile(_METADATA, 0, partial(_write_metadata, tensors, paths, notes))]

    return OutFiles(parts, closing)


@dataclass(frozen=True, slots=True)
class _Box:
    """An item: a box of a tensor."""

    key: str
    tensor: ExportTensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _TORCH_NAMES[self.tensor.dtype][1]

    def blocks(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the bytes in order."""

        def read(box: Box, out: npt.NDArray[np.generic]) -> None:
            offset = tuple(map(int.__add__, self.offset, box.offset))
            self.tensor.read_box(offset, box.shape, out.reshape(-1).view(np.uint8))

        for _, data in slot_blocks(self.tensor.dtype, self.shape, read):
            yield data.reshape(-1).view(np.uint8)


def _write_items(
    boxes: Sequence[_Box],
    objects: Mapping[str, object],
    stored: Mapping[str, bytes],
    stream: IO[bytes],
) -> JsonValue:
    """Write one file; the note says where its items lie: key; box (offset, shape) or null; start, length."""
    noted: list[JsonValue] = []

    def item(
        key: str, box: tuple[tuple[int, ...], tuple[int, ...]] | None, write: Callable[[], object]
    ) -> None:
        start = stream.tell()
        write()
        noted.append(
            [key, None if box is None else [list(part) for part in box], start, stream.tell() - start]
        )

    for key, archive in stored.items():
        item(key, None, partial(stream.write, archive))
    for key, value in objects.items():
        item(key, None, partial(_save_object, value, key, stream))
    for box in boxes:
        tensor = OutTensor(box.tensor.dtype, box.shape, box.blocks)
        item(box.key, (box.offset, box.shape), partial(write_archive, stream, tensor))
    return noted


def _save_object(value: object, key: str, stream: IO[bytes]) -> None:
    import torch

    # Into memory first: torch hides what goes wrong with a stream.
    buffer = io.BytesIO()
    torch.save(revive(value, key), buffer)
    with buffer.getbuffer() as data:  # let go of, whatever the stream raises
        stream.write(data)


def _write_metadata(
    tensors: Mapping[str, ExportTensor],
    paths: Mapping[str, KeyPath],
    notes: Mapping[str, Any],
    stream: IO[bytes],
) -> None:
    objects: dict[str, Location] = {}
    boxes: dict[str, list[ListedBox]] = {key: [] for key in tensors}
    for file in sorted(notes, key=lambda name: (len(name), name)):  # in order of number
        for key, box, start, length in notes[file]:
            location = Location(file, start, length)
            if box is None:
                objects[key] = location
            else:
                offset, shape = map(tuple, box)
                boxes[key].append(ListedBox(offset, shape, location))
    stored = {
        key: ListedTensor(_TORCH_NAMES[tensor.dtype][0], tensor.shape, boxes[key])
        for key, tensor in tensors.items()
    }
    stream.write(metadata_pickle(stored, objects, paths))


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
