"""What a checkpoint needs of a place to lie in (SPEC section 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from ucpformat.model.root import Storage
    from ucpformat.storage.stores.sharing import Sharable

__all__ = [
    "PREFIXES",
    "Calls",
    "Durability",
    "Look",
    "Objects",
    "PackFile",
    "PackFullError",
    "Store",
    "StoredRange",
]

Durability = Literal["fsync", "none"]
"""``none`` leaves what is written to the page cache: for benchmarks and tests, never for training."""

Look = Callable[[memoryview], None]

PREFIXES: Final = ("atoms/", "blobs/", "index/", "packs/")
"""Where everything but the root document lies."""


class StoredRange(NamedTuple):
    """Bytes ``[start, stop)`` of an object; without a key, so many zeros, which are not stored."""

    key: str | None
    start: int
    stop: int


class PackFullError(Exception):
    """A pack takes no more: begin another. What was appended to it is kept."""


class PackFile(Protocol):
    """A pack under construction. Safe to use from several threads.

    `ChunkWriter` gets it from `Store.create_pack`, calls `append`, or `reserve` and `write_at`, any number of times,
    and then `close`; after an error it calls `abort`. All but `abort` raise `StoreError` where the medium fails;
    `append` raises `PackFullError` for what belongs into another pack.
    """

    def append(
        self, buffers: Sequence[memoryview], alignment: int, look: Look | None = None, *, keep: bool = False
    ) -> int:
        """Write the concatenated buffers at the next multiple of ``alignment`` and return that offset.

        ``look`` is given every byte of each buffer, in order, before it is written: in pieces that begin and end at
        multiples of 1 MiB of their buffer, or with it. ``keep``: the buffers do not change before `settle` returns,
        so that their end may wait for what comes next, and be written with it.

        Raises:
            PackFullError: nothing was written or looked at; a pack that is empty takes whatever it is given.
        """
        ...

    def reserve(self, lengths: Sequence[int], alignment: int) -> list[int]:
        """Keep room for so many bytes each at the next multiple of ``alignment``, without gaps; return the offsets.

        Whoever reserves room fills all of it by `write_at`. Not for stores without `Store.packs_have_rooms`.
        """
        ...

    def write_at(
        self, offset: int, buffers: Sequence[memoryview], look: Look | None = None, *, keep: bool = False
    ) -> None:
        """Write the concatenated buffers into room that was reserved; ``look`` and ``keep`` as with `append`."""
        ...

    def settle(self) -> None:
        """Write what waits for more."""
        ...

    def close(self) -> int:
        """Finish the pack and return its length in bytes."""
        ...

    def abort(self) -> None:
        """Give the pack up, unless it is finished: what was written need not be kept."""
        ...


class Calls(NamedTuple):
    """How a store is read at its best.

    ``at_once``: how many calls keep it busy, where that is more than cores do. ``window``: bytes of a call, a multiple
    of a checksum block, of which some are thrown away. ``gap``: what lies between two runs, in bytes, that is sooner
    read and thrown away than left out by another call.
    """

    at_once: int | None
    window: int
    gap: int


class Objects(Protocol):
    """Keys to byte sequences, to be read. Implementations are safe to use from several threads.

    Readers call the methods at any time, and `close` at the end.

    Every method raises `StoreError` (``UCP-E-STORE``) where the medium fails; local stores also raise
    ``UCP-E-LINK`` for anything that is not a plain file in plain directories.
    """

    calls: Calls
    glimpse_bytes: int
    """How much is looked at by one `glimpse` at best; 0 where nothing is."""

    @property
    def url(self) -> str:
        """Where the store is, for messages."""
        ...

    def size(self, key: str) -> int | None:
        """Return length of an object in bytes, or None if there is none."""
        ...

    def head(self, key: str, most: int) -> bytes | None:
        """Return the first ``most`` bytes of an object, or all if it has fewer, by one call; None if there is none."""
        ...

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of an object; ``UCP-E-MISSING`` or ``UCP-E-LENGTH`` if they are not there."""
        ...

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers, one after another, from byte ``start`` on; errors as `read`."""
        ...

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield all bytes of an object, in order, a piece of some MiB at a time; errors as `read`."""
        ...

    def mapped(self, key: str, start: int, stop: int) -> memoryview:
        """Return bytes ``[start, stop)`` of an object as read-only mapped memory; ``UCP-E-STORE`` where none can be."""
        ...

    def mapped_together(self, parts: Sequence[StoredRange]) -> memoryview | None:
        """Return the parts one behind the other, as `mapped`; None where the system cannot put them there.

        Bytes of a part without a key are zero.
        """
        ...

    def glimpse(self, key: str, start: int, stop: int) -> AbstractContextManager[memoryview | None]:
        """Return bytes ``[start, stop)`` of an object, mapped until the context is left; None: they are to be read.

        None is also the answer where anything is wrong with them: a read says what.
        """
        ...

    def keys(self) -> Iterator[str]:
        """Yield all keys, in no order; directories are not keys."""
        ...

    def lengths(self) -> Iterator[tuple[str, int | None]]:
        """Yield all keys with the lengths of their objects in bytes, None where a listing does not say it."""
        ...

    def sharable(self, key: str) -> AbstractContextManager[Sharable]:
        """Provide an object of a committed checkpoint that another one may share; ``UCP-E-MISSING`` as `read`."""
        ...

    def close(self) -> None:
        """Release file handles."""
        ...


