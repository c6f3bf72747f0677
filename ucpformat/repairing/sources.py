"""Other checkpoints to take bytes from: none is trusted, what it gives is compared with what is recorded."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final

from ucpformat.errors import UcpError
from ucpformat.model.references import DocumentRef, sha256_digest
from ucpformat.model.root import ROOT_KEY, root_digest
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.storage.compression import compress
from ucpformat.storage.reading.documents import read_root
from ucpformat.storage.stores.urls import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.geometry import Box
    from ucpformat.storage.reading.stored_slot import StoredSlot
    from ucpformat.storage.stores.store import Objects
    from ucpformat.views import SlotView

__all__ = ["Source"]

_PIECE_BYTES: Final = 1 << 22


class Source:
    """A checkpoint, or what is left of one, that may have the bytes that another one lacks.

    Objects of the same key are looked at even where its documents are damaged; tensors are found by their names where
    they are not. Its methods raise nothing where it has not what is wanted.

    Raises:
        UcpError: ``UCP-E-NOT-FOUND`` where nothing lies at ``path``.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.store: Objects = open_store(path)
        try:
            read_root(self.store)
        except UcpError as refusal:
            if refusal.code == "UCP-E-NOT-FOUND" and next(self.store.keys(), None) is None:
                raise

    def close(self) -> None:
        """Release file handles."""
        try:
            checkpoint: Checkpoint | None = self.__dict__.get(
                "_checkpoint"
            )  # which nobody may have asked for
            if checkpoint is not None:
                checkpoint.close()
        finally:
            self.store.close()

    @cached_property
    def root(self) -> bytes | None:
        """The bytes of its root document, where those match the root digest in them."""
        from ucpformat.jsonio import loads

        with suppress(UcpError, KeyError, TypeError):
            data = read_root(self.store)
            found = loads(data, at=ROOT_KEY)
            digest = str(found["digest"])  # type: ignore[index, call-overload]
            if root_digest(data, digest) == digest:
                return data
        return None

    @cached_property
    def _checkpoint(self) -> Checkpoint | None:
        try:
            return open_checkpoint(self.path)
        except UcpError:
            return None

    @property
    def digest(self) -> str | None:
        """Its root digest, where it can be opened."""
        return None if self._checkpoint is None else self._checkpoint.digest

    def _places(self, reference: DocumentRef) -> Iterator[str]:
        """Yield keys under which an object of these very bytes may lie."""
        yield reference.key
        if self._checkpoint is None:
            return
        with suppress(UcpError):
            found = [other for _, other in self._checkpoint.root.references()]
            if reference.key.startswith("blobs/"):
                found += [other for _, other in self._checkpoint.state.objects()]
            for other in found:
                if (other.digest, other.length) == (reference.digest, reference.length):
                    yield other.key

    def document(self, reference: DocumentRef) -> bytes | None:
        """Return the bytes of a document, by its digest."""
        for key in self._places(reference):
            with suppress(UcpError):
                data = self.store.head(key, reference.length + 1)
                if data is not None and sha256_digest(data) == reference.digest:
                    return data
        return None

    def object_key(self, reference: DocumentRef) -> str | None:
        """Return where an object of any length lies that has this digest."""
        for key in self._places(reference):
            with suppress(UcpError):
                if self.store.size(key) != reference.length:
                    continue
                digest = hashlib.sha256()
                for piece in self.store.pieces(key):
                    digest.update(piece)
                if f"sha256:{digest.hexdigest()}" == reference.digest:
                    return key
        return None

    def raw(self, key: str, start: int, stop: int) -> bytes | None:
        """Return bytes of the object of a key."""
        try:
            return self.store.read(key, start, stop)
        except UcpError:
            return None

    def _slot(self, stored: StoredSlot) -> SlotView | None:
        if self._checkpoint is None:
            return None
        with suppress(UcpError, KeyError):
            found = self._checkpoint[stored.part.names[stored.position]][stored.name]
            if (found.dtype.name, tuple(found.shape)) == (stored.dtype.name, stored.grid.shape):
                return found
        return None

    def elements(self, stored: StoredSlot, boxes: list[Box]) -> bytes | None:
        """Return elements of boxes of the tensor with the same names, one by one, verified by what this one records."""
        found = self._slot(stored)
        if found is None:
            return None
        try:
            # Read anew for each: what is wanted is less than a chunk.
            return b"".join(found[tuple(map(slice, box.offset, box.stop)) or ()].tobytes() for box in boxes)
        except UcpError:
            return None

    def encoded(self, stored: StoredSlot, chunk: int, covered: int) -> Iterator[bytes]:
        """Yield what may be the stored bytes of a compressed chunk: those here, and the elements compressed anew."""
        found = self._slot(stored)
        if found is None or stored.compressor is None:
            return
        other = found.stored
        if other.compressor == stored.compressor and other.grid.chunk_shape == stored.grid.chunk_shape:
            with suppress(UcpError):
                for segment in other.segments(chunk)[:1]:
                    if segment.covered == covered:
                        key = other.object_key(chunk, segment)
                        yield self.store.read(key, segment.offset, segment.offset + covered)
        raw = self.elements(stored, [stored.grid.box_at(chunk)])
        if raw is not None:
            if not stored.part.packed:
                raw = raw.ljust(stored.whole_bytes(), b"\0")
            yield compress(stored.compressor, memoryview(raw))
