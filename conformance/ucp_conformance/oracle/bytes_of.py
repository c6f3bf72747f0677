"""Bytes: CRC-32C, content digests, SHA-256, data types, the chunk grid (SPEC 11.2, 11.3, 16.1)."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

try:
    from crc32c import crc32c as _fast_crc
except ImportError:  # the table below does the same, slower
    _fast_crc = None  # type: ignore[assignment]

__all__ = [
    "CORE_DTYPES",
    "ITEM_BYTES",
    "Grid",
    "boxes_of",
    "content_digest",
    "crc32c",
    "fill_value",
    "sha256",
]

BLOCK: Final = 1 << 20

CORE_DTYPES: Final = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
"""Those of level Dense."""

ITEM_BYTES: Final[dict[str, int]] = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8,
    "uint64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
    "float8_e3m4": 1, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e4m3b11fnuz": 1, "float8_e5m2": 1,
    "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float4_e2m1fn": 1, "int4": 1,
}  # fmt: skip
"""Every data type, with the bytes of an element."""

_UNUSED: Final = {"bool": 0xFE, "int4": 0xF0, "float4_e2m1fn": 0xF0}


def unused_bits(dtype: str) -> int:
    """Return the bits of an element's one byte that must be zero; 0 where every bit counts."""
    return _UNUSED.get(dtype, 0)


def fill_value(dtype: str) -> str:
    """Return the JSON text of the fill value in Zarr metadata."""
    if dtype == "bool":
        return "false"
    if dtype.startswith("complex"):
        return "[0,0]"
    return '"0x00"' if dtype == "float8_e8m0fnu" else "0"


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_TABLE: Final = _table()


def slow_crc32c(data: bytes) -> int:
    """Return CRC-32C, byte by byte."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return CRC-32C (Castagnoli)."""
    return slow_crc32c(data) if _fast_crc is None else int(_fast_crc(data))


def block_checksums(data: bytes) -> list[int]:
    """Return the CRC-32C of each successive MiB."""
    return [crc32c(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK)]


def sha256(data: bytes) -> str:
    """Return the digest of a document as references record it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def content_digest(data: bytes) -> str:
    """Return the content digest of a slot's logical bytes."""
    leaves = b"".join(struct.pack("<I", crc) for crc in block_checksums(data))
    return "crc32c-tree:" + hashlib.sha256(leaves).hexdigest()


@dataclass(frozen=True, slots=True)
class Grid:
    """The chunks of a slot: ``chunk`` is their shape, ``counts`` how many along each dimension."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int], item: int, chunk_bytes: int) -> Grid:
        """Return the grid of a shape, by the definition."""
        extents = tuple(shape)
        if not extents:
            return cls((), (), ())
        e = [max(1, extent) for extent in extents]
        inner = [item * math.prod(e[axis + 1 :]) for axis in range(len(e))]
        fitting = [axis for axis in range(len(e)) if inner[axis] <= chunk_bytes]
        k = fitting[0] if fitting else len(e) - 1
        rows = max(1, chunk_bytes // inner[k])
        parts = -(-e[k] // rows)
        chunk = (*(1 for _ in e[:k]), -(-e[k] // parts), *e[k + 1 :])
        return cls(extents, chunk, tuple(-(-d // c) for d, c in zip(extents, chunk, strict=True)))

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Return grid positions in row-major order."""
        # The product holds every range that it is of, and those beside an empty one may be long.
        return iter(()) if 0 in self.counts else product(*map(range, self.counts))

    def key(self, position: tuple[int, ...]) -> str:
        """Return the Zarr key of a chunk."""
        return "/".join(("c", *map(str, position)))

    def box(self, position: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return offset and clipped shape of a chunk."""
        offset = tuple(at * size for at, size in zip(position, self.chunk, strict=True))
        shape = tuple(
            min(size, extent - start)
            for start, size, extent in zip(offset, self.chunk, self.shape, strict=True)
        )
        return offset, shape


def boxes_of(offset: Sequence[int], shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Return the indices of a box, row-major."""
    return product(*(range(start, start + extent) for start, extent in zip(offset, shape, strict=True)))


def linear(index: Sequence[int], shape: Sequence[int]) -> int:
    """Return the row-major position of an element."""
    place = 0
    for at, extent in zip(index, shape, strict=True):
        place = place * extent + at
    return place


def cut(data: bytes, item: int, shape: Sequence[int], offset: Sequence[int], box: Sequence[int]) -> bytes:
    """Return the bytes of a box, dense, out of those of a whole tensor."""
    if tuple(offset) == (0,) * len(shape) and tuple(box) == tuple(shape):
        return data
    return b"".join(
        data[item * place : item * (place + 1)]
        for place in (linear(index, shape) for index in boxes_of(offset, box))
    )


def paste(
    target: bytearray, item: int, shape: Sequence[int], offset: Sequence[int], box: Sequence[int], data: bytes
) -> None:
    """Do the reverse of `cut`."""
    for number, index in enumerate(boxes_of(offset, box)):
        place = linear(index, shape)
        target[item * place : item * (place + 1)] = data[item * number : item * (number + 1)]
