"""The header of a safetensors file: names, data types, shapes and byte ranges.

Source: the format description of huggingface/safetensors: 8 bytes of header length (little-endian), a JSON
object, then the tensors' bytes without gaps.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from ucpformat.errors import UcpError, error
from ucpformat.tensor_files.byte_source import Location
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.stand_ins import item_size

__all__ = ["SafetensorsEntry", "SafetensorsHeader", "read_header"]

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
    """One tensor of a file: ``dtype`` in Zarr's spelling, the place of its elements in C order.

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
    dtype = value.get("dtype")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise error("UCP-E-DTYPE", f"{key!r}: safetensors' {dtype!s:.40} is not supported", at=file)
    shape = sizes(value.get("shape"), file)
    place = sizes(value.get("data_offsets"), file)
    if len(shape) > _MAX_NDIM or math.prod(max(extent, 1) for extent in shape) >= 2**53:
        raise error("UCP-E-LIMIT", f"{key!r:.200} has too many dimensions or elements", at=file)
    name = _DTYPES[dtype]
    bits = _BITS.get(dtype) or 8 * item_size(name)
    if len(place) != 2 or (place[1] - place[0]) * 8 != math.prod(shape) * bits:
        raise _damaged(file, f"the byte range of {key!r} does not fit its shape")
    location = Location(file, base + place[0], place[1] - place[0])
    return SafetensorsEntry(name, shape, location, dtype if dtype in _BITS else "")


def _check_places(file: str, entries: dict[str, SafetensorsEntry], base: int, size: int) -> None:
    end = base
    for entry in sorted(entries.values(), key=lambda entry: (entry.location.start, entry.location.length)):
        if entry.location.start != end:
            raise _damaged(file, "its tensors overlap or leave a gap")
        end += entry.location.length
    if end != size:
        raise _damaged(file, f"it has {size} bytes, its header counts on {end}")
