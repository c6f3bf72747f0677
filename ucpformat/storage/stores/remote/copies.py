"""Copies that a store makes of its own objects, of which no byte is sent (SPEC section 8.5).

fsspec has `cp_file` for them, which copies whatever has the path by then. Where the client knows a condition on what is
copied, it is given; and in any case somebody looks afterwards whether the object is still the one that was listed.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fsspec.asyn import AsyncFileSystem, sync
from fsspec.spec import AbstractFileSystem

from ucpformat.errors import UcpError, error
from ucpformat.storage.stores.remote.access import protocols_of, translated
from ucpformat.storage.stores.remote.repetition import answer_code, repeated
from ucpformat.storage.workers import ForkedExecutor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ucpformat.storage.stores.remote.objects import RemoteObjects
    from ucpformat.storage.stores.remote.packs import UploadSlots
    from ucpformat.storage.stores.remote.s3_uploads import S3Uploads

__all__ = ["BackgroundCopies", "ListedObject", "can_copy", "is_same_service", "listed"]

_AT_ONCE: Final = 8
_COMPARED_BYTES: Final = 1 << 24
"""What is fetched at a time to be compared."""
_MARKS: Final = ("generation", "VersionId", "ETag", "etag", "created", "LastModified", "mtime")
"""What implementations of fsspec call what changes with an object, the surest first."""
_GOOGLE: Final = frozenset(("gs", "gcs"))
_AZURE: Final = frozenset(("abfs", "abfss", "az"))
_PENDING_SECONDS: Final = 0.5
_BASE_CHANGED: Final = (
    "the base was removed or replaced while it was shared; save again, with another or none"
)
_SOURCE_CHANGED: Final = "this was removed or replaced while it was copied; copy again"


class ListedObject(NamedTuple):
    """An object as a listing has shown it, in the place of its checkpoint."""

    place: RemoteObjects
    key: str
    path: str
    nbytes: int
    mark: str

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from ``start`` on; raises `UcpError` where they are not there."""
        return self.place.read(self.key, start, start + nbytes)

    def has(self, data: memoryview, start: int) -> bool:
        """Say whether the bytes from ``start`` on are ``data``; raises as `read`."""
        for low in range(0, data.nbytes, _COMPARED_BYTES):
            wanted = data[low : low + _COMPARED_BYTES]
            if self.read(start + low, wanted.nbytes) != wanted:
                return False
        return True


def listed(place: RemoteObjects, filesystem: Any, path: str) -> dict[str, ListedObject]:
    """Return all objects below a path, by key, with what tells them from others: one listing."""
    filesystem.invalidate_cache()
    base = filesystem._strip_protocol(path).rstrip("/") + "/"
    found: Mapping[str, Mapping[str, Any]] = filesystem.find(path, detail=True)
    return {
        name.removeprefix(base): ListedObject(
            place, name.removeprefix(base), name, int(facts["size"]), _mark_of(facts)
        )
        for name, facts in found.items()
    }


def _mark_of(facts: Mapping[str, Any]) -> str:
    for name in _MARKS:
        value = facts.get(name)
        if value is not None:
            return str(value.timestamp() if isinstance(value, datetime) else value)
    return ""


def can_copy(filesystem: Any) -> bool:
    """Return whether an implementation of fsspec has copies within its store at all."""
    kind = type(filesystem)
    if isinstance(filesystem, AsyncFileSystem):
        return kind._cp_file is not AsyncFileSystem._cp_file
    return getattr(kind, "cp_file", AbstractFileSystem.cp_file) is not AbstractFileSystem.cp_file


def is_same_service(one: Any, other: Any) -> bool:
    """Return whether two file systems reach the same service in the same way; fsspec makes one for each thread."""
    return type(one) is type(other) and all(
        getattr(one, name, None) == getattr(other, name, None) for name in ("storage_args", "storage_options")
    )


