"""Any fsspec file system: object stores, memory, HTTP for reading; and attempts to write there (SPEC section 8)."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ucpformat.errors import UcpError, error
from ucpformat.model.names import CLAIM_KEY
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.stores.remote.access import (
    has_directories,
    translated,
    writing,
)
from ucpformat.storage.stores.remote.conditional_put import ConditionalPuts
from ucpformat.storage.stores.remote.copies import (
    BackgroundCopies,
    ListedObject,
    can_copy,
    is_same_service,
)
from ucpformat.storage.stores.remote.objects import BLOCK_BYTES, RemoteObjects
from ucpformat.storage.stores.remote.packs import (
    MultipartPackFile,
    RemotePackFile,
    StreamedPackFile,
    UploadSlots,
)
from ucpformat.storage.stores.remote.repetition import repeated
from ucpformat.storage.stores.remote.s3_uploads import S3Uploads
from ucpformat.storage.stores.store import PREFIXES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ucpformat.model.root import Storage
    from ucpformat.storage.stores.sharing import Sharable
    from ucpformat.storage.stores.store import Objects

__all__ = ["NO_COPIES", "RemoteStore"]

_SILENCE: Final = 12 * 3600.0
"""Seconds. An attempt of which nothing was seen for a day is dead to others; this one gives up long before."""

NO_COPIES: Final = (
    "an increment shares what its base has by copies that the store makes: save to the store of the base, by the same "
    "protocol and options, and to one that makes copies; or save without base="
)

_STREAMS: Final = 4
"""Packs under way at once, each a stream of blocks: four of them hold, and copy, 128 MiB at most."""


class RemoteStore(RemoteObjects):
    """A checkpoint under an fsspec URL.

    Objects become visible whole when they are written, and durable with that, as object stores promise.
    """

    writers_wait = True
    packs_have_rooms = False

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._created: dict[str, None] = {}
        self._debris: list[str] = []
        self._name = uuid.uuid4().hex
        self._has_claim = self._was_silent = self._is_withdrawn = False
        self._offered = self._is_refused = self._refuses_copies = False
        self._seen = time.time()
        self._directories: set[str] = set()
        with translated(url):
            self._has_directories = has_directories(self._filesystem)
            self._uploads = S3Uploads.by(self._filesystem)
            self._puts = ConditionalPuts(self._filesystem, self._head)
        self._slots = None if self._uploads is None else UploadSlots(self._uploads.at_once)
        self._copies = BackgroundCopies(self._filesystem, self._uploads, self._slots)
        # Streams wait one for another, parts do not.
        if self._uploads is None:
            self.packs_at_once, self.upload_bytes = _STREAMS, 2 * BLOCK_BYTES
        else:
            # What is gathered, beside the parts that are under way.
            self.packs_at_once, self.upload_bytes = 1, (self._uploads.at_once + 1) * self._uploads.part_bytes

    def prepare(self, storage: Storage = "packed") -> None:
        """Begin an attempt. What others have left, or are writing, is not touched before this one has committed."""
        debris = self._begin()
        if storage == "plain":
            self._require_empty(debris)
            with writing(self._url):
                self._puts.put(self._full(CLAIM_KEY), self._name.encode())
            self._has_claim = True
            try:
                # Another attempt may have committed, and given the claim back, since somebody looked.
                self._require_empty([ROOT_KEY, *(key for key in self.keys() if key != CLAIM_KEY)])
            except BaseException:
                self._remove([CLAIM_KEY])
                raise
        self._debris = debris

    def _require_empty(self, keys: Iterable[str]) -> None:
        """Refuse a place in which any of these lies; a listing may still show what was removed."""
        left = next((key for key in keys if self.size(key) is not None), None)
        if left is not None:
            raise error(
                "UCP-E-EXISTS",
                f"another attempt is at work here, or has left {left!r}; storage plain, and a copy, need a place of "
                "their own: remove what lies here, or choose another URL",
                at=self._url,
            )

    def resume(self, storage: Storage = "packed") -> None:
        """Begin an attempt that goes on with what one has left, of which the caller knows that it is dead."""
        self._begin()
        if storage == "plain":
            self.replace(CLAIM_KEY, [memoryview(self._name.encode())])
            self._has_claim = True

    def _begin(self) -> list[str]:
        """Return the keys of what lies there, which is no checkpoint and nothing foreign."""
        keys = list(self.keys())
        if ROOT_KEY in keys:
            message = (
                "a committed checkpoint is there and is never overwritten; choose another URL or remove it"
            )
            raise error("UCP-E-EXISTS", message, at=self._url)
        foreign = [key for key in keys if not key.startswith(PREFIXES)]
        if foreign:
            message = f"{foreign[0]!r} lies there, which is no part of a checkpoint"
            raise error("UCP-E-EXISTS", message, at=self._url)
        self.require_exclusive()
        self._seen = time.time()
        return keys

    def remove(self, key: str) -> None:
        """Remove an object."""
        with translated(key), suppress(FileNotFoundError):
            self._filesystem.rm_file(self._full(key))

    def clear(self, keys: Iterable[str]) -> None:
        """Remove what an earlier attempt has left: at once where its keys are needed, else behind the commit."""
        if self._has_claim:
            for key in keys:
                if key != CLAIM_KEY:
                    self.remove(key)
        else:
            self._debris.extend(keys)

    def join(self) -> None:
        """Do nothing: object stores have no directories that could be moved away."""

    def _sign_of_life(self) -> None:
        """Note that something was written; after a long silence others may think this attempt dead."""
        now = time.time()
        self._was_silent = self._was_silent or now - self._seen > _SILENCE
        self._seen = now

    def require_exclusive(self) -> None:
        """Find out whether the medium creates objects exclusively; once for each bucket.

        Raises:
            StoreError: ``UCP-E-STORE`` where it does not.
        """
        with writing(self._url):
            self._puts.require(self._full(f"index/{uuid.uuid4().hex}.probe"), self._url)

    def create(self, key: str, buffers: Sequence[memoryview]) -> None:
        """Write a whole new object, exclusively."""
        with writing(key):
            self._make_directory(key)
            is_new = key not in self._created
            self._created[key] = None
            try:
                self._puts.put(self._full(key), b"".join(buffers))
            except FileExistsError:
                if is_new:
                    del self._created[key]
                raise
            self._sign_of_life()

    def create_apart(self, key: str, buffers: Sequence[memoryview]) -> None:
        """Write a whole new object, exclusively, that is part of no attempt: `discard` leaves it, nothing is noted."""
        with writing(key):
            self._make_directory(key)
            self._puts.put(self._full(key), b"".join(buffers))

    def remove_all(self, keys: Iterable[str]) -> None:
        """Remove objects, many by one request where the medium can; silent where some are gone."""
        paths = [self._full(key) for key in keys]
        with translated(self.url):
            try:
                if paths:
                    self._filesystem.rm(paths)
            except FileNotFoundError:
                for path in paths:
                    with suppress(FileNotFoundError):
                        self._filesystem.rm_file(path)

    def replace(self, key: str, buffers: Sequence[memoryview]) -> None:
        """Write a whole object, whatever lies there; a medium of files may show half of it meanwhile."""
        with writing(key):
            self._make_directory(key)
            data = b"".join(buffers)
            repeated(lambda: self._filesystem.pipe_file(self._full(key), data), key)

    def _make_directory(self, key: str) -> None:
        # File-like media (SFTP, HDFS, memory) have them.
        directory = self._full(key).rpartition("/")[0]
        if self._has_directories and directory not in self._directories:
            self._filesystem.makedirs(directory, exist_ok=True)
            self._directories.add(directory)

    def create_pack(self, key: str) -> RemotePackFile:
        """Begin a new pack: an upload of several parts at once where the medium is S3, else one stream."""
        with writing(key):
            self._make_directory(key)
            if self._uploads is not None and self._slots is not None:
                pack: RemotePackFile = MultipartPackFile(
                    key, self._full(key), self._uploads, self._slots, writing
                )
            else:
                # Media other than object stores know the size of their blocks.
                block = {} if self._has_directories else {"block_size": BLOCK_BYTES}
                stream = self._filesystem.open(self._full(key), "wb", **block)
                pack = StreamedPackFile(key, stream, writing)
            self._created[key] = None
            self._sign_of_life()
            return pack

    def require_base(self, base: Objects) -> None:
        """Refuse a base that is not in the same store, or any where the store makes no copies."""
        if not self._may_copy_from(base):
            raise error("UCP-E-STORE", NO_COPIES, at=base.url)

    def share(self, key: str, source: Sharable) -> bool:
        """Have the store copy an object to this key, in the background: `flush` waits for it."""
        if not isinstance(source, ListedObject):
            return False
        with writing(key):
            self._make_directory(key)
            self._created[key] = None
            self._copies.begin(source, self._full(key))
            self._sign_of_life()
        return True

    def copy(self, key: str, source: Objects) -> int | None:
        """Have the store copy an object; once it has refused, it is asked no more."""
        if self._refuses_copies or not self._may_copy_from(source):
            return None
        try:
            with source.sharable(key) as found:
                pass
        except UcpError as problem:
            if problem.code != "UCP-E-MISSING":
                raise
            return None  # a listing may be late to show it: a read says whether it is there
        if not isinstance(found, ListedObject):
            return None
        with writing(key):
            self._make_directory(key)
            self._created[key] = None
            self._refuses_copies = not self._copies.make(found, self._full(key))
            self._sign_of_life()
            return None if self._refuses_copies else found.nbytes

    def _may_copy_from(self, source: Objects) -> bool:
        return (
            isinstance(source, RemoteObjects)
            and is_same_service(self._filesystem, source._filesystem)
            and can_copy(self._filesystem)
        )

    def flush(self, reached: Iterable[str] = (), root: bytes | None = None) -> None:
        """Wait for copies, and check that no object was removed, which are durable when their write returns.

        What is reached is no debris, whatever an attempt that goes on with another one took it for at first.
        """
        del root  # one request publishes it
        self._copies.finish()
        reached = set(reached)
        self._debris = [key for key in self._debris if key not in reached]
        unseen = {*self._created, *reached}.difference(self.keys())
        # A listing may be late to show what was put last.
        missing = [key for key in sorted(unseen) if self.size(key) is None]
        if missing:
            raise error(
                "UCP-E-MISSING", "somebody else has cleared this place; choose another URL", at=missing[0]
            )
        self._sign_of_life()

    def publish(self, data: bytes) -> None:
        """Create the root document, under the condition that there is none, and then remove debris."""
        self._sign_of_life()
        if self._is_withdrawn:
            raise error("UCP-E-STORE", "this attempt was given up; save again", at=self._url)
        if self._was_silent:
            message = "nothing was written for 12 hours, and others may think this attempt dead; save again"
            raise error("UCP-E-STORE", message, at=self._url)
        with writing(ROOT_KEY):
            # A request that fails may have been done all the same, or be done later.
            self._offered = True
            try:
                self._puts.put(self._full(ROOT_KEY), data)
            except FileExistsError:
                self._is_refused = True
                raise
        self._clear_debris()

    def _clear_debris(self) -> None:
        """Remove what other attempts have left here, which can commit no more: there is a root document."""
        self._remove(key for key in self._debris if key not in self._created)
        if self._has_claim:
            self._remove([CLAIM_KEY])
        if self._uploads is not None:
            # Parts of objects that never were, from attempts that ended with their processes.
            self._uploads.abort_below(self._path)

    def withdraw(self) -> bool:
        """Give up the right to commit."""
        if self._offered:
            # Of two attempts with keys of their own, the one that was refused has no root document.
            return self._is_refused and not self._has_claim
        self._is_withdrawn = True
        if not self._has_claim:
            return True
        try:
            return self.size(ROOT_KEY) is None
        except UcpError:
            return False

    def discard(self) -> bool:
        """Remove the objects created through this store, unless a root document may reach them."""
        is_answered = self._copies.stop()
        created, self._created = self._created, {}
        if not self.withdraw():
            return False
        # Where a removal or copy is not answered it may be done later: nobody else may have the same keys then.
        if self._remove(created) and is_answered and self._has_claim:
            self._remove([CLAIM_KEY])
        return True

    def _remove(self, keys: Iterable[str]) -> bool:
        """Remove objects; whether all removals were answered."""
        for key in keys:
            if self._has_claim:
                self._sign_of_life()
                if self._was_silent:  # somebody else may have these keys by now
                    return False
            try:
                with suppress(FileNotFoundError):
                    self._filesystem.rm_file(self._full(key))
            except Exception:
                # The client has repeated it for a while; of a store that is gone nothing else is asked.
                return False
        return True

    def close(self) -> None:
        """Release threads."""
        self._copies.stop()
        self._copies.close()
        if self._slots is not None:
            self._slots.close()
