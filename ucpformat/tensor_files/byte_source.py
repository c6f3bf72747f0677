"""Where the bytes of an item lie: a range of a file, or memory after decompression."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ucpformat.errors import error
from ucpformat.storage.stores.local_io import opened

__all__ = ["ByteSource", "FileRange", "Location", "MemoryRange", "decompressed", "open_range"]

_BLOCK = 1 << 20


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
