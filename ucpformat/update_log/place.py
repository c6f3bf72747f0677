"""Where a log lies: its keys, and objects that are created whole, exclusively and durably (SPEC-UPDATE-LOGS 1)."""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ucpformat.errors import UcpError, error
from ucpformat.storage.stores.local_io import (
    CREATE_FLAGS,
    make_parents,
    opened,
    rename_exclusively,
    sync,
    translated,
    write_all,
)
from ucpformat.storage.stores.urls import local_path, name_of, open_store, open_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ucpformat.storage.stores.remote.store import RemoteStore
    from ucpformat.storage.stores.store import Objects
    from ucpformat.update_log.objects import LogObjects

__all__ = [
    "LOG_KEY",
    "LOG_NAME",
    "SUFFIX",
    "BatchKey",
    "LogKeys",
    "LogPlace",
    "batch_key",
    "epoch_key",
    "has_log",
    "require_document",
    "sorted_keys",
]

LOG_KEY: Final = "log.json"
SUFFIX: Final = ".ucplog"
LOG_NAME: Final = f"updates{SUFFIX}"
"""The directory of the log of a run, in that of the run."""
_NUMBER: Final = r"(0|[1-9][0-9]{0,15})"
_EPOCH: Final = re.compile(rf"epochs/{_NUMBER}\.json")
_BATCH: Final = re.compile(rf"batches/{_NUMBER}/{_NUMBER}/{_NUMBER}\.batch")
_STAGED: Final = re.compile(r"\.[0-9a-f]{32}")
_MOST: Final = (1 << 53) - 1
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EINVAL})


class BatchKey(NamedTuple):
    """What the key of a batch says."""

    epoch: int
    rank: int
    first_step: int


class LogKeys(NamedTuple):
    """What lies in a log: numbers of epochs, and batches; both sorted."""

    epochs: list[int]
    batches: list[BatchKey]


def epoch_key(epoch: int) -> str:
    """Return the key of an epoch document."""
    return f"epochs/{epoch}.json"


def batch_key(key: BatchKey) -> str:
    """Return the key of a batch."""
    return f"batches/{key.epoch}/{key.rank}/{key.first_step}.batch"


def sorted_keys(keys: Iterable[str]) -> LogKeys:
    """Return what the keys in the directory of a log say; others are ignored (SPEC UCP-R-038)."""
    epochs: list[int] = []
    batches: list[BatchKey] = []
    for key in keys:
        found = _EPOCH.fullmatch(key) or _BATCH.fullmatch(key)
        numbers = [] if found is None else [int(text) for text in found.groups()]
        if not numbers or max(numbers) > _MOST:
            continue
        if len(numbers) == 1:
            epochs += numbers
        else:
            batches.append(BatchKey(*numbers))
    return LogKeys(sorted(epochs), sorted(batches))


def has_log(url: str) -> bool:
    """Return whether a log lies at a path or URL, or what is left of one whose document is gone."""
    store = open_store(url)
    try:
        # Elsewhere nothing is listed: a checkpoint may have many objects.
        is_named_so = name_of(url.rstrip("/")).endswith(SUFFIX)
        return store.head(LOG_KEY, 1) is not None or (is_named_so and _is_left(store))
    except UcpError:
        return False
    finally:
        store.close()


def require_document(store: Objects | LogObjects) -> None:
    """Refuse what is left of a log without its document, whose steps would be lost without a word.

    Raises:
        InvalidCheckpointError: ``UCP-E-MISSING``.
    """
    # In this order, since who creates a log begins with its document.
    if _is_left(store) and store.size(LOG_KEY) is None:
        message = (
            "the document of the log is gone, and epochs or batches are there: restore it from a copy, or move what is "
            "left of the log away, to go on from the checkpoint alone"
        )
        raise error("UCP-E-MISSING", message, at=LOG_KEY)


