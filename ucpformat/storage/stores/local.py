"""Local directories: exclusive creation, vectored I/O, late syncing, atomic publication (SPEC section 8)."""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.errors import UcpError, error
from ucpformat.model.names import check_key
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.stores.directory_claim import DirectoryClaim
from ucpformat.storage.stores.draft import is_staged, staged_name
from ucpformat.storage.stores.joined_mapping import fit_pages, joined
from ucpformat.storage.stores.linking import NO_LINKS, LinkSource, make_link
from ucpformat.storage.stores.local_files import KeptFiles, Mappings, OpenFile, WriteBack, populated
from ucpformat.storage.stores.local_io import (
    CREATE_FLAGS,
    MISSING,
    READ_FLAGS,
    Identity,
    identity_of,
    is_ours_alone,
    make_parents,
    opened,
    read_all,
    read_at,
    require_commits,
    require_length,
    require_regular,
    sync,
    translated,
    write_all,
)
from ucpformat.storage.stores.local_pack import LocalPackFile
from ucpformat.storage.stores.store import Calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ucpformat.model.root import Storage
    from ucpformat.storage.stores.sharing import Sharable
    from ucpformat.storage.stores.store import Durability, Store, StoredRange

__all__ = ["LocalStore"]

_OPEN_PACKS: Final = 64
_JUNCTION: Final = getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", -1)  # a link to a directory, on Windows
_MAPPED_BYTES: Final = 1 << 21  # less costs more to map than to copy
_PIECE_BYTES: Final = 1 << 23
_ONE_CALL: Final = 1 << 30  # the operating system gives at most 2 GiB at a time