class Store(Objects, Protocol):
    """Keys to byte sequences, to be read and written; raises as `Objects`.

    An attempt to write begins with one `prepare` (or `resume`) by its first process; its other processes `join`. All of
    them `create` objects and packs, and `flush`; then the first one calls `publish`, which ends the attempt. A process
    that fails calls `discard`, or `withdraw` if others still use its objects. `close` comes last in any case.
    """

    writers_wait: bool
    """Whether who writes waits until the medium has it."""
    packs_at_once: int
    """How many packs a writer keeps busy at its best."""
    packs_have_rooms: bool
    """Whether the bytes of a pack may be written in any order (`PackFile.reserve`)."""
    upload_bytes: int
    """Memory of a pack under way, in addition to its writer's."""

    def prepare(self, storage: Storage = "packed") -> None:
        """Begin an attempt at a new checkpoint; what one that was not committed has left is not in its way.

        Raises:
            StoreError: ``UCP-E-EXISTS`` if a root document, or anything foreign, is there, or another attempt that
                may be alive; ``UCP-E-STORE`` where the medium cannot keep two writers from both committing.
        """
        ...

    def resume(self, storage: Storage = "packed") -> None:
        """Do as `prepare`, to go on with what an attempt has left; that one cannot commit any more.

        Raises:
            StoreError: as `prepare`.
        """
        ...

    def remove(self, key: str) -> None:
        """Remove an object of an attempt that was not committed, and what directories become empty.

        Silent where it is gone.
        """
        ...

    def clear(self, keys: Iterable[str]) -> None:
        """Remove objects that the attempt which is gone on with has left, as soon as it cannot commit any more.

        That may be behind the commit of this one.
        """
        ...

    def join(self) -> None:
        """Take part in an attempt whose place another process has prepared.

        Raises:
            StoreError: ``UCP-E-STORE`` where this process does not see that place.
        """
        ...

    def create(self, key: str, buffers: Sequence[memoryview]) -> None:
        """Write a whole new object, exclusively where the medium can (``UCP-E-EXISTS``)."""
        ...

    def replace(self, key: str, buffers: Sequence[memoryview]) -> None:
        """Write a whole object, whatever lies there or is being written there: it appears whole.

        It is not `discard`'s to remove: somebody else may go by it.
        """
        ...

    def create_pack(self, key: str) -> PackFile:
        """Begin a new pack."""
        ...

    def require_base(self, base: Objects) -> None:
        """Refuse a store from which this one shares nothing; before `prepare`, or after it.

        Raises:
            StoreError: ``UCP-E-STORE``, with what to do instead.
        """
        ...

    def share(self, key: str, source: Sharable) -> bool:
        """Give this checkpoint an object of another one under this key, without sending its bytes.

        False where that cannot be: the bytes are to be written. Otherwise the object is there when `flush` has
        returned, which fails if it is not. Several that write for one attempt may share the same.
        """
        ...

    def copy(self, key: str, source: Objects) -> int | None:
        """Give this checkpoint the object that another one has under the same key, without a byte being sent.

        Returns its length; None where that cannot be: the bytes are to be written. For attempts that are alone at their
        place, since others have these keys as well (`prepare` of storage plain).

        Raises:
            StoreError: ``UCP-E-NOT-FOUND`` where it was removed or replaced meanwhile.
        """
        ...

    def flush(self, reached: Iterable[str] = (), root: bytes | None = None) -> None:
        """Make every object created so far durable, directories included (SPEC UCP-W-002).

        ``reached`` are objects that others have created for this attempt, and that are about to be committed.
        ``root`` is what is to be published next: a store that can makes it ready meanwhile.
        """
        ...

    def publish(self, data: bytes) -> None:
        """Create the root document atomically, exclusively and durably (SPEC UCP-W-003, UCP-W-004)."""
        ...

    def withdraw(self) -> bool:
        """Give up the right to commit; return whether certainly nothing is committed here, nor will be by this attempt.

        Others may then remove what they wrote for it. False is also the answer where this cannot be known.
        """
        ...

    def discard(self) -> bool:
        """Withdraw, and remove the objects that were created through this store if `withdraw` returns True.

        Returns what `withdraw` does. Silent about objects that are gone, or stay.
        """
        ...
