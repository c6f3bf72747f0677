"""Objects that are made only where there are none, by requests with a condition (SPEC section 8.2)."""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from fsspec.spec import AbstractFileSystem

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ConditionalPuts"]

_PRECONDITION: Final = ("PreconditionFailed", "412")
_CONFLICT: Final = ("ConditionalRequestConflict", "OperationAborted", "409")
_CONFLICT_WAITS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds between puts that met another one under way."""

_known: Final[set[tuple[object, str]]] = set()
"""File systems and buckets that were seen to keep to the condition."""


class _NoConditionsError(Exception):
    """The medium knows no conditional writes."""


def _answer_code(reason: BaseException | None) -> str:
    """What an S3 server has called its refusal; empty for anything else.

    s3fs makes errors of Python of it, and what botocore raised is their cause (s3fs/errors.py).
    """
    while reason is not None:
        response = getattr(reason, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        reason = reason.__cause__
    return ""


class ConditionalPuts:
    """Conditional puts of an fsspec file system. ``found`` reads the first bytes of an object."""

    def __init__(self, filesystem: Any, found: Callable[[str, int], bytes | None]) -> None:
        self._filesystem = filesystem
        self._found = found

    def require(self, path: str, url: str) -> None:
        """Try on an object at ``path`` whether the medium keeps to the condition; once for each bucket.

        Raises:
            StoreError: ``UCP-E-STORE`` where it does not.
        """
        place = (
            getattr(self._filesystem, "_fs_token", id(self._filesystem)),
            path.lstrip("/").partition("/")[0],
        )
        if place in _known:
            return
        try:
            if self._is_kept_to(path):
                _known.add(place)
                return
        finally:
            with suppress(Exception):
                self._filesystem.rm_file(path)
        raise error(
            "UCP-E-STORE",
            "this store does not create objects under the condition that there are none, so that two writers could "
            "both commit here; save to another one, and copy the checkpoint",
            at=url,
        )

    def _is_kept_to(self, path: str) -> bool:
        try:
            with suppress(FileExistsError):  # the answer to a first request was lost
                self._put(path, b"first")
            self._put(path, b"second")
        except FileExistsError:
            return True
        except _NoConditionsError:
            return False
        return False

    def put(self, path: str, data: bytes) -> None:
        """Put an object where there is none, or just this one: nobody else puts the same at this path.

        Raises:
            FileExistsError: there is another one.
            Exception: what the file system raises; the object may be there all the same, or appear later.
        """
        try:
            self._put(path, data)
        except Exception:
            # Requests are repeated when their answer is lost, and then meet what the first has done.
            with suppress(Exception):
                if self._found(path, len(data) + 1) == data:
                    return
            raise

    def _put(self, path: str, data: bytes) -> None:
        """Put an object.

        S3 answers 409 where another request for the same key is under way, and wants to be asked again (AWS, API
        reference of PutObject, If-None-Match): by then that one has made the object, or has not.
        """
        for seconds in _CONFLICT_WAITS:
            try:
                self._put_once(path, data)
                return
            except OSError as reason:
                if _answer_code(reason) not in _CONFLICT:
                    raise
            time.sleep(seconds)
        self._put_once(path, data)

    def _put_once(self, path: str, data: bytes) -> None:
        if getattr(self._filesystem.pipe_file, "__func__", None) is AbstractFileSystem.pipe_file:
            raise _NoConditionsError  # it looks first and then writes
        try:
            self._filesystem.pipe_file(path, data, mode="create")
        except (TypeError, ValueError, NotImplementedError) as reason:
            raise _NoConditionsError from reason
        except OSError as reason:
            if reason.errno == errno.ENOSYS:  # HTTP 501, for the same reason
                raise _NoConditionsError from reason
            if _answer_code(reason) in _PRECONDITION:
                # s3fs sees it where the answer names the condition, as AWS does and others do not.
                raise FileExistsError(path) from reason
            raise
