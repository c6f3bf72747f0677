"""A checkpoint of either storage as a Zarr v3 store, for zarr-python, xarray and dask (SPEC section 16).

The view is read-only and uncompressed: chunks are decoded, verified, assembled from their segments and padded
here, and the metadata documents say so. They also have what xarray asks for and storage plain does not keep: names of
dimensions, and the documents of a group's members in its own (consolidated metadata).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import numpy as np
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)

from ucpformat.jsonio import dumps_canonical, loads
from ucpformat.model.zarr_document import GROUP_DOCUMENT, raw_array_document
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.storage import zarr_dtypes as _extension_dtypes  # noqa: F401 - registers them with zarr
from ucpformat.storage.host_memory import selection

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Iterable

    from zarr.core.buffer import Buffer, BufferPrototype

    from ucpformat.jsonio import JsonValue
    from ucpformat.storage.reading.stored_slot import StoredSlot

__all__ = ["UcpZarrStore", "zarr_store"]

_METADATA = "zarr.json"
_CONSOLIDATED_AT_MOST = 10_000
"""Arrays: with more, the root group leaves their documents out, since opening it parses all of them."""
_GROUP = cast("dict[str, JsonValue]", loads(GROUP_DOCUMENT, at=_METADATA))


def zarr_store(path: str | os.PathLike[str]) -> UcpZarrStore:
    """Open a checkpoint as a Zarr store: a group for each atom, by its key, with an array for each slot.

    The key of an atom is its name, where that can be the name of a file (SPEC section 9).

    * zarr: ``zarr.open_group(store, mode="r")["fc.weight/value"]``
    * xarray: ``xarray.open_zarr(store, group="fc.weight")`` is a Dataset with a variable for each slot, and
      ``xarray.open_datatree(store, engine="zarr")`` has all atoms. Dimensions are ``dim_0``, ``dim_1``, ...; where
      slots of one atom differ in an extent, those of each slot have names of their own: ``exp_avg_dim_0``.
    * dask: ``dask.array.from_zarr(store, component="fc.weight/value")``

    Raises:
        UcpError: as `ucpformat.open`.

    >>> import zarr
    >>> report = ucp.save("run.ucp", {"w": np.ones((2, 2))})
    >>> zarr.open_group(ucp.zarr_store("run.ucp"), mode="r")["w/value"][0].tolist()
    [1.0, 1.0]
    """
    return UcpZarrStore(open_checkpoint(path))


class UcpZarrStore(Store):
    """Read-only `zarr.abc.store.Store` over an open checkpoint; groups are atoms by key, arrays their slots."""

    supports_writes = False
    supports_deletes = False
    supports_listing = True
    supports_partial_writes = False  # asked for by zarr 3.1.0 to 3.1.2, as `set_partial_values` is

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(read_only=True)
        self._checkpoint = checkpoint
        self._slots: dict[str, StoredSlot] = {}
        self._groups: dict[str, list[str]] = {"": []}
        """Keys of the arrays of each group; those of the root are not repeated."""
        for stored in checkpoint.slots():
            key = stored.part.keys[stored.position]
            self._slots[f"{key}/{stored.name}"] = stored
            self._groups.setdefault(key, []).append(f"{key}/{stored.name}")

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
        """Return the slot and the chunk that a Zarr key names, if any."""
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
            return dumps_canonical(self._group(parent))
        return dumps_canonical(self._array(parent)) if parent in self._slots else None

    def _group(self, key: str) -> dict[str, JsonValue]:
        members: dict[str, JsonValue] = {}
        if key:
            members = {name.rpartition("/")[2]: self._array(name) for name in self._groups[key]}
        elif len(self._slots) <= _CONSOLIDATED_AT_MOST:
            for group in sorted(self._groups.keys() - {""}):
                members[group] = dict(_GROUP)
                members |= {name: self._array(name) for name in self._groups[group]}
        else:
            return dict(_GROUP)
        consolidated: JsonValue = {"kind": "inline", "must_understand": False, "metadata": members}
        return {**_GROUP, "consolidated_metadata": consolidated}

    def _array(self, key: str) -> dict[str, JsonValue]:
        stored = self._slots[key]
        # The view decodes: what it serves has neither compressor nor checksum.
        document = loads(raw_array_document(stored.dtype, stored.grid.shape, stored.grid.chunk_shape), at=key)
        return {**document, "dimension_names": self._dimensions(stored, key)}  # type: ignore[dict-item]

    def _dimensions(self, stored: StoredSlot, key: str) -> list[str]:
        """Return names of dimensions: within a group, one name has one extent."""
        siblings = [self._slots[name].grid.shape for name in self._groups[key.rpartition("/")[0]]]
        return [
            f"dim_{dim}"
            if all(shape[dim] == extent for shape in siblings if dim < len(shape))
            else f"{stored.name}_dim_{dim}"
            for dim, extent in enumerate(stored.grid.shape)
        ]

    def _read(self, key: str) -> bytes | None:
        document = self._document(key)
        if document is not None:
            return document
        found = self._chunk(key)
        if found is None:
            return None
        stored, chunk = found
        box = stored.grid.box_at(chunk)
        data = np.zeros(stored.grid.chunk_shape, stored.dtype.numpy)
        self._checkpoint.read_box(stored, box, data[selection(box, box)])
        return data.tobytes()

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return bytes of a document or chunk; None for a key that does not exist."""
        data = await asyncio.to_thread(self._read, key)
        if data is None:
            return None
        return prototype.buffer.from_bytes(data[_slice(byte_range, len(data))])

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return several ranges at once."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        """Return whether there is a document or chunk of that key."""
        parent, _, name = key.rpartition("/")
        is_document = name == _METADATA and (parent in self._groups or parent in self._slots)
        return is_document or self._chunk(key) is not None

    async def set(self, key: str, value: Buffer) -> None:
        """Refuse: a committed checkpoint is never changed."""
        raise ValueError("a checkpoint is read-only")

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, bytes]]) -> None:
        """Refuse: a committed checkpoint is never changed."""
        raise ValueError("a checkpoint is read-only")

    async def delete(self, key: str) -> None:
        """Refuse: a committed checkpoint is never changed."""
        raise ValueError("a checkpoint is read-only")

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        for group in sorted(self._groups):
            yield f"{group}/{_METADATA}".lstrip("/")
        for prefix, stored in self._slots.items():
            yield f"{prefix}/{_METADATA}"
            for chunk in range(stored.grid.count):
                yield f"{prefix}/{stored.chunk_key(chunk)}"

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield keys that begin with ``prefix``."""
        async for key in self.list():
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield names directly under ``prefix``."""
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
