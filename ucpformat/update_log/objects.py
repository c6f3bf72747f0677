"""The objects of a log, to be read: of an object store whole, several at once, ahead of whoever needs them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ucpformat.errors import UcpError
from ucpformat.storage.stores.urls import open_store
from ucpformat.storage.workers import ForkedExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from concurrent.futures import Future

    from ucpformat.storage.stores.store import Objects

__all__ = ["LogObjects"]

_T = TypeVar("_T")

_HELD_BYTES: Final = 1 << 26
"""What is fetched ahead together. An object that is larger is read in its parts when they are needed."""


class _Fetched(NamedTuple):
    """The first bytes of an object, in parts as long as a call is at best."""

    nbytes: int
    parts: list[Future[bytes]]


class LogObjects:
    """What lies at the path or URL of a log. Methods do, and raise, as those of `Objects`.

    A directory is asked each time. An object store answers late: one listing says how long its objects are, and
    `ahead` fetches them. Safe to use from several threads.
    """

    def __init__(self, url: str) -> None:
        self._store: Objects = open_store(url)
        self._at_once = self._store.calls.at_once or 0
        self._window = self._store.calls.window
        self._lengths: dict[str, int] = {}
        self._fetched: dict[str, _Fetched] = {}
        self._held = 0
        self._lock = threading.Lock()
        self._executor = ForkedExecutor(max(1, self._at_once), name="ucp-log-objects")

    @property
    def is_remote(self) -> bool:
        """Whether each call waits for an answer, so that many are to be made at once."""
        return self._at_once > 0

    def close(self) -> None:
        """Release threads and file handles."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    def keys(self) -> Iterator[str]:
        """Yield all keys."""
        if not self.is_remote:
            return self._store.keys()
        found = dict(self._store.lengths())
        self._lengths = {key: size for key, size in found.items() if size is not None}
        return iter([*found])

    def size(self, key: str) -> int | None:
        """Return the length of an object, None if there is none; one that was listed is as long as it was."""
        known = self._lengths.get(key)
        return self._store.size(key) if known is None else known

    def has(self, key: str) -> bool:
        """Return whether there is an object, whatever a listing says: by one request."""
        return self._store.head(key, 1) is not None

    def document(self, key: str, limit: int) -> bytes | None:
        """Return at most ``limit + 1`` bytes of an object, by one call where that can be; None if there is none."""
        return self._store.head(key, limit + 1)

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of an object, from what was fetched ahead where that has them."""
        fetched = self._fetched.get(key)
        if fetched is not None and stop <= fetched.nbytes:
            first, last = start // self._window, max(start, stop - 1) // self._window
            data = b"".join(part.result() for part in fetched.parts[first : last + 1])
            offset = start - first * self._window
            return data[offset : offset + stop - start]
        if not self.is_remote or stop - start <= self._window:
            return self._store.read(key, start, stop)
        return b"".join([part.result() for part in self._parts(key, start, stop)])

    def ahead(self, keys: Sequence[str], *, most: int = _HELD_BYTES) -> Generator[str]:
        """Yield keys of objects in turn, each when it is about to be read, while the next ones are fetched.

        Of each the first ``most`` bytes are fetched, of which more is asked for when it is read.
        """
        if not self.is_remote:
            yield from keys
            return
        mine: set[str] = set()
        upcoming = 0
        try:
            for number, key in enumerate(keys):
                upcoming = max(upcoming, number)
                while upcoming < len(keys) and self._fetch(keys[upcoming], most, is_next=upcoming == number):
                    mine.add(keys[upcoming])
                    upcoming += 1
                yield key
                self.drop(key)
                mine.discard(key)
        finally:
            for key in mine:
                self.drop(key)

    def has_not_answered(self, problem: UcpError) -> bool:
        """Return whether a problem says that an object store has not answered: nothing is known of what lies there."""
        return self.is_remote and problem.code == "UCP-E-STORE"

    def again_if_harmed(self, key: str, read: Callable[[], _T]) -> _T:
        """Return what ``read`` makes of an object; once more where that fails, or is None, of what a store has sent.

        It may be harmed on its way, where nobody looks, and is then asked for anew.
        """
        try:
            found = read()
            if found is not None or not self.is_remote:
                return found
        except UcpError as problem:
            if not self.is_remote or self.has_not_answered(problem):
                raise
        self.drop(key)
        return read()

    def drop(self, key: str) -> None:
        """Let go of what was fetched of an object: it is asked for anew."""
        with self._lock:
            fetched = self._fetched.pop(key, None)
            if fetched is not None:
                self._held -= fetched.nbytes
        for part in () if fetched is None else fetched.parts:
            part.cancel()

    def _fetch(self, key: str, most: int, *, is_next: bool) -> bool:
        """Begin to fetch an object, unless enough is held; return whether nothing more is to be done about it now."""
        nbytes = min(self._lengths.get(key, 0), most)
        if nbytes == 0:
            return True
        with self._lock:
            if key in self._fetched:
                return True
            if self._held + nbytes > _HELD_BYTES and not is_next:
                return False
            self._held += nbytes
            self._fetched[key] = _Fetched(nbytes, self._parts(key, 0, nbytes))
        return True

    def _parts(self, key: str, start: int, stop: int) -> list[Future[bytes]]:
        return [
            self._executor.submit(self._store.read, key, begin, min(begin + self._window, stop))
            for begin in range(start, stop, self._window)
        ]
