"""A safetensors file: its header, and elements of 4 bits, which lie two to a byte, the first in the low half."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.errors import UcpError, error
from ucpformat.geometry import Box, runs
from ucpformat.model.dtype import dtype
from ucpformat.tensor_files.byte_source import Location, contiguous_strides, element_view, read_strided
from ucpformat.tensor_files.source_files import SourceFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.tensor_files.byte_source import FileRange
    from ucpformat.tensor_files.source_files import SourceFiles

__all__ = [
    "FOUR_BITS",
    "STORED_NAMES",
    "SafetensorsEntry",
    "SafetensorsHeader",
    "StoredTensor",
    "packed_nibbles",
    "read_header",
]

_MAX_HEADER: Final = 100_000_000
_DTYPES: Final = {
    "BOOL": "bool",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn",
    # No type of ours: their bytes are.
    "F6_E2M3": "uint8",
    "F6_E3M2": "uint8",
}
_BITS: Final = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
_MAX_NDIM: Final = 64


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """One tensor of a file: ``dtype`` in Zarr's spelling, the location of its elements in C order.

    ``packed`` is safetensors' name of a type with elements that are not whole bytes, and empty for others.
    """

    dtype: str
    shape: tuple[int, ...]
    location: Location
    packed: str = ""


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """A file's tensors by name, and its ``__metadata__``."""

    entries: dict[str, SafetensorsEntry]
    metadata: dict[str, str]


def read_header(files: SourceFiles, name: str) -> SafetensorsHeader:
    """Return the header of the file ``name``.

    Raises ``UCP-E-SOURCE`` for a damaged or truncated file, ``UCP-E-LIMIT``, ``UCP-E-DTYPE`` and as
    `SourceFiles.size`.
    """
    size = files.size(name)
    if size < 8:
        raise _damaged(name, "it is too short")
    with files.open(Location(name, 0, size)) as source:
        length = int.from_bytes(source.read(0, 8), "little")
        if length > _MAX_HEADER:
            raise error("UCP-E-LIMIT", f"a header of {length} bytes; the limit is {_MAX_HEADER}", at=name)
        if 8 + length > size:
            raise _damaged(name, "its header is truncated")
        document = parse_object(source.read(8, length), name)
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise _damaged(name, "its __metadata__ are not strings")
    entries = {key: _entry(name, key, value, 8 + length) for key, value in document.items()}
    _check_places(name, entries, 8 + length, size)
    return SafetensorsHeader(entries, metadata)


def parse_object(data: bytes, at: str) -> dict[str, Any]:
    """Return the JSON object ``data``; a name that stands twice is refused. Raises ``UCP-E-SOURCE``."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            raise ValueError("a name stands twice")
        return result

    try:
        document = json.loads(data, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as problem:
        raise _damaged(at, f"its JSON cannot be read ({problem})") from None
    if not isinstance(document, dict):
        raise _damaged(at, "its JSON is not an object")
    return document


def sizes(value: object, at: str) -> tuple[int, ...]:
    """Return a JSON list of integers that are not negative. Raises ``UCP-E-SOURCE``."""
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 2**63 for item in value):
        raise _damaged(at, "a shape or an offset is not a list of integers")
    return tuple(value)


def _damaged(at: str, message: str) -> UcpError:
    return error("UCP-E-SOURCE", f"the file is damaged: {message}", at=at)


def _entry(file: str, key: str, value: object, base: int) -> SafetensorsEntry:
    if not isinstance(value, dict):
        raise _damaged(file, f"the entry of {key!r} is not an object")
    said = value.get("dtype")
    if not isinstance(said, str) or said not in _DTYPES:
        raise error("UCP-E-DTYPE", f"{key!r}: safetensors' {said!s:.40} is not supported", at=file)
    shape = sizes(value.get("shape"), file)
    offsets = sizes(value.get("data_offsets"), file)
    if len(shape) > _MAX_NDIM or math.prod(max(extent, 1) for extent in shape) >= 2**53:
        raise error("UCP-E-LIMIT", f"{key!r:.200} has too many dimensions or elements", at=file)
    name = _DTYPES[said]
    bits = _BITS.get(said) or 8 * dtype(name).item_bytes
    if len(offsets) != 2 or (offsets[1] - offsets[0]) * 8 != math.prod(shape) * bits:
        raise _damaged(file, f"the byte range of {key!r} does not fit its shape")
    location = Location(file, base + offsets[0], offsets[1] - offsets[0])
    return SafetensorsEntry(name, shape, location, said if said in _BITS else "")


def _check_places(file: str, entries: dict[str, SafetensorsEntry], base: int, size: int) -> None:
    end = base
    for entry in sorted(entries.values(), key=lambda entry: (entry.location.start, entry.location.length)):
        if entry.location.start != end:
            raise _damaged(file, "its tensors overlap or leave a gap")
        end += entry.location.length
    if end != size:
        raise _damaged(file, f"it has {size} bytes, its header counts on {end}")


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
    """Return an even number of elements of 4 bits, one to a byte, as safetensors has them."""
    halves = data.reshape(-1).view(np.uint8) & np.uint8(15)
    packed: NDArray[np.uint8] = np.bitwise_or(halves[0::2], halves[1::2] << np.uint8(4), dtype=np.uint8)
    return packed