class BackgroundCopies:
    """Copies to one place, several under way at once: begun as something is found to be shared, and awaited."""

    def __init__(self, filesystem: Any, uploads: S3Uploads | None, slots: UploadSlots | None) -> None:
        self._filesystem = filesystem
        self._uploads = uploads
        self._slots = slots
        self._executor = ForkedExecutor(_AT_ONCE, name="ucp-copies")
        self._lock = threading.Lock()
        self._begun: list[Future[None]] = []
        self._is_uncertain = False

    def begin(self, source: ListedObject, path: str) -> None:
        """Have an object copied to a path; `finish` tells what came of it."""
        with self._lock:
            self._begun.append(self._executor.submit(self._copy, source, path))

    def finish(self) -> None:
        """Wait until all copies are there.

        Raises:
            StoreError: ``UCP-E-NOT-FOUND`` where the base was removed or replaced meanwhile; ``UCP-E-STORE``.
        """
        with self._lock:
            begun, self._begun = self._begun, []
        wait(begun)
        for copy in begun:
            copy.result()

    def stop(self) -> bool:
        """Begin no more, and wait for those under way; whether all that were made have been answered."""
        with self._lock:
            begun, self._begun = self._begun, []
        wait([copy for copy in begun if not copy.cancel()])
        return not self._is_uncertain

    def close(self) -> None:
        """Release threads."""
        self._executor.shutdown()

    def make(self, source: ListedObject, path: str) -> bool:
        """Have an object copied to a path, and wait until it is there; False where the store refuses.

        Raises:
            StoreError: ``UCP-E-NOT-FOUND`` where the source was removed or replaced meanwhile; ``UCP-E-STORE``.
        """
        try:
            self._copy(source, path, _SOURCE_CHANGED)
        except UcpError as problem:
            if problem.code == "UCP-E-STORE" and _is_refusal(problem.__cause__):
                return False
            raise
        return True

    def _copy(self, source: ListedObject, path: str, changed: str = _BASE_CHANGED) -> None:
        with translated(source.key):
            try:
                with self._noted():
                    self._have_copied(source, path)
            except Exception:
                # The source is gone: that says more than what the store has made of it.
                with suppress(OSError):
                    self._require_same(source, changed)
                raise
            self._require_same(source, changed)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Note a request of which nobody knows whether it was done, or will be."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as reason:
            self._is_uncertain = self._is_uncertain or not _is_refusal(reason)
            raise

    def _require_same(self, source: ListedObject, changed: str) -> None:
        try:
            self._filesystem.invalidate_cache(self._filesystem._parent(source.path))
            facts = self._filesystem.info(source.path)
        except FileNotFoundError:
            facts = {}
        if (facts.get("size"), _mark_of(facts)) != (source.nbytes, source.mark):
            raise error("UCP-E-NOT-FOUND", changed, at=source.place.url)

    def _have_copied(self, source: ListedObject, path: str) -> None:
        protocols = protocols_of(self._filesystem)
        if self._uploads is not None and self._slots is not None:
            self._uploads.copy(source.path, source.mark, source.nbytes, path, self._slots)
        elif protocols & _GOOGLE and hasattr(self._filesystem, "call"):
            _copy_in_google(self._filesystem, source, path)
        elif protocols & _AZURE and hasattr(self._filesystem, "service_client"):
            sync(self._filesystem.loop, _copy_in_azure, self._filesystem, source, path)
        else:
            repeated(lambda: self._filesystem.cp_file(source.path, path), path)


def _is_refusal(reason: BaseException | None) -> bool:
    """Return whether a server has answered that it will not: by a code of S3, or a status of HTTP."""
    status = getattr(reason, "status_code", None) or getattr(reason, "code", None)
    return bool(answer_code(reason)) or (type(status) is int and 400 <= status < 500)


def _copy_in_google(filesystem: Any, source: ListedObject, path: str) -> None:
    """Do as `gcsfs.GCSFileSystem.cp_file` (2026.10.1), of one generation of an object and no other."""
    (bucket, key, _), (to, name, _) = filesystem.split_path(source.path), filesystem.split_path(path)
    asked: dict[str, Any] = {"sourceGeneration": source.mark, "ifSourceGenerationMatch": source.mark}
    while True:
        answer = filesystem.call(
            "POST",
            "b/{}/o/{}/rewriteTo/b/{}/o/{}",
            *(bucket, key, to, name),
            headers={"Content-Type": "application/json"},
            json_out=True,
            **asked,
        )
        if answer["done"]:
            return
        asked["rewriteToken"] = answer["rewriteToken"]


async def _copy_in_azure(filesystem: Any, source: ListedObject, path: str) -> None:
    """Do as `adlfs.AzureBlobFileSystem.cp_file` (2026.8.0), under a condition, and wait until all is there."""
    from azure.core import MatchConditions
    from azure.core.exceptions import ResourceNotFoundError

    (container, blob, _), (to, name, _) = filesystem.split_path(source.path), filesystem.split_path(path)
    client = filesystem.service_client
    target = client.get_blob_client(to, name)
    try:
        answer = await target.start_copy_from_url(
            client.get_blob_client(container, blob).url,
            source_etag=source.mark,
            source_match_condition=MatchConditions.IfNotModified,
        )
    except ResourceNotFoundError as reason:
        raise FileNotFoundError(source.path) from reason
    status = answer["copy_status"]
    while status == "pending":
        await asyncio.sleep(_PENDING_SECONDS)
        status = (await target.get_blob_properties()).copy.status
    if status != "success":
        raise OSError(f"the copy of {source.path} has ended: {status}")
