"""Writing safetensors files, streamed, and the index of several.

Within a file, tensors lie from the widest elements to the narrowest and then by name, so that each is aligned, and
the header is padded with spaces to a multiple of 8 bytes (``prepare`` in safetensors/src/tensor.rs).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ucpformat.conversion.contract.content import slot_blocks
from ucpformat.errors import error
from ucpformat.model.dtype import dtype
from ucpformat.tensor_files.safetensors_file import FOUR_BITS, packed_nibbles

if TYPE_CHECKING:
    from ucpformat.conversion.contract.job import ReadBox

__all__ = ["OutTensor", "index_document", "shards", "write_file"]


@dataclass(frozen=True, slots=True)
class OutTensor:
    """A tensor to write: safetensors' type and the shape of its header, and the slot that is read.

    ``dtype`` and ``shape`` of the slot are ours; they differ for types that are carried as bytes.
    """

    name: str
    stored_dtype: str
    stored_shape: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]
    read: ReadBox

    @property
    def nbytes(self) -> int:
        """The bytes that it takes in a file."""
        count = math.prod(self.shape)
        return count // 2 if self.dtype == FOUR_BITS else count * dtype(self.dtype).item_bytes

    def blocks(self) -> Iterator[memoryview]:
        """Yield its bytes in order, a block of at most 8 MiB, or one element, at a time."""
        rest = np.empty(0, np.uint8)
        for _, data in slot_blocks(self.dtype, self.shape, self.read):
            block: Any = data.reshape(-1).view(np.uint8)
            if self.dtype == FOUR_BITS:
                whole = np.concatenate([rest, block])
                even = whole.size - whole.size % 2
                block, rest = packed_nibbles(whole[:even]), whole[even:]
            yield memoryview(block)


def shards(tensors: Iterable[OutTensor], limit: int) -> list[list[OutTensor]]:
    """Return the tensors in order, divided where the next would take a file over ``limit`` bytes."""
    files: list[list[OutTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if files[-1] and size + tensor.nbytes > limit:
            files.append([])
            size = 0
        files[-1].append(tensor)
        size += tensor.nbytes
    return files


def write_file(
    stream: IO[bytes],
    tensors: Sequence[OutTensor],
    metadata: Mapping[str, str],
) -> None:
    """Write one file. Raises what reading raises."""
    ordered = sorted(tensors, key=lambda tensor: (-dtype(tensor.dtype).item_bytes, tensor.name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for tensor in ordered:
        header[tensor.name] = {
            "dtype": tensor.stored_dtype,
            "shape": list(tensor.stored_shape),
            "data_offsets": [position, position + tensor.nbytes],
        }
        position += tensor.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    for tensor in ordered:
        done = 0
        for block in tensor.blocks():
            stream.write(block)
            done += block.nbytes
        if done != tensor.nbytes:
            raise error(
                "UCP-E-SHAPE", f"{done} bytes were read of a tensor of {tensor.nbytes}", at=tensor.name
            )


def index_document(files: Mapping[str, Sequence[OutTensor]], metadata: Mapping[str, object]) -> bytes:
    """Return the index of several files: their tensors by name, and the sum of their bytes."""
    weight_map = {tensor.name: name for name, tensors in files.items() for tensor in tensors}
    total = sum(tensor.nbytes for tensors in files.values() for tensor in tensors)
    document = {"metadata": {**metadata, "total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
