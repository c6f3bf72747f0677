"""A checkpoint of either storage as a Zarr v3 store, for zarr-python, xarray and dask (SPEC section 16).

The view is read-only and uncompressed: chunks are decoded, verified, assembled from their segments and padded
here, and the metadata documents say so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)

from ucpformat.model.zarr_document import GROUP_DOCUMENT, raw_array_document
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.storage import zarr_dtypes as _extension_dtypes  # noqa: F401 - registers them with zarr
from ucpformat.storage.selection import selection

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Iterable

    from zarr.core.buffer import Buffer, BufferPrototype

    from ucpformat.storage.part import StoredSlot

__all__ = ["UcpZarrStore", "zarr_store"]

_METADATA = "zarr.json"


def zarr_store(url: str | os.PathLike[str]) -> UcpZarrStore:
    """Open a checkpoint as a Zarr store: ``zarr.open_group(zarr_store(path))["<atom key>/<slot>"]``.

    Raises:
        UcpError: as `ucpformat.open`.
    """
    return UcpZarrStore(open_checkpoint(url))


class UcpZarrStore(Store):
    """Read-only `zarr.abc.store.Store` over an open checkpoint; groups are atoms by key, arrays their slots."""

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(read_only=True)
        self._checkpoint = checkpoint
        self._slots: dict[str, StoredSlot] = {}
        self._groups: set[str] = {""}
        for stored in checkpoint.slots():
            self._slots[f"{stored.atom.key}/{stored.slot.name}"] = stored
            self._groups.add(stored.atom.key)

    def close(self) -> None:
        """Close the checkpoint."""
        super().close()
        self._checkpoint.close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UcpZarrStore) and other._checkpoint is self._checkpoint

    def __hash__(self) -> int:
        return id(self._checkpoint)

    def __str__(self) -> str:
        return f"ucp://{self._checkpoint.store.url}"

    def _chunk(self, key: str) -> tuple[StoredSlot, int] | None:
        """The slot and the chunk that a Zarr key names, if any."""
        parts = key.split("/")
        stored = self._slots.get("/".join(parts[:2]))
        if stored is None or len(parts) < 3 or parts[2] != "c":
            return None
        try:
            index = tuple(int(part) for part in parts[3:])
        except ValueError:
            return None
        counts = stored.grid.counts
        if len(index) != len(counts) or not all(0 <= i < n for i, n in zip(index, counts, strict=True)):
            return None
        position = stored.grid.position_of(index)
        return (stored, position) if stored.chunk_key(position) == "/".join(parts[2:]) else None

    def _document(self, key: str) -> bytes | None:
        parent, _, name = key.rpartition("/")
        if name != _METADATA:
            return None
        if parent in self._groups:
            return GROUP_DOCUMENT
        stored = self._slots.get(parent)
        if stored is None:
            return None
        # The view decodes: what it serves has neither compressor nor checksum.
        return raw_array_document(stored.dtype, stored.slot.shape, stored.grid.chunk_shape)

    def _read(self, key: str) -> bytes | None:
        document = self._document(key)
        if document is not None:
            return document
        found = self._chunk(key)
        if found is None:
            return None
        stored, chunk = found
        box = stored.chunk_box(chunk)
        data = np.zeros(stored.grid.chunk_shape, stored.dtype.numpy)
        self._checkpoint.read_box(stored, box, data[selection(box, box)])
        return data.tobytes()

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Bytes of a document or chunk; None for a key that does not exist."""
        data = await asyncio.to_thread(self._read, key)
        if data is None:
            return None
        return prototype.buffer.from_bytes(data[_slice(byte_range, len(data))])

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Several ranges at once."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        """Whether there is a document or chunk of that key."""
        return self._document(key) is not None or self._chunk(key) is not None

    async def set(self, key: str, value: Buffer) -> None:
        """Refused: a committed checkpoint is never changed."""
        raise ValueError("a checkpoint is read-only")

    async def delete(self, key: str) -> None:
        """Refused: a committed checkpoint is never changed."""
        raise ValueError("a checkpoint is read-only")

    async def list(self) -> AsyncIterator[str]:
        """All keys."""
        for group in sorted(self._groups):
            yield f"{group}/{_METADATA}".lstrip("/")
        for prefix, stored in self._slots.items():
            yield f"{prefix}/{_METADATA}"
            for chunk in range(stored.grid.count):
                yield f"{prefix}/{stored.chunk_key(chunk)}"

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Keys that begin with ``prefix``."""
        async for key in self.list():
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names directly under ``prefix``."""
        base = prefix.rstrip("/") + "/" if prefix.rstrip("/") else ""
        seen = set()
        async for key in self.list_prefix(base):
            name = key[len(base) :].split("/")[0]
            if name not in seen:
                seen.add(name)
                yield name


def _slice(request: ByteRequest | None, size: int) -> slice:
    match request:
        case RangeByteRequest(start, end):
            return slice(start, end)
        case OffsetByteRequest(offset):
            return slice(offset, None)
        case SuffixByteRequest(suffix):
            return slice(max(0, size - suffix), None)
        case _:
            return slice(None)
