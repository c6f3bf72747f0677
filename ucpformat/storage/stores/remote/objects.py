"""Objects below an fsspec URL, as readers ask for them (SPEC section 8)."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from ucpformat.errors import UcpError, error
from ucpformat.model.names import check_key
from ucpformat.storage.stores.local_io import MISSING
from ucpformat.storage.stores.remote.access import (
    file_system,
    protocols_of,
    sends_parts,
    streamed,
    translated,
    without_ranges,
)
from ucpformat.storage.stores.remote.copies import ListedObject, listed
from ucpformat.storage.stores.remote.repetition import watch
from ucpformat.storage.stores.store import Calls

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from ucpformat.storage.stores.store import StoredRange

__all__ = ["BLOCK_BYTES", "RemoteObjects"]

_ONE_AT_A_TIME: Final = frozenset(("tar", "libarchive", "ftp"))
"""Protocols that fsspec reads by one file or connection, at a place that its threads share."""

_TURN: Final = threading.Lock()
"""Of these file systems, which fsspec shares among all stores of a process."""

_WEB: Final = frozenset(("http", "https"))
"""Protocols whose servers may or may not send parts of objects."""

BLOCK_BYTES: Final = 1 << 24
"""What a stream to or from an object store gathers and sends at once."""


class RemoteObjects:
    """The reading half of a `RemoteStore`. Methods do, and raise, as those of `Store`."""

    # A call waits for tens of milliseconds, in which a connection carries about a megabyte: many wait at once, and
    # hold 64 MiB together.
    calls = Calls(at_once=16, window=1 << 22, gap=1 << 19)
    glimpse_bytes = 0

    def __init__(self, url: str) -> None:
        self._url = url
        with translated(url):
            self._filesystem, self._path = file_system(url)
            protocols = protocols_of(self._filesystem)
            is_shared = not _ONE_AT_A_TIME.isdisjoint(protocols)
            self._turn: AbstractContextManager[object] = _TURN if is_shared else nullcontext()
            self._is_web = not _WEB.isdisjoint(protocols)
            self._has_ranges = not self._is_web
            watch(self._filesystem)
        self._listing = threading.Lock()
        self._listed: dict[str, ListedObject] | None = None

    @property
    def url(self) -> str:
        """The URL as given."""
        return self._url

    def _full(self, key: str) -> str:
        check_key(key, key or self.url)
        return f"{self._path.rstrip('/')}/{key}"

    def size(self, key: str) -> int | None:
        """Return length of an object in bytes, or None if there is none."""
        try:
            with translated(key), self._turn:
                # Listings are kept, and shared by all stores of a process: what was not there may be by now.
                self._filesystem.invalidate_cache(self._filesystem._parent(self._full(key)))
                size = self._filesystem.size(self._full(key))
        except UcpError as problem:
            if problem.code == "UCP-E-MISSING":
                return None
            raise
        return None if size is None else int(size)

    def head(self, key: str, most: int) -> bytes | None:
        """Return the first ``most`` bytes of an object, or all where it has fewer; None if there is none."""
        try:
            with translated(key):
                return self._head(self._full(key), most)
        except UcpError as problem:
            if problem.code == "UCP-E-MISSING":
                return None
        # Some media refuse a range that leaves the object.
        size = self.size(key)
        return None if size is None else self.read(key, 0, min(most, size))

    def _head(self, path: str, most: int) -> bytes:
        # A server may send all of it.
        with self._turn:
            return bytes(self._filesystem.cat_file(path, start=0, end=most))[:most]

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of an object."""
        if start == stop:
            return b""
        with translated(key), self._turn:
            if not self._has_ranges and stop > 1:
                # Else each part would be fetched as a whole object.
                self._has_ranges = sends_parts(self._filesystem, self._full(key), max(start, 1), key)
            data = bytes(self._filesystem.cat_file(self._full(key), start=start, end=stop))
        if len(data) > stop - start:
            raise without_ranges(key)
        if len(data) != stop - start:
            raise error("UCP-E-LENGTH", f"the object ends at byte {start + len(data)}, before {stop}", at=key)
        return data

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers, one after another, from byte ``start`` on."""
        data = memoryview(self.read(key, start, start + sum(buffer.nbytes for buffer in buffers)))
        for buffer in buffers:
            buffer[:] = data[: buffer.nbytes]
            data = data[buffer.nbytes :]

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield all bytes of an object, in order; from web servers by one request, since some ignore ranges."""
        if not self._is_web:
            size = self.size(key)
            if size is None:
                raise error("UCP-E-MISSING", MISSING, at=key)
            for start in range(0, size, BLOCK_BYTES):
                yield self.read(key, start, min(start + BLOCK_BYTES, size))
            return
        yield from streamed(self._filesystem, self._full(key), BLOCK_BYTES, key)

    def mapped(self, key: str, start: int, stop: int) -> memoryview:
        """Refuse: objects of a remote store are not mapped."""
        del start, stop
        raise error("UCP-E-STORE", "a remote object cannot be mapped; read it", at=key)

    def mapped_together(self, parts: Sequence[StoredRange]) -> None:
        """Return none: nothing of a remote store is mapped."""
        del parts

    def glimpse(self, key: str, start: int, stop: int) -> AbstractContextManager[None]:
        """Return none: objects of a remote store are read."""
        del key, start, stop
        return nullcontext()

    @contextmanager
    def sharable(self, key: str) -> Iterator[ListedObject]:
        """Provide an object that another checkpoint may have as well, as the first listing has shown it."""
        with translated(self._url), self._listing:
            if self._listed is None:
                self._listed = listed(self, self._filesystem, self._path)
        found = self._listed.get(key)
        if found is None:
            raise error("UCP-E-MISSING", MISSING, at=key)
        yield found

    def keys(self) -> Iterator[str]:
        """Yield all keys below the URL."""
        with translated(self._url):
            self._filesystem.invalidate_cache()
            base = self._filesystem._strip_protocol(self._path).rstrip("/") + "/"
            found = self._filesystem.find(self._path) if self._filesystem.exists(self._path) else []
        for path in found:
            yield path.removeprefix(base)

    def lengths(self) -> Iterator[tuple[str, int | None]]:
        """Yield all keys below the URL with the lengths of their objects, by one listing."""
        with translated(self._url), self._turn:
            self._filesystem.invalidate_cache()
            base = self._filesystem._strip_protocol(self._path).rstrip("/") + "/"
            try:
                found = self._filesystem.find(self._path, detail=True)
            except FileNotFoundError:
                found = {}
        for path, facts in found.items():
            size = facts.get("size")
            yield path.removeprefix(base), None if size is None else int(size)
