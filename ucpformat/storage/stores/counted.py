"""How much is read of a store: for reports."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.storage.stores.store import StoredRange

__all__ = ["CountedReads", "Readable"]


class Readable(Protocol):
    """What reading chunks needs of a `Store`, which its caller has open; methods raise as those of `Store`."""

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of an object."""
        ...

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers, one after another, from byte ``start`` on."""
        ...

    def mapped(self, key: str, start: int, stop: int) -> memoryview:
        """Return bytes ``[start, stop)`` of an object as read-only mapped memory; ``UCP-E-STORE`` where none can be."""
        ...

    def mapped_together(self, parts: Sequence[StoredRange]) -> memoryview | None:
        """Return the parts one behind the other, as `mapped`; None where the system cannot put them there."""
        ...


class CountedReads:
    """Reads of a store; ``nbytes`` are the bytes that were asked for. Safe to use from several threads."""

    def __init__(self, store: Readable) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.nbytes = 0

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Do as the store does."""
        self._count(stop - start)
        return self._store.read(key, start, stop)

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Do as the store does."""
        self._count(sum(buffer.nbytes for buffer in buffers))
        self._store.read_into(key, start, buffers)

    def mapped(self, key: str, start: int, stop: int) -> memoryview:
        """Do as the store does; looking at mapped bytes fetches them, so they count."""
        self._count(stop - start)
        return self._store.mapped(key, start, stop)

    def mapped_together(self, parts: Sequence[StoredRange]) -> memoryview | None:
        """Do as `mapped`; what is not stored is not fetched."""
        found = self._store.mapped_together(parts)
        if found is not None:
            self._count(sum(part.stop - part.start for part in parts if part.key is not None))
        return found

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes
