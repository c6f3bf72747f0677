"""Attempts to write to local directories: exclusive creation, late syncing, atomic publication (SPEC section 8)."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error
from ucpformat.model.names import check_key
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.stores.directory_claim import DirectoryClaim
from ucpformat.storage.stores.draft import is_staged, staged_name
from ucpformat.storage.stores.linking import NO_LINKS, LinkSource, make_link
from ucpformat.storage.stores.local_io import (
    CREATE_FLAGS,
    Identity,
    identity_of,
    make_parents,
    opened,
    require_commits,
    sync,
    translated,
    write_all,
)
from ucpformat.storage.stores.local_objects import LocalObjects
from ucpformat.storage.stores.local_pack import LocalPackFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from ucpformat.model.root import Storage
    from ucpformat.storage.stores.sharing import Sharable
    from ucpformat.storage.stores.store import Durability, Objects

__all__ = ["LocalStore", "WriteBack"]


class LocalStore(LocalObjects):
    """A checkpoint in a directory, to be read and written."""

    packs_at_once = 2
    packs_have_rooms = True
    upload_bytes = 0
    writers_wait = False  # the page cache takes what they write, and the disk is at work meanwhile

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "fsync") -> None:
        super().__init__(path)
        self._write_back = WriteBack() if durability == "fsync" else None
        self._created: dict[str, Identity] = {}
        self._above: Path | None = None
        self._has_begun = False
        self._claim = DirectoryClaim(self._root)

    def keys(self) -> Iterator[str]:
        """Yield keys of everything below the directory but the draft of this attempt; links are not followed."""
        draft = self._claim.draft
        return (key for key in LocalObjects.keys(self) if key != draft)

    def prepare(self, storage: Storage = "packed") -> None:
        """Begin in an empty directory; debris of an uncommitted attempt is moved aside and removed."""
        del storage
        self._attempt(self._claim.begin)

    def resume(self, storage: Storage = "packed") -> None:
        """Begin an attempt, and leave what lies there; the one that left it cannot commit any more."""
        del storage
        self._attempt(self._claim.resume)

    def _attempt(self, begin: Callable[[], None]) -> None:
        require_commits(self.url)
        with translated(self.url):
            self._above = make_parents(self._root, is_durable=self._write_back is not None)
            self._has_begun = True
            begin()

    def join(self) -> None:
        """Hold on to the directory that another process has made, without its lock."""
        try:
            self._claim.join()
        except OSError as reason:
            raise error(
                "UCP-E-STORE",
                "the directory that the first rank has made is not seen here; save to storage that all ranks share",
                at=self.url,
            ) from reason

    def remove(self, key: str) -> None:
        """Remove a file, and what directories below the root become empty."""
        with translated(key), suppress(FileNotFoundError):
            path = self._root / key if is_staged(key) else self._locate(key)
            path.unlink()
            for parent in path.parents:
                if parent == self._root or any(parent.iterdir()):
                    break
                parent.rmdir()
                self._plain_directories.discard(parent)
                self._claim.forget_directory(parent.relative_to(self._root).as_posix())

    def clear(self, keys: Iterable[str]) -> None:
        """Remove what an earlier attempt has left, which cannot commit any more."""
        for key in keys:
            self.remove(key)

    def _create_file(self, key: str) -> int:
        check_key(key, key or self.url)
        try:
            self._claim.make_directories(key)
            path, within = self._claim.path_of(key)
            descriptor = opened(path, CREATE_FLAGS, within=within)
        except FileNotFoundError:
            self._claim.require_mine()
            raise
        try:
            self._wrote(key, 0)
            self._created[key] = identity_of(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def create(self, key: str, buffers: Sequence[memoryview]) -> None:
        """Write a whole new object, exclusively."""
        with translated(key):
            descriptor = self._create_file(key)
            try:
                write_all(descriptor, buffers, 0)
            finally:
                os.close(descriptor)
            self._wrote(key, sum(buffer.nbytes for buffer in buffers))

    def replace(self, key: str, buffers: Sequence[memoryview]) -> None:
        """Write a whole object, whatever lies there: it appears whole."""
        with translated(key):
            check_key(key, key or self.url)
            self._claim.require_mine()
            staged, within = self._claim.path_of(staged_name())
            descriptor = opened(staged, CREATE_FLAGS, within=within)
            try:
                try:
                    write_all(descriptor, buffers, 0)
                finally:
                    os.close(descriptor)
                self._claim.make_directories(key)
                # What takes its place may be given its number.
                self._created.pop(key, None)
                os.replace(staged, self._claim.path_of(key)[0], src_dir_fd=within, dst_dir_fd=within)
            except BaseException:
                with suppress(OSError):
                    os.unlink(staged, dir_fd=within)
                raise
            self._wrote(key, sum(buffer.nbytes for buffer in buffers))

    def require_base(self, base: Objects) -> None:
        """Refuse a base that is no directory."""
        if not isinstance(base, LocalObjects):
            raise error("UCP-E-STORE", NO_LINKS, at=base.url)

    def share(self, key: str, source: Sharable) -> bool:
        """Give a file of another checkpoint this key as well; False where that cannot be, or the path has another file.

        Whoever writes for the same attempt may have done so before.
        """
        if not isinstance(source, LinkSource):
            return False
        check_key(key, key or self.url)
        with translated(key):
            self._claim.make_directories(key)
            path, within = self._claim.path_of(key)
            self._created[key] = source.identity  # before it is: what is not there is nobody's to remove
            if make_link(source, path, within):
                self._wrote(key, 0)
                return True
            del self._created[key]
            return False

    def create_pack(self, key: str) -> LocalPackFile:
        """Begin a new pack."""
        with translated(key):
            descriptor = self._create_file(key)
            durable = self._write_back is not None
            return LocalPackFile(key, descriptor, partial(self._wrote, key), is_durable=durable)

    def _wrote(self, key: str, nbytes: int) -> None:
        if self._write_back is not None:
            self._write_back.wrote(self._root.joinpath(*key.split("/")), nbytes)

    def copy(self, key: str, source: Objects) -> None:
        """Return none: files are copied by writing them."""
        del key, source

    def flush(self, reached: Iterable[str] = (), root: bytes | None = None) -> None:
        """Sync files, every directory that was made or changed, and the draft of the root document, all at once.

        A file system commits them together, so that none waits for another.
        """
        del reached  # nobody removes them while this attempt can commit
        with translated(self.url):
            others = self._claim.syncs(root)
            if self._write_back is None:
                return
            if self._has_begun:
                others.append(partial(sync, self._root.parent))
                if self._above is not None:
                    others.append(partial(sync, self._above))
            try:
                self._write_back.flush(others)
            except FileNotFoundError:
                self._claim.require_mine()
                raise

    def publish(self, data: bytes) -> None:
        """Make a finished, synced file the root document: it appears whole, once, or not at all."""
        with translated(ROOT_KEY):
            self._claim.publish(data, is_durable=self._write_back is not None)

    def withdraw(self) -> bool:
        """Give up the right to commit."""
        return self._claim.withdraw()

    def discard(self) -> bool:
        """Remove the files created through this store, and directories that become empty.

        Nothing is removed where there is a root document, or may be, or where another file has taken a path.
        """
        created, self._created = self._created, {}
        if not self.withdraw():
            return False
        self._claim.remove(created)
        return True

    def close(self) -> None:
        """Close descriptors, and let go of the directory; silent, since nothing hangs on it."""
        self._claim.release()
        if self._write_back is not None:
            self._write_back.close()
        super().close()


_STEP: Final = 64 << 20  # less makes many small requests of it, more leaves the disk idle
_THREADS: Final = 8


class WriteBack:
    """Syncs files in the background, each time that ``step`` bytes more were written.

    A file is left to be synced from a write on until a sync begins that is after it. Safe to use from several threads.
    """

    def __init__(self, step: int | None = None) -> None:
        self._step = _STEP if step is None else step
        self._lock = threading.Lock()
        self._left: dict[Path, int] = {}
        """Files, and how many bytes each was handed, of those that are left."""
        self._waiting = 0
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ucp-write-back")
        self._begun: list[Future[None]] = []

    def wrote(self, path: Path, nbytes: int) -> None:
        """Note that ``nbytes`` more of a file were handed to the operating system; 0 for one that was made."""
        with self._lock:
            self._left[path] = self._left.get(path, 0) + nbytes
            self._waiting += nbytes
            # One at a time: where the disk is slower than memory, the next one takes more.
            if self._waiting >= self._step and (not self._begun or self._begun[-1].done()):
                left, self._left, self._waiting = self._left, {}, 0
                self._begun.append(self._threads.submit(self._sync_early, left))

    def _sync_early(self, paths: Iterable[Path]) -> None:
        for path in paths:
            try:
                sync(path)
            except FileNotFoundError:  # removed, perhaps to be made again: a flush will see
                with self._lock:
                    self._left.setdefault(path, 0)

    def flush(self, others: Iterable[Callable[[], None]] = ()) -> None:
        """Return when all that was noted is on the disk, and each of ``others`` is done, beside it.

        Raises:
            OSError: what any sync met, one in the background as well: the system reports a lost page only once. Any
                later flush raises it again.
        """
        with self._lock:
            # What began early may leave some to be done.
            begun = [*self._begun]
        wait(begun)
        with self._lock:
            left, self._left, self._waiting = self._left, {}, 0
            # First what has most to be written: whatever is asked for meanwhile is committed with it.
            paths = sorted(left, key=left.__getitem__, reverse=True)
            self._begun.extend(self._threads.submit(sync, path) for path in paths)
            self._begun.extend(map(self._threads.submit, others))
            begun = [*self._begun]
        wait(begun)
        for future in begun:
            future.result()
        with self._lock:
            self._begun = self._begun[len(begun) :]

    def close(self) -> None:
        """Begin nothing more; what runs goes on."""
        self._threads.shutdown(wait=False, cancel_futures=True)
