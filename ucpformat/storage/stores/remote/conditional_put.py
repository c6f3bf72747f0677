"""Objects that are made only where there are none, by requests with a condition (SPEC section 8.2)."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from fsspec.spec import AbstractFileSystem

from ucpformat.errors import error
from ucpformat.storage.stores.remote.repetition import answer_code, repeated

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ConditionalPuts"]

_PRECONDITION: Final = ("PreconditionFailed", "412")

_known: Final[set[tuple[object, str]]] = set()
"""File systems and buckets that were seen to keep to the condition."""


class _NoConditionsError(Exception):
    """The medium knows no conditional writes."""


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
        """Put an object where there is none, or just this one: no other writer puts the same at this path.

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
        repeated(lambda: self._put_once(path, data), path)

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
            if answer_code(reason) in _PRECONDITION:
                # s3fs sees it where the answer names the condition, as AWS does and others do not.
                raise FileExistsError(path) from reason
            raise
