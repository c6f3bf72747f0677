"""Data types of safetensors: their names, and elements of 4 bits, which lie two to a byte, the first in the low half.

Source: ``Dtype`` in safetensors/src/tensor.rs of huggingface/safetensors 0.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.geometry import Box, runs
from ucpformat.model.dtype import dtype
from ucpformat.tensor_files.byte_source import Location
from ucpformat.tensor_files.strided import contiguous_strides, element_view, read_strided

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.tensor_files.byte_source import FileRange
    from ucpformat.tensor_files.source_files import SourceFiles

__all__ = ["FOUR_BITS", "STORED_NAMES", "StoredTensor", "packed_nibbles"]

FOUR_BITS: Final = "float4_e2m1fn"

STORED_NAMES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    FOUR_BITS: "F4",
}
"""Our names to safetensors'."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file as a source of boxes: ``dtype`` is ours."""

    files: SourceFiles
    location: Location
    dtype: str
    shape: tuple[int, ...]

    def __call__(self, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out``, contiguous, with a box. Raises ``UCP-E-SOURCE``."""
        data = out.reshape(-1).view(np.uint8)
        with self.files.open(self.location) as source:
            if self.dtype == FOUR_BITS:
                _read_nibbles(source, box, self.shape, data)
                return
            size = dtype(self.dtype).item_bytes
            strides = contiguous_strides(self.shape)
            start = sum(index * step for index, step in zip(box.offset, strides, strict=True)) * size
            read_strided(source, start, strides, element_view(data, size, box.shape))


def _read_nibbles(source: FileRange, box: Box, shape: tuple[int, ...], out: NDArray[np.uint8]) -> None:
    rows = runs(box, shape)
    done = 0
    for first in rows:
        low, high = first // 2, (first + rows.length + 1) // 2
        packed = np.frombuffer(source.read(low, high - low), np.uint8)
        both = np.empty(2 * packed.size, np.uint8)
        both[0::2], both[1::2] = packed & 15, packed >> 4
        out[done : done + rows.length] = both[first - 2 * low :][: rows.length]
        done += rows.length


def packed_nibbles(data: NDArray[Any]) -> NDArray[np.uint8]:
    """An even number of elements of 4 bits, one to a byte, as safetensors has them."""
    halves = data.reshape(-1).view(np.uint8) & np.uint8(15)
    packed: NDArray[np.uint8] = np.bitwise_or(halves[0::2], halves[1::2] << np.uint8(4), dtype=np.uint8)
    return packed
