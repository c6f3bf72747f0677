"""Where the bytes of an item lie, in a file or in memory after decompression, and boxes of tensors read from there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from ucpformat.errors import error
from ucpformat.storage.stores.local_io import opened

__all__ = [
    "ByteSource",
    "FileRange",
    "Location",
    "MemoryRange",
    "contiguous_strides",
    "decompressed",
    "element_view",
    "open_range",
    "read_strided",
    "slabs",
]

_BLOCK = 1 << 20
_MAX_SPAN: Final = 32 << 20  # bytes held at a time
_SMALL_SPAN: Final = 64 << 10  # below this one read is cheaper than several
_MAX_WASTE: Final = 4  # bytes read for each byte wanted
_CARRIERS: Final = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


@dataclass(frozen=True, slots=True)
class Location:
    """A range of bytes of a file, ``file`` relative to the directory, and the transforms to undo."""

    file: str
    start: int
    length: int
    transforms: tuple[str, ...] = ()


class ByteSource(Protocol):
    """Bytes that can be read in part; offsets count from the item's start.

    Readers of foreign files call `read` and `read_into` from any thread and in any order, as long as the file is open.
    Both raise `ImportRefusedError` (``UCP-E-SOURCE``), which names `at`.
    """

    @property
    def at(self) -> str:
        """Return the location that errors name."""

    @property
    def size(self) -> int:
        """Return the number of bytes."""

    def read(self, offset: int, count: int) -> bytes:
        """Return exactly ``count`` bytes. Raises ``UCP-E-SOURCE`` where they do not all exist."""

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` (bytes, contiguous). Raises ``UCP-E-SOURCE``."""


class FileRange:
    """``length`` bytes at ``start`` of an open file."""

    def __init__(self, descriptor: int, start: int, length: int, at: str) -> None:
        self._descriptor = descriptor
        self._start = start
        self.size = length
        self.at = at

    def read(self, offset: int, count: int) -> bytes:
        """Return exactly ``count`` bytes. Raises ``UCP-E-SOURCE``."""
        _check_range(self, offset, count)
        buffer = bytearray(count)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out``. Raises ``UCP-E-SOURCE``."""
        _check_range(self, offset, len(out))
        done = 0
        while done < len(out):
            count = os.preadv(self._descriptor, [out[done:]], self._start + offset + done)
            if count == 0:
                raise error("UCP-E-SOURCE", "the file is shorter than its metadata say", at=self.at)
            done += count


class MemoryRange:
    """Bytes in memory."""

    def __init__(self, data: bytes, at: str) -> None:
        self._data = data
        self.size = len(data)
        self.at = at

    def read(self, offset: int, count: int) -> bytes:
        """Return exactly ``count`` bytes. Raises ``UCP-E-SOURCE``."""
        _check_range(self, offset, count)
        return self._data[offset : offset + count]

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out``. Raises ``UCP-E-SOURCE``."""
        _check_range(self, offset, len(out))
        out[:] = memoryview(self._data)[offset : offset + len(out)]


def _check_range(source: ByteSource, offset: int, count: int) -> None:
    if offset < 0 or count < 0 or offset + count > source.size:
        raise error("UCP-E-SOURCE", f"bytes {offset}..{offset + count} lie outside the item", at=source.at)


