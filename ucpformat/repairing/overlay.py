"""A damaged checkpoint as it will be once its documents are back, to be looked at before anything is written."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ucpformat.model.root import ROOT_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.storage.stores.store import Objects

__all__ = ["Overlay"]


class Overlay:
    """A store with some objects in memory, in front of the stored ones; `Objects` to read."""

    def __init__(self, store: Objects) -> None:
        self._store = store
        self._added: dict[str, bytes] = {}

    def add(self, key: str, data: bytes) -> None:
        """Show these bytes under a key."""
        self._added[key] = data

    def added(self, key: str) -> bytes:
        """Return what was added under a key."""
        return self._added[key]

    @property
    def root(self) -> bytes:
        """The root document."""
        return self._added[ROOT_KEY]

    def size(self, key: str) -> int | None:
        """Return length of an object in bytes."""
        return len(self._added[key]) if key in self._added else self._store.size(key)

    def head(self, key: str, most: int) -> bytes | None:
        """Return the first bytes of an object."""
        return self._added[key][:most] if key in self._added else self._store.head(key, most)

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of an object."""
        return self._added[key][start:stop] if key in self._added else self._store.read(key, start, stop)

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers from byte ``start`` on; of data, none of which is in memory."""
        self._store.read_into(key, start, buffers)

    def glimpse(self, key: str, start: int, stop: int) -> AbstractContextManager[memoryview | None]:
        """Return bytes that are read, since a mapping of a pack that is replaced would still show the old one."""
        del key, start, stop
        return nullcontext()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