def _is_left(store: Objects | LogObjects) -> bool:
    """Return whether there are epochs or batches."""
    found = sorted_keys(store.keys())
    return bool(found.epochs or found.batches)


class LogPlace:
    """The directory of a log, or its prefix in an object store, to read and to write."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = open_target(url)
        path = local_path(url)
        self._directory = None if path is None else Path(path).absolute()
        self._durable: set[str] = set()
        self._remote: RemoteStore | None = None
        if path is None:
            from ucpformat.storage.stores.remote.store import RemoteStore

            self._remote = self.store if isinstance(self.store, RemoteStore) else None

    @property
    def is_remote(self) -> bool:
        """Whether it lies in an object store, whose answers are to be waited for."""
        return self._remote is not None

    def close(self) -> None:
        """Release file handles."""
        self.store.close()

    def keys(self) -> LogKeys:
        """Return what lies in the log now."""
        return sorted_keys(self.store.keys())

    def fenced(self, epoch: int) -> UcpError | None:
        """Return why nobody may write in an epoch any more (SPEC UCP-W-039), None where it is the newest one."""
        if not self.has(epoch_key(epoch + 1)):
            return None
        message = f"epoch {epoch + 1} has begun: another start of the job went on from this log"
        return error("UCP-E-FENCED", message, at=self.url)

    def has(self, key: str) -> bool:
        """Return whether there is an object."""
        if self._remote is not None:
            # By one request: the size of what is not there may take two.
            return self._remote.head(key, 1) is not None
        with translated(key):
            try:
                os.lstat(f"{self._directory}/{key}")
            except FileNotFoundError:
                return False
        return True

    def create(self, key: str, buffers: Sequence[memoryview]) -> None:
        """Write an object, which appears whole and is durable when this returns (SPEC UCP-W-036).

        Raises:
            StoreError: ``UCP-E-EXISTS`` where there is one; ``UCP-E-STORE`` where the medium fails, or creates nothing
                exclusively.
        """
        if self._remote is not None:
            self._remote.require_exclusive()
            self._remote.create_apart(key, buffers)
            return
        # Strings, since a path of pathlib takes as long as the calls of the system do.
        path = f"{self._directory}/{key}"
        parent = os.path.dirname(path)
        staged = f"{parent}/.{uuid.uuid4().hex}"
        with translated(key):
            if parent not in self._durable:
                above = make_parents(Path(path), is_durable=True)
                if above is not None:
                    sync(above)
                self._durable.add(parent)
            descriptor = opened(staged, CREATE_FLAGS)
            try:
                try:
                    write_all(descriptor, buffers, 0)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                _give_name(staged, path)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(staged)
            sync(parent)

    def debris(self, age: float) -> list[Path]:
        """Return files without their final names, unchanged for so many seconds: writers that died have left them."""
        found: list[Path] = []
        if self._directory is not None:
            with translated(LOG_KEY):
                latest = time.time() - age
                for path in sorted(self._directory.rglob(".*")):
                    with suppress(FileNotFoundError):
                        if _STAGED.fullmatch(path.name) and path.stat().st_mtime <= latest:
                            found.append(path)
        return found

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects; silent where one is gone."""
        if self._remote is not None:
            self._remote.remove_all(keys)
            return
        for key in keys:
            with translated(key), suppress(FileNotFoundError):
                os.unlink(f"{self._directory}/{key}")


def _give_name(staged: str, path: str) -> None:
    """Give a file its name, unless there is one of that name; raises FileExistsError then."""
    try:
        os.link(staged, path)
    except OSError as reason:
        if reason.errno not in _NO_LINKS:
            raise
        directory = opened(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            rename_exclusively(os.path.basename(staged), os.path.basename(path), directory)
        except OSError as why:
            if why.errno not in (errno.ENOSYS, errno.EINVAL):
                raise
            message = "this file system gives no name to one of several writers; put the run on another one"
            raise error("UCP-E-STORE", message, at=path) from why
        finally:
            os.close(directory)