@contextmanager
def open_range(path: Path, start: int, length: int, at: str) -> Iterator[FileRange]:
    """Open ``length`` bytes at ``start`` of the plain file ``path``. Raises ``UCP-E-SOURCE``."""
    try:
        descriptor = opened(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        raise error("UCP-E-SOURCE", f"the file cannot be opened: {problem.strerror}", at=at) from None
    try:
        yield FileRange(descriptor, start, length, at)
    finally:
        os.close(descriptor)


def decompressed(source: ByteSource, transforms: Sequence[str], limit: int) -> MemoryRange:
    """Return the whole item with its stream transforms undone; at most ``limit`` bytes come out.

    ``transforms`` are the descriptors that torch stores, outermost first (``stream.zstd/1``). Raises
    ``UCP-E-SOURCE`` for an unknown transform or damaged data and ``UCP-E-LIMIT`` where more comes out.
    Source: torch.distributed.checkpoint._extension.
    """
    for descriptor in transforms:
        name, _, version = descriptor.partition("/")
        if name != "stream.zstd" or version.partition(".")[0] != "1":
            raise error(
                "UCP-E-SOURCE", f"the item was written through {descriptor!r}, which is unknown", at=source.at
            )
        source = MemoryRange(_unzstd(source, limit), source.at)
    if not isinstance(source, MemoryRange):
        raise error("UCP-E-SOURCE", "the item has no transform to undo", at=source.at)
    return source


def _unzstd(source: ByteSource, limit: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise error(
            "UCP-E-SOURCE", "the item is compressed with zstd: install the package `zstandard`", at=source.at
        ) from None
    parts: list[bytes] = []
    total = 0
    decompressor: Any = zstandard.ZstdDecompressor().decompressobj()
    try:
        for offset in range(0, source.size, _BLOCK):
            # One block can expand a lot: feed little, so that the bound is checked in time.
            block = source.read(offset, min(_BLOCK, source.size - offset))
            for start in range(0, len(block), 1 << 14):
                part = decompressor.decompress(block[start : start + (1 << 14)])
                total += len(part)
                if total > limit:
                    raise error(
                        "UCP-E-LIMIT", f"the item decompresses to more than {limit} bytes", at=source.at
                    )
                parts.append(part)
                if decompressor.eof:
                    return b"".join(parts)
    except zstandard.ZstdError as problem:
        raise error("UCP-E-SOURCE", f"the compressed item is damaged: {problem}", at=source.at) from None
    raise error("UCP-E-SOURCE", "the compressed item is truncated", at=source.at)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous tensor."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def element_view(out: npt.NDArray[np.uint8], size: int, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Return flat bytes seen as elements of ``size`` bytes in ``shape``; the element type only carries bits."""
    return out.reshape(-1).view(_CARRIERS[size]).reshape(tuple(shape))


def read_strided(source: ByteSource, start: int, strides: Sequence[int], target: npt.NDArray[Any]) -> None:
    """Fill ``target`` from elements at ``start + sum(index * stride) * itemsize`` of ``source``.

    ``strides`` count elements and are not negative (torch has no others); ``target`` has the box's shape and
    is a view from `element_view` or a slice of one. Reads rows, or spans that waste little, at most 32 MiB at
    a time. Raises ``UCP-E-SOURCE``.
    """
    size = target.itemsize
    shape = target.shape
    if target.size == 0:
        return
    span = (sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1) * size
    if target.flags.c_contiguous and span == target.nbytes and _in_order(shape, strides):
        source.read_into(start, target.reshape(-1).view(np.uint8).data)
        return
    if span <= _SMALL_SPAN or (span <= _MAX_SPAN and span <= _MAX_WASTE * target.nbytes):
        elements = np.frombuffer(source.read(start, span), dtype=target.dtype)
        steps = [stride * size for stride in strides]
        target[...] = np.lib.stride_tricks.as_strided(elements, shape, steps, writeable=False)
        return
    widest = max(range(len(shape)), key=lambda dim: (shape[dim] - 1) * strides[dim])
    middle = shape[widest] // 2
    lower: list[Any] = [slice(None)] * len(shape)
    upper = list(lower)
    lower[widest], upper[widest] = slice(None, middle), slice(middle, None)
    read_strided(source, start, strides, target[tuple(lower)])
    read_strided(source, start + middle * strides[widest] * size, strides, target[tuple(upper)])


def _in_order(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = contiguous_strides(shape)
    return all(
        extent == 1 or stride == want for extent, stride, want in zip(shape, strides, expected, strict=True)
    )


def slabs(shape: tuple[int, ...], size: int, limit: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield boxes (offset, shape) that tile ``shape`` in C order, each of at most ``limit`` bytes.

    ``size`` is the bytes of an element; a box has one element at least. An empty shape has one empty box.
    """
    inner = [size]
    for extent in reversed(shape):
        inner.append(inner[-1] * extent)
    inner.reverse()  # inner[dim]: bytes of the dimensions from dim on
    if inner[0] <= limit or not shape:
        yield (0,) * len(shape), shape
        return
    dim = next(d for d in range(len(shape)) if inner[d + 1] <= limit or d == len(shape) - 1)
    step = max(1, limit // inner[dim + 1])
    for outer in np.ndindex(*shape[:dim]):
        for start in range(0, shape[dim], step):
            count = min(step, shape[dim] - start)
            rest = shape[dim + 1 :]
            yield (*outer, start, *(0 for _ in rest)), (*(1 for _ in outer), count, *rest)
