"""Packs that are uploaded as they are written: in parts, several at once, or in one stream (SPEC section 8)."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from fsspec.spec import AbstractBufferedFile

from ucpformat.errors import error
from ucpformat.storage.stores.store import PackFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from ucpformat.storage.stores.remote.s3_uploads import S3Part, S3Uploads
    from ucpformat.storage.stores.store import Look

__all__ = ["MultipartPackFile", "RemotePackFile", "StreamedPackFile", "UploadSlots"]

_STREAM_BYTES: Final = 32 << 30
"""Longest stream: 10,000 parts of 5 MiB, the smallest default of fsspec's file systems, have 49 GiB."""


class RemotePackFile(ABC):
    """A pack being uploaded: its bytes go out in order, and appends are serialised.

    A pack that cannot take more (`PackFullError`) ends as soon as the appends under way have; no other sees it before.
    ``writing`` makes registered errors of what the medium raises.
    """

    def __init__(self, key: str, most: int, writing: Callable[[str], AbstractContextManager[None]]) -> None:
        self._key = key
        self._most = most
        self._writing = writing
        self._length = 0
        self._ended = self._is_broken = False
        self._reason: Exception | None = None
        self._turn = threading.Lock()
        self._promised = 0
        self._appending = 0
        self._is_full = False
        self._counting = threading.Lock()

    @abstractmethod
    def _expect(self, nbytes: int) -> None:
        """Note that at least so many bytes will come; called before the first."""

    @abstractmethod
    def _write(self, data: memoryview) -> None:
        """Take the next bytes."""

    @abstractmethod
    def _complete(self) -> None:
        """Make the object visible."""

    @abstractmethod
    def _abandon(self) -> None:
        """Leave nothing that is visible, as far as the medium can."""

    def append(
        self, buffers: Sequence[memoryview], alignment: int, look: Look | None = None, *, keep: bool = False
    ) -> int:
        """Write zeros up to the next multiple of ``alignment``, then the buffers."""
        self._enter(sum(buffer.nbytes for buffer in buffers) + alignment)
        try:
            if look is not None:
                for buffer in buffers:
                    look(buffer)
            with self._turn, self._writing(self._key):
                if self._ended:
                    raise self._refusal()
                offset = self._length + -self._length % alignment
                try:
                    self._write(memoryview(bytes(offset - self._length)))
                    for buffer in buffers:
                        self._write(buffer)
                except BaseException as reason:
                    # Nobody knows what has arrived.
                    self._give_up(reason)
                    raise
                self._length = offset + sum(buffer.nbytes for buffer in buffers)
        finally:
            with self._counting:
                self._appending -= 1
                is_last = self._is_full and not self._appending
        if is_last:
            self.close()
        return offset

    def reserve(self, lengths: Sequence[int], alignment: int) -> list[int]:
        """Refuse: never called, an upload takes its bytes in order."""
        raise NotImplementedError

    def write_at(
        self, offset: int, buffers: Sequence[memoryview], look: Look | None = None, *, keep: bool = False
    ) -> None:
        """Refuse: never called, nothing is reserved."""
        raise NotImplementedError

    def _enter(self, nbytes: int) -> None:
        """Begin an append of at most so many bytes."""
        with self._counting:
            if not self._promised:
                self._most = max(self._most, nbytes)
                self._expect(nbytes)
            if not self._is_full and self._promised + nbytes <= self._most:
                self._promised += nbytes
                self._appending += 1
                return
            self._is_full = True
            is_last = not self._appending
        if is_last:
            self.close()
        raise PackFullError

    def settle(self) -> None:  # noqa: B027  # there is nothing for any kind to do
        """Do nothing: what is gathered to a part is a copy."""

    def close(self) -> int:
        """Finish the upload."""
        with self._turn, self._writing(self._key):
            if self._is_broken:
                raise self._refusal()
            if not self._ended:
                try:
                    self._complete()
                except BaseException as reason:
                    self._give_up(reason)
                    raise
                self._ended = True
        return self._length

    def abort(self) -> None:
        """Give the pack up, unless it is finished."""
        with self._turn:
            if not self._ended:
                self._give_up()

    def _refusal(self) -> Exception:
        """Return why this pack takes nothing any more: of several threads, any may be the first to be heard."""
        message = "the upload of this pack was given up; save again"
        return self._reason or error("UCP-E-STORE", message, at=self._key)

    def _give_up(self, reason: BaseException | None = None) -> None:
        self._ended = self._is_broken = True
        self._reason = reason if isinstance(reason, Exception) else None
        with suppress(Exception):
            self._abandon()


