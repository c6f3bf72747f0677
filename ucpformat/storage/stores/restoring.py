"""Putting objects of a committed checkpoint back in their places, each whole and at once (SPEC section 8.4).

In a directory an object is written beside the others under a name that nobody reads, made durable, read back, and given
its name. Everything is done within the directory that was opened: if somebody removes the checkpoint meanwhile, and
another one takes its path, that one is not touched.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self, cast

from awscrt.checksums import crc32c

from ucpformat.errors import UcpError, error
from ucpformat.model.names import check_key
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.stores.directory_claim import DirectoryClaim
from ucpformat.storage.stores.draft import STAGED
from ucpformat.storage.stores.local_io import (
    CREATE_FLAGS,
    DIRECTORY_FLAGS,
    READ_FLAGS,
    exchange_names,
    opened,
    translated,
    write_all,
)
from ucpformat.storage.stores.remote.access import has_directories, protocols_of
from ucpformat.storage.stores.store import PackFullError
from ucpformat.storage.stores.urls import local_path, refuse_target

if TYPE_CHECKING:
    import types

    from ucpformat.storage.stores.remote.store import RemoteStore
    from ucpformat.storage.stores.store import Objects

__all__ = ["Restorer", "restorer"]

_LEFT: Final = f"{STAGED}repair-"
"""How the names of files begin that a repair has not put in their places."""
_READ_BYTES: Final = 1 << 22
_NO_EXCHANGE: Final = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)

Pieces = Iterable[memoryview]
"""All bytes of an object, in order."""


class Restorer(Protocol):
    """A context in which `ucpformat.repairing` puts objects back: documents and packs by `put`, the root document last.

    Its methods raise `StoreError`: ``UCP-E-STORE`` where the medium fails, ``UCP-E-NOT-FOUND`` where the checkpoint was
    removed or replaced meanwhile, ``UCP-E-LINK`` where something lies in the way that is no plain file.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: types.TracebackType | None
    ) -> None: ...

    def put(self, key: str, pieces: Pieces, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Put an object in its place, whole; return whether that was done.

        ``is_wanted`` is asked when all pieces were taken; where it says no, nothing changes.
        """
        ...

    def put_root(self, data: bytes) -> None:
        """Put the root document in the place of one that is damaged; never where there is none."""
        ...


def restorer(url: str | os.PathLike[str], store: Objects, root: bytes) -> Restorer:
    """Return what puts objects back into the checkpoint whose root document has the bytes ``root``."""
    path = local_path(url)
    if path is not None:
        return _LocalRestorer(path, root)
    refuse_target(url)
    return _RemoteRestorer(cast("RemoteStore", store), root)


def _gone(url: str) -> UcpError:
    message = "the checkpoint was removed or replaced meanwhile; nothing more was restored"
    return error("UCP-E-NOT-FOUND", message, at=url)


class _LocalRestorer:
    """Restores into a directory. Nothing hangs on its lock, which keeps removers and other repairs away early."""

    def __init__(self, path: str, root: bytes) -> None:
        self._path = Path(os.path.realpath(path))
        self._claim = DirectoryClaim(self._path)
        self._root = root

    def __enter__(self) -> Self:
        with translated(str(self._path)):
            try:
                self._claim.hold()
                self._remove_what_was_left()
                return self
            except UcpError as refusal:
                self._claim.release()
                if refusal.code != "UCP-E-EXISTS":
                    raise
                message = "another process repairs or removes this checkpoint; wait until it is done"
                raise error("UCP-E-STORE", message, at=str(self._path)) from None
            except BaseException:
                self._claim.release()
                raise

    def _remove_what_was_left(self) -> None:
        """Remove the files of repairs that were killed; one that is alive, where locks do not work, will fail."""
        for name in os.listdir(self._directory):
            if name.startswith(_LEFT):
                with suppress(OSError):
                    os.unlink(name, dir_fd=self._directory)

    def __exit__(self, *_: object) -> None:
        self._claim.release()

    @property
    def _directory(self) -> int:
        directory = self._claim.directory
        if directory is None:
            raise AssertionError("a restorer is a context")
        return directory

    def _require_committed(self) -> None:
        try:
            descriptor = opened(ROOT_KEY, READ_FLAGS, within=self._directory)
        except FileNotFoundError:
            raise _gone(str(self._path)) from None
        try:
            found = os.pread(descriptor, len(self._root) + 1, 0)
        finally:
            os.close(descriptor)
        if found != self._root or not self._claim.is_mine():
            raise _gone(str(self._path))

    def put(self, key: str, pieces: Pieces, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        check_key(key, key)
        *names, name = key.split("/")
        with translated(key), self._staged(pieces, key) as staged:
            if not is_wanted():
                return False
            self._require_committed()
            with self._parent(names) as parent:
                self._give_name(staged, name, parent, key)
                # A rename between directories is durable for certain when both are.
                for directory in {parent, self._directory}:
                    os.fsync(directory)
        return True

    def put_root(self, data: bytes) -> None:
        with translated(ROOT_KEY), self._staged([memoryview(data)], ROOT_KEY) as staged:
            self._require_committed()
            try:
                # A rename would also make one where somebody has just removed the checkpoint.
                exchange_names(staged, ROOT_KEY, self._directory)
            except FileNotFoundError:
                raise _gone(str(self._path)) from None
            except OSError as reason:
                if reason.errno not in _NO_EXCHANGE:
                    raise
                raise error(
                    "UCP-E-STORE",
                    "this file system cannot exchange two names at once, as putting back a root document takes; "
                    "copy the good checkpoint to a new path with `ucp cp`",
                    at=ROOT_KEY,
                ) from reason
            os.fsync(self._directory)
            self._root = data

    @contextmanager
    def _staged(self, pieces: Pieces, key: str) -> Iterator[str]:
        """Yield the name of a file of these bytes, durable and read back, which goes with the context if it is left."""
        name = f"{_LEFT}{uuid.uuid4().hex}"
        try:
            descriptor = opened(name, CREATE_FLAGS, within=self._directory)
            length = checksum = 0
            try:
                for piece in pieces:
                    write_all(descriptor, [piece], length)
                    checksum = crc32c(piece, checksum)
                    length += piece.nbytes
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if self._read_back(name) != (length, checksum):
                message = (
                    "what was written reads back as something else; the medium fails: nothing was replaced"
                )
                raise error("UCP-E-STORE", message, at=key)
            yield name
        finally:
            with suppress(OSError):
                os.unlink(name, dir_fd=self._directory)

    def _read_back(self, name: str) -> tuple[int, int]:
        descriptor = opened(name, READ_FLAGS, within=self._directory)
        try:
            length = checksum = 0
            while piece := os.pread(descriptor, _READ_BYTES, length):
                length, checksum = length + len(piece), crc32c(piece, checksum)
            return length, checksum
        finally:
            os.close(descriptor)

    @contextmanager
    def _parent(self, names: list[str]) -> Iterator[int]:
        """Yield a descriptor of the directory that an object lies in, made where it is missing; links are refused."""
        held = [self._directory]
        try:
            for name in names:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=held[-1])
                    os.fsync(held[-1])
                held.append(opened(name, DIRECTORY_FLAGS | os.O_NOFOLLOW, within=held[-1]))
            yield held[-1]
        finally:
            for descriptor in held[1:]:
                os.close(descriptor)

    def _give_name(self, staged: str, name: str, parent: int, key: str) -> None:
        try:
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        except FileNotFoundError:
            with suppress(FileExistsError):  # by another repair, with the bytes that are recorded
                self._link(staged, name, parent)
            return
        if not stat.S_ISREG(mode):
            message = (
                "something lies here that is no plain file, and is not replaced; remove it, and repair again"
            )
            raise error("UCP-E-LINK", message, at=key)
        os.replace(staged, name, src_dir_fd=self._directory, dst_dir_fd=parent)

    def _link(self, staged: str, name: str, parent: int) -> None:
        try:
            os.link(staged, name, src_dir_fd=self._directory, dst_dir_fd=parent, follow_symlinks=False)
        except OSError as reason:
            if reason.errno not in _NO_LINKS:
                raise
            os.rename(staged, name, src_dir_fd=self._directory, dst_dir_fd=parent)


class _RemoteRestorer:
    """Restores into an object store, which shows an object when all of it is there."""

    def __init__(self, store: RemoteStore, root: bytes) -> None:
        self._store = store
        self._root = root
        self._is_of_files = has_directories(store._filesystem)

    def __enter__(self) -> Self:
        if self._is_of_files and "memory" not in protocols_of(self._store._filesystem):
            message = (
                "objects cannot be replaced whole there, so that a repair that is interrupted could lose more; copy a "
                "good checkpoint to a new place with `ucp cp`"
            )
            raise error("UCP-E-STORE", message, at=self._store.url)
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: nothing is held."""

    def _require_committed(self) -> None:
        if self._store.head(ROOT_KEY, len(self._root) + 1) != self._root:
            raise _gone(self._store.url)

    def put(self, key: str, pieces: Pieces, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        check_key(key, key)
        self._require_committed()
        if not key.startswith("packs/") or self._is_of_files:
            whole = b"".join(pieces)
            if not is_wanted():
                return False
            self._require_committed()
            self._store.replace(key, [memoryview(whole)])
            return True
        pack = self._store.create_pack(key)
        try:
            for piece in pieces:
                pack.append([piece], 1)
            if not is_wanted():
                pack.abort()
                return False
            self._require_committed()
            pack.close()
        except PackFullError:
            pack.abort()
            raise error("UCP-E-LIMIT", "the pack is longer than one object can be here", at=key) from None
        except BaseException:
            pack.abort()
            raise
        return True

    def put_root(self, data: bytes) -> None:
        del data
        raise error(
            "UCP-E-STORE",
            "an object store cannot put a root document back without risk of restoring one that is being removed; copy "
            "the good checkpoint to a new URL with `ucp cp`",
            at=ROOT_KEY,
        )