class LocalStore:
    """A checkpoint in a directory. The directory itself may be reached through links, nothing below it."""

    # A block fits the processor's cache; alignment leaves gaps of up to 4096 bytes.
    calls = Calls(at_once=None, window=1 << 20, gap=4096)
    packs_at_once = 2
    packs_have_rooms = True
    upload_bytes = 0
    glimpse_bytes = 1 << 26  # whoever comes back from the system has to wait for other threads of Python
    writers_wait = False  # the page cache takes what they write, and the disk is at work meanwhile

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "fsync") -> None:
        self._write_back = WriteBack() if durability == "fsync" else None
        self._root = Path(path).absolute()
        self._plain_directories: set[Path] = {self._root}
        self._created: dict[str, Identity] = {}
        self._has_begun = False
        self._packs = KeptFiles(_OPEN_PACKS)
        self._mappings = Mappings()
        self._claim = DirectoryClaim(self._root)

    @property
    def url(self) -> str:
        """The directory."""
        return str(self._root)

    def _locate(self, key: str) -> Path:
        """Return path of a key whose directories are known to be directories and no links."""
        check_key(key, key or self.url)
        path = self._root.joinpath(*key.split("/"))
        unchecked = []
        directory = path.parent
        while directory not in self._plain_directories:
            unchecked.append(directory)
            directory = directory.parent
        for directory in reversed(unchecked):
            status = directory.lstat()
            mode = status.st_mode
            if stat.S_ISLNK(mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION:
                raise error("UCP-E-LINK", "a symbolic link is not followed inside a checkpoint", at=key)
            if not stat.S_ISDIR(mode):
                raise NotADirectoryError(directory)
            self._plain_directories.add(directory)
        return path

    def size(self, key: str) -> int | None:
        """Return length of an object in bytes, or None if there is none."""
        with translated(key):
            try:
                status = self._locate(key).lstat()
            except FileNotFoundError:
                return None
            except NotADirectoryError:
                if self._root.is_dir():
                    raise
                return None
            require_regular(status.st_mode, key)
            return status.st_size

    @contextmanager
    def _reading(self, key: str) -> Iterator[int]:
        """Provide a descriptor for reading; those of packs stay open, since many segments lie in one."""
        is_pack = key.startswith("packs/")
        if is_pack and (kept := self._packs.get(key)) is not None:
            yield kept
            return
        path = self._locate(key)
        if not hasattr(os, "O_NOFOLLOW"):
            require_regular(path.lstat().st_mode, key)
        file = OpenFile(opened(path, READ_FLAGS))
        try:
            require_regular(os.fstat(file.descriptor).st_mode, key)
            if is_pack:
                self._packs.offer(key, file)
            yield file.descriptor
        finally:
            if not self._packs.has(key, file):
                os.close(file.descriptor)

    def head(self, key: str, most: int) -> bytes | None:
        """Return the first ``most`` bytes of an object, or all where it has fewer; None if there is none."""
        with translated(key):
            try:
                with self._reading(key) as descriptor:
                    size = min(most, os.fstat(descriptor).st_size)
                    return self.read(key, 0, size) if size > _ONE_CALL else read_at(descriptor, size, 0)
            except FileNotFoundError:
                return None
            except NotADirectoryError:
                if self._root.is_dir():
                    raise
                return None

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)`` of an object."""
        with translated(key), self._reading(key) as descriptor:
            # Before memory is taken for what may not be there (SPEC UCP-S-002).
            require_length(descriptor, stop, key)
            data = read_at(descriptor, min(stop - start, _ONE_CALL), start)
            if len(data) == stop - start:
                return data
            # The operating system gives at most 2 GiB at a time.
            rest = bytearray(stop - start - len(data))
            read_all(descriptor, [memoryview(rest)], start + len(data), key)
            return data + rest

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers, one after another, from byte ``start`` on."""
        with translated(key), self._reading(key) as descriptor:
            read_all(descriptor, buffers, start, key)

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield all bytes of an object, in order."""
        size = self.size(key)
        if size is None:
            raise error("UCP-E-MISSING", MISSING, at=key)
        for start in range(0, size, _PIECE_BYTES):
            yield self.read(key, start, min(start + _PIECE_BYTES, size))

    @contextmanager
    def _having(self, key: str, stop: int) -> Iterator[int]:
        """Provide a descriptor of an object of so many bytes at least."""
        with translated(key), self._reading(key) as descriptor:
            require_length(descriptor, stop, key)
            yield descriptor

    def mapped(self, key: str, start: int, stop: int) -> memoryview:
        """Return bytes ``[start, stop)`` of an object, mapped for as long as a view of any of them is kept."""
        with self._having(key, stop) as descriptor:
            return self._mappings.view(key, descriptor, start, stop, keep=key.startswith("packs/"))

    def mapped_together(self, parts: Sequence[StoredRange]) -> memoryview | None:
        """Return the parts mapped one behind the other, zeros for those without a key; None where they fit no pages."""
        return joined(parts, self._having) if fit_pages(parts) else None

    @contextmanager
    def glimpse(self, key: str, start: int, stop: int) -> Iterator[memoryview | None]:
        """Provide bytes ``[start, stop)`` of an object, mapped where they are worth it and surely there.

        Whoever cuts a file ends a process that looks at it. So one that others may write to is read.
        """
        data: memoryview | None = None
        with ExitStack() as stack:
            if stop - start >= _MAPPED_BYTES:
                with suppress(UcpError, OSError), self._reading(key) as descriptor:
                    if is_ours_alone(os.fstat(descriptor)):
                        view = self.mapped(key, start, stop)
                        stack.enter_context(populated(view))
                        data = view
            yield data

    def keys(self) -> Iterator[str]:
        """Yield keys of everything below the directory but the draft of this attempt; links are not followed."""
        with translated(self.url):
            if not self._root.is_dir():
                return
            for directory, names, files in os.walk(self._root):
                base = Path(directory)
                if base == self._root and self._claim.draft in files:
                    files.remove(self._claim.draft)
                for name in files + [name for name in names if (base / name).is_symlink()]:
                    yield (base / name).relative_to(self._root).as_posix()

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
            make_parents(self._root, is_durable=self._write_back is not None)
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
            place, within = self._claim.place(key)
            descriptor = opened(place, CREATE_FLAGS, within=within)
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
            staged, within = self._claim.place(staged_name())
            descriptor = opened(staged, CREATE_FLAGS, within=within)
            try:
                try:
                    write_all(descriptor, buffers, 0)
                finally:
                    os.close(descriptor)
                self._claim.make_directories(key)
                # What takes its place may be given its number.
                self._created.pop(key, None)
                os.replace(staged, self._claim.place(key)[0], src_dir_fd=within, dst_dir_fd=within)
            except BaseException:
                with suppress(OSError):
                    os.unlink(staged, dir_fd=within)
                raise
            self._wrote(key, sum(buffer.nbytes for buffer in buffers))

    @contextmanager
    def sharable(self, key: str) -> Iterator[LinkSource]:
        """Provide an object that another store may link to, open."""
        with translated(key), self._reading(key) as descriptor:
            yield LinkSource(self._locate(key), descriptor)

    def require_base(self, base: Store) -> None:
        """Refuse a base that is no directory."""
        if not isinstance(base, LocalStore):
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
            place, within = self._claim.place(key)
            self._created[key] = source.identity  # before it is: what is not there is nobody's to remove
            if make_link(source, place, within):
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

    def flush(self, reached: Iterable[str] = ()) -> None:
        """Sync files, several at a time, and then every directory that was made or changed."""
        del reached  # nobody removes them while this attempt can commit
        if self._write_back is None:
            return
        with translated(self.url):
            try:
                self._write_back.flush()
                self._claim.sync_directories()
                if self._has_begun:
                    sync(self._root.parent)
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
        """Close the descriptors of packs, and let go of the directory; silent, since nothing hangs on it."""
        self._claim.release()
        self._mappings.forget()
        if self._write_back is not None:
            self._write_back.close()
        self._packs.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()