class StreamedPackFile(RemotePackFile):
    """One stream, as any file system of fsspec has: what it sends, it sends while it is written to."""

    def __init__(self, key: str, stream: Any, writing: Callable[[str], AbstractContextManager[None]]) -> None:
        super().__init__(key, _STREAM_BYTES, writing)
        self._stream = stream

    def _expect(self, nbytes: int) -> None:
        """Do nothing: what a stream sends at once was settled when it was opened."""

    def _write(self, data: memoryview) -> None:
        self._stream.write(data)

    def _complete(self) -> None:
        self._stream.close()

    def _abandon(self) -> None:
        if not isinstance(self._stream, AbstractBufferedFile):
            self._stream.close()
            return
        try:
            self._stream.discard()
        finally:
            # It would send what it holds otherwise, when it is collected at the latest.
            self._stream.closed = True


class UploadSlots:
    """How many parts may be under way: another one waits, so that memory is bounded."""

    def __init__(self, count: int) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="ucp-upload")
        self._free = threading.Semaphore(count)

    def submit(self, send: Callable[[], S3Part]) -> Future[S3Part]:
        """Run in the background, once there is a slot."""
        self._free.acquire()
        future = self._executor.submit(send)
        future.add_done_callback(lambda _: self._free.release())
        return future

    def close(self) -> None:
        """Release threads."""
        self._executor.shutdown()


class MultipartPackFile(RemotePackFile):
    """Parts, several under way at once; an object when all have arrived. What is less than a part is one put."""

    def __init__(
        self,
        key: str,
        path: str,
        uploads: S3Uploads,
        slots: UploadSlots,
        writing: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        super().__init__(key, uploads.part_bytes * uploads.most_parts, writing)
        self._path = path
        self._uploads = uploads
        self._slots = slots
        self._part_bytes = uploads.part_bytes
        self._part = bytearray()
        self._filled = 0
        self._upload: str | None = None
        self._sent: list[Future[S3Part]] = []
        self._failed: BaseException | None = None

    def _expect(self, nbytes: int) -> None:
        self._part_bytes = max(self._part_bytes, -(-nbytes // self._uploads.most_parts))

    def _write(self, data: memoryview) -> None:
        while data.nbytes:
            if not self._part:
                self._part = bytearray(self._part_bytes)
            taken = data[: self._part_bytes - self._filled]
            self._part[self._filled : self._filled + taken.nbytes] = taken
            self._filled += taken.nbytes
            data = data[taken.nbytes :]
            if self._filled == self._part_bytes:
                self._send()

    def _send(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._upload is None:
            self._upload = self._uploads.begin(self._path)
        upload, number, part = self._upload, len(self._sent) + 1, self._taken()
        sent = self._slots.submit(lambda: self._uploads.send(self._path, upload, number, part))
        self._sent.append(sent)
        sent.add_done_callback(self._note)

    def _taken(self) -> bytearray:
        """Return what is gathered, whose memory the sender then owns."""
        part, self._part = self._part, bytearray()
        del part[self._filled :]
        self._filled = 0
        return part

    def _note(self, sent: Future[S3Part]) -> None:
        self._failed = self._failed or sent.exception()

    def _complete(self) -> None:
        if self._upload is None:
            self._uploads.put(self._path, bytes(self._taken()))
            return
        if self._filled:
            self._send()
        self._uploads.complete(self._path, self._upload, [sent.result() for sent in self._sent], self._length)

    def _abandon(self) -> None:
        self._part = bytearray()
        if self._upload is not None:
            # A part that arrives later would be kept, and paid for.
            wait(self._sent)
            self._uploads.abort(self._path, self._upload)
