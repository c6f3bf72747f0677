"""Multipart uploads to S3 by s3fs: parts in any order, and an object only when all are there (SPEC section 8).

s3fs 2026.9.0 sends the parts of a file that is open for writing one after another (``S3File._upload_chunk``, marked
"TODO: concurrent here"); its ``pipe_file`` and ``put_file`` send several at once, of data that are all there already.
Here `S3FileSystem.call_s3` is used, the public call under all of these, which adds what the user has configured
(encryption, who pays) and repeats what may be repeated.
"""

from __future__ import annotations

import errno
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ucpformat.storage.stores.remote.repetition import repeated

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from ucpformat.storage.stores.remote.packs import UploadSlots

__all__ = ["S3Part", "S3Upload", "S3Uploads"]

_AT_ONCE: Final = 8
_PART_CHECKSUM: Final = "ChecksumSHA256"


class S3Part(NamedTuple):
    """A part that has arrived, as the request that completes an upload names it."""

    number: int
    answer: Mapping[str, Any]

    def named(self) -> dict[str, Any]:
        """Return the arguments of a part, with its checksum if the user asked for checksums of parts, as s3fs does."""
        kept = {key: self.answer[key] for key in ("ETag", _PART_CHECKSUM) if key in self.answer}
        return {"PartNumber": self.number, **kept}


class S3Upload(NamedTuple):
    """An upload that is neither completed nor aborted: the path of its object, its identifier, when it was begun."""

    path: str
    identifier: str
    begun: datetime.datetime


_CANNOT_BE_LISTED: Final = frozenset((errno.ENOSYS, errno.EPERM))
"""What s3fs makes of ``NotImplemented`` and ``MethodNotAllowed`` (s3fs/errors.py)."""


class S3Uploads:
    """Multipart uploads by an s3fs file system. Safe to use from several threads.

    ``part_bytes`` times ``most_parts`` is the longest object without larger parts: 78 GiB. S3 takes 10,000 parts from
    5 MiB to 5 GiB, all but the last; all have one size, because Cloudflare R2 wants that.
    """

    part_bytes: int = 1 << 23
    most_parts: int = 10_000
    most_copied: int = 1 << 30
    """Longest copy by one request: S3 takes 5 GiB, in which time a client may give up waiting."""
    copied_bytes: int = 1 << 28
    """Parts of longer ones."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self.at_once = max(1, min(_AT_ONCE, getattr(filesystem, "max_concurrency", None) or _AT_ONCE))

    @classmethod
    def by(cls, filesystem: Any) -> S3Uploads | None:
        """Return None where it is not s3fs itself: a file system around it, such as a cache, has its own writes."""
        kind = type(filesystem)
        protocol = kind.protocol
        protocols = (protocol,) if isinstance(protocol, str) else protocol
        if "s3" in protocols and all(hasattr(kind, name) for name in ("call_s3", "split_path")):
            return cls(filesystem)
        return None

    def _call(self, method: str, path: str, **named: Any) -> Any:
        bucket, key, *_ = self._filesystem.split_path(path)
        return self._filesystem.call_s3(method, Bucket=bucket, Key=key, **named)

    def begin(self, path: str) -> str:
        """Begin an upload; returns its identifier."""
        return str(self._call("create_multipart_upload", path)["UploadId"])

    def send(self, path: str, upload: str, number: int, data: bytes | bytearray) -> S3Part:
        """Send a part, counted from 1."""
        asked = {"UploadId": upload, "PartNumber": number, "Body": data}
        return S3Part(number, repeated(lambda: self._call("upload_part", path, **asked), path))

    def complete(self, path: str, upload: str, parts: Sequence[S3Part], length: int) -> None:
        """Make the object, of ``length`` bytes, of its parts in their order.

        A client repeats a request whose answer was lost, and then the upload is no more.
        """
        named = {"Parts": [part.named() for part in parts]}
        try:
            self._call("complete_multipart_upload", path, UploadId=upload, MultipartUpload=named)
        except FileNotFoundError:
            self._forget(path)
            if self._filesystem.size(path) != length:
                raise
        self._forget(path)

    def copy(self, source: str, mark: str, nbytes: int, path: str, slots: UploadSlots) -> None:
        """Have the store copy an object, of the entity tag ``mark`` and no other, in parts where it is long."""
        bucket, key, *_ = self._filesystem.split_path(source)
        asked: dict[str, Any] = {"CopySource": {"Bucket": bucket, "Key": key}, "CopySourceIfMatch": mark}
        if nbytes <= self.most_copied:
            repeated(lambda: self._call("copy_object", path, **asked), path)
            self._forget(path)
            return
        size = max(self.copied_bytes, -(-nbytes // self.most_parts))
        upload = self.begin(path)
        sent: list[Future[S3Part]] = []
        try:
            for number, start in enumerate(range(0, nbytes, size), 1):
                asked["CopySourceRange"] = f"bytes={start}-{min(start + size, nbytes) - 1}"
                asked.update(UploadId=upload, PartNumber=number)
                sent.append(slots.submit(partial(self._copy_part, path, number, {**asked})))
            self.complete(path, upload, [part.result() for part in sent], nbytes)
        except BaseException:
            wait(sent)
            with suppress(Exception):
                self.abort(path, upload)
            raise

    def _copy_part(self, path: str, number: int, asked: Mapping[str, Any]) -> S3Part:
        answer = repeated(lambda: self._call("upload_part_copy", path, **asked), path)
        return S3Part(number, answer["CopyPartResult"])

    def put(self, path: str, data: bytes) -> None:
        """Put an object by one request."""
        repeated(lambda: self._filesystem.pipe_file(path, data), path)

    def _forget(self, path: str) -> None:
        """Let go of a listing that was made before."""
        self._filesystem.invalidate_cache(self._filesystem._parent(path))

    def abort(self, path: str, upload: str) -> None:
        """Give an upload up: what was sent of it is removed."""
        self._call("abort_multipart_upload", path, UploadId=upload)

    def abort_below(self, path: str) -> None:
        """Give up whatever uploads there are below a path, where the user may; listings of objects do not show them.

        A server may not know such listings, and a user may not have the right to make them.
        """
        with suppress(Exception):
            for upload in self.unfinished_below(path):
                self.abort(upload.path, upload.identifier)

    def unfinished_below(self, path: str) -> Iterator[S3Upload]:
        """Yield the uploads below a path that are neither completed nor aborted.

        None are found where the server does not list them, or the user may not.
        """
        bucket, prefix, *_ = self._filesystem.split_path(f"{path}/")
        marker: dict[str, Any] = {}
        while True:
            try:
                found = self._filesystem.call_s3(
                    "list_multipart_uploads", Bucket=bucket, Prefix=prefix, **marker
                )
            except FileNotFoundError:
                return
            except OSError as reason:
                if isinstance(reason, PermissionError) or reason.errno in _CANNOT_BE_LISTED:
                    return
                raise
            for one in found.get("Uploads", ()):
                yield S3Upload(f"{bucket}/{one['Key']}", one["UploadId"], one["Initiated"])
            if not found.get("IsTruncated"):
                return
            marker = {"KeyMarker": found["NextKeyMarker"], "UploadIdMarker": found["NextUploadIdMarker"]}

    def changed(self, upload: S3Upload) -> datetime.datetime:
        """Return when a part of an upload arrived last, by the clock of the server; when it was begun, without any.

        Raises:
            FileNotFoundError: it was completed or aborted meanwhile.
        """
        newest: datetime.datetime = upload.begun
        marker: dict[str, Any] = {}
        while True:
            found = self._call("list_parts", upload.path, UploadId=upload.identifier, **marker)
            newest = max([newest, *(part["LastModified"] for part in found.get("Parts", ()))])
            if not found.get("IsTruncated"):
                return newest
            marker = {"PartNumberMarker": found["NextPartNumberMarker"]}
