"""What file systems of fsspec are reached by, and what they raise as registered errors (SPEC section 8)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import fsspec

from ucpformat.errors import UcpError, error
from ucpformat.storage.stores.local_io import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "file_system",
    "has_directories",
    "protocols_of",
    "sends_parts",
    "streamed",
    "translated",
    "without_ranges",
    "writing",
]

_WITHOUT_DIRECTORIES: Final = frozenset(
    ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "cos", "tos", "obs", "b2")
)
"""Protocols of object stores. Making a directory there asks for the bucket each time, and makes it where it is not."""


@contextmanager
def translated(at: str) -> Iterator[None]:
    """Raise whatever a file system implementation raises, as registered errors."""
    try:
        yield
    except UcpError:
        raise
    except FileNotFoundError as reason:
        raise error("UCP-E-MISSING", MISSING, at=at) from reason
    except FileExistsError as reason:
        raise error("UCP-E-EXISTS", "the object exists and is never overwritten in place", at=at) from reason
    except ImportError as reason:
        message = f"reaching this URL takes a package that is not installed: {reason}"
        raise error("UCP-E-STORE", message, at=at) from reason
    except Exception as reason:
        raise error("UCP-E-STORE", f"{type(reason).__name__}: {reason}", at=at) from reason


@contextmanager
def writing(at: str) -> Iterator[None]:
    """Do as `translated`, where nothing has to be there but the place."""
    with translated(at):
        try:
            yield
        except FileNotFoundError as reason:
            message = "there is no such bucket or container; make it, or choose another URL"
            raise error("UCP-E-STORE", message, at=at) from reason


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system that ``url`` names, and the path in it."""
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except FileNotFoundError as reason:
        # Archives and indexes are read when they are opened.
        raise error("UCP-E-STORE", f"there is no such file: {reason.filename or reason}", at=url) from reason
    except ValueError as reason:
        raise error("UCP-E-STORE", f"fsspec cannot use this URL: {reason}; check it", at=url) from reason
    return filesystem, path


def has_directories(filesystem: Any) -> bool:
    """Return whether a file system has directories that are made and removed, as object stores have not."""
    return _WITHOUT_DIRECTORIES.isdisjoint(protocols_of(filesystem))


def protocols_of(filesystem: Any) -> set[str]:
    """Return the names of a file system in URLs."""
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


def sends_parts(filesystem: Any, path: str, start: int, key: str) -> bool:
    """Ask a web server for the byte at ``start``, at least 1; return whether it then sends parts of objects.

    False where something else is wrong, which reading says better. The file of fsspec looks at the answer's status, and
    reads no more of it; `cat_file` takes all that comes.

    Raises:
        StoreError: ``UCP-E-STORE`` where the server sends whole objects.
    """
    try:
        with filesystem.open(path, "rb", block_size=1, size=start + 1, cache_type="none") as file:
            file.seek(start)
            file.read(1)
    except ValueError as reason:
        raise without_ranges(key) from reason
    except Exception:
        return False
    return True


def streamed(filesystem: Any, path: str, nbytes: int, key: str) -> Iterator[bytes]:
    """Yield all bytes of an object by one request, at most ``nbytes`` at a time."""
    with translated(key):
        stream = filesystem.open(path, "rb", block_size=0)
    with stream:
        while True:
            with translated(key):
                piece = stream.read(nbytes)
            if not piece:
                return
            yield bytes(piece)


def without_ranges(key: str) -> UcpError:
    """Return what is wrong with a server that sends all of an object whatever it is asked for."""
    return error(
        "UCP-E-STORE",
        "the server ignores range requests, and sends whole objects; copy the checkpoint with `ucp cp URL PATH`, "
        "and use the copy",
        at=key,
    )
