"""The URL of a checkpoint: a local path or a file system of fsspec, whether that can take a save, and its store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error

if TYPE_CHECKING:
    from ucpformat.storage.stores.store import Durability, Objects, Store

__all__ = [
    "is_remote",
    "local_path",
    "name_of",
    "open_store",
    "open_target",
    "refuse_swapped",
    "refuse_target",
]

_LOCAL: Final = ("file://", "local://")
_IS_WINDOWS: Final = os.name == "nt"
_DRIVE: Final = re.compile(r"/[A-Za-z]:(?:[/\\]|\Z)")
"""How a path of Windows begins in a URL: ``file:///C:/runs``."""

_ARCHIVE: Final = "an archive cannot be written object by object, and published as a whole"
_WEB: Final = "a web server takes no objects that are created exclusively, listed and removed"
_HISTORY: Final = "every object that is written there is a change of a repository"
_INDEX: Final = "it shows what lies elsewhere"
_CACHE: Final = "a cache may show what the store behind it no longer has"

_NO_TARGETS: Final[Mapping[str, str]] = {
    "zip": _ARCHIVE,
    "tar": _ARCHIVE,
    "libarchive": _ARCHIVE,
    "http": _WEB,
    "https": _WEB,
    "git": _HISTORY,
    "github": _HISTORY,
    "gist": _HISTORY,
    "dvc": _HISTORY,
    "hf": _HISTORY,
    "lakefs": _HISTORY,
    "reference": _INDEX,
    "data": _INDEX,
    "pyscript": _INDEX,
    "root": _INDEX,
    "wandb": _INDEX,
    "filecache": _CACHE,
    "blockcache": _CACHE,
    "cached": _CACHE,
    "ftp": "a file can be seen there while it is sent, and nothing is created exclusively",
    "jupyter": "a notebook server sends whole files alone",
    "jlab": "a notebook server sends whole files alone",
}
"""Protocols of fsspec that cannot keep the promises of a save (SPEC section 8), and why."""


def local_path(url: str | os.PathLike[str]) -> str | None:
    """Return the local path that ``url`` is, or names by ``file://``; None where it is reached through fsspec.

    A leading ``~`` is the home directory, as in a shell; a directory of that name is ``./~``.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for what is no path or URL.
    """
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str) or "\0" in text:
        raise error("UCP-E-MISMATCH", f"a path or URL is a str, or a pathlib.Path, and not {url!r}")
    if "::" not in text:
        for prefix in _LOCAL:
            if text.startswith(prefix):
                path = text.removeprefix(prefix)
                return path.removeprefix("/") if _IS_WINDOWS and _DRIVE.match(path) else path
        if "://" not in text:
            return os.path.expanduser(text)
    return None


def name_of(url: str | os.PathLike[str]) -> str:
    """Return the last component of the path in a URL, or of a path."""
    links = os.fspath(url).split("::")
    path = next((link.partition("://")[2] for link in links if "://" in link), links[0])
    return PurePosixPath(path).name


def refuse_swapped(source: str | os.PathLike[str], destination: str | os.PathLike[str]) -> None:
    """Refuse a source that is not there where the destination is: the two were most likely swapped.

    Raises:
        StoreError: ``UCP-E-NOT-FOUND``, with the right order.
    """
    here, there = local_path(source), local_path(destination)
    if here is not None and there is not None and not os.path.lexists(here) and os.path.lexists(there):
        message = f"nothing lies there, but {os.fspath(destination)} exists; the source comes first"
        raise error("UCP-E-NOT-FOUND", message, at=os.fspath(source))


def refuse_target(url: str | os.PathLike[str]) -> None:
    """Refuse a place that cannot take a save, before anything is asked of it.

    Raises:
        StoreError: ``UCP-E-STORE``, with what to do instead.
    """
    if local_path(url) is not None:
        return
    for link in os.fspath(url).split("::"):
        protocol = link.partition("://")[0]
        why = _NO_TARGETS.get(protocol)
        if why is not None:
            raise error(
                "UCP-E-STORE",
                f"nothing can be saved through {protocol}://, since {why}; save to a directory or an object store, "
                "and put the result there",
                at=os.fspath(url),
            )


def open_store(url: str | os.PathLike[str]) -> Objects:
    """Open a checkpoint at a local path or any fsspec URL (``s3://bucket/run/step-1000.ucp``), to read it.

    Raises:
        StoreError: ``UCP-E-STORE`` for a URL whose protocol fsspec does not know.
    """
    path = local_path(url)
    if path is not None:
        from ucpformat.storage.stores.local_objects import LocalObjects

        return LocalObjects(path)
    from ucpformat.storage.stores.remote.store import RemoteStore

    return RemoteStore(str(url))


def open_target(url: str | os.PathLike[str], *, durability: Durability = "fsync") -> Store:
    """Open a checkpoint at a local path or any fsspec URL, to write it.

    ``durability`` concerns local paths; what a remote store acknowledges is durable.

    Raises:
        StoreError: ``UCP-E-STORE`` as `open_store`, and where the protocol cannot keep the promises of a save
            (`refuse_target`).
    """
    refuse_target(url)
    path = local_path(url)
    if path is not None:
        from ucpformat.storage.stores.local import LocalStore

        return LocalStore(path, durability=durability)
    from ucpformat.storage.stores.remote.store import RemoteStore

    return RemoteStore(str(url))


def is_remote(url: str | os.PathLike[str]) -> bool:
    """Return whether what lies at ``url`` is reached through fsspec, and not as a local path."""
    return local_path(url) is None
