"""Local directories: exclusive creation, vectored I/O, late syncing, atomic publication (SPEC section 8)."""

from __future__ import annotations

import errno
import os
import stat
import threading
import uuid
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.errors import UcpError, error
from ucpformat.model.names import check_key
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.directory_claim import STAGED, DirectoryClaim, is_staged
from ucpformat.storage.local_io import read_all, sync, translated, write_all
from ucpformat.storage.local_pack import LocalPackFile
from ucpformat.storage.mappings import Mappings, populated
from ucpformat.storage.store import Calls
from ucpformat.storage.write_back import WriteBack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ucpformat.storage.store import Durability

__all__ = ["LocalStore"]

_READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_OPEN_PACKS: Final = 64
_MAPPED_BYTES: Final = 1 << 21  # less costs more to map than to copy
_PIECE_BYTES: Final = 1 << 23
_ONE_CALL: Final = 1 << 30  # the operating system gives at most 2 GiB at a time


_Identity = tuple[int, int]


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


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
        self._created: dict[Path, _Identity] = {}
        self._made_directories: dict[Path, None] = {}
        self._descriptors: dict[str, int] = {}
        self._mappings = Mappings()
        self._lock = threading.RLock()
        self._claim = DirectoryClaim(self._root)
        self._published = False

    @property
    def url(self) -> str:
        """The directory."""
        return str(self._root)

    def _locate(self, key: str) -> Path:
        """Path of a key whose directories are known to be directories and no links."""
        check_key(key, key or self.url)
        path = self._root.joinpath(*key.split("/"))
        unchecked = []
        directory = path.parent
        while directory not in self._plain_directories:
            unchecked.append(directory)
            directory = directory.parent
        for directory in reversed(unchecked):
            mode = directory.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise error("UCP-E-LINK", "a symbolic link is not followed inside a checkpoint", at=key)
            if not stat.S_ISDIR(mode):
                raise NotADirectoryError(directory)
            self._plain_directories.add(directory)
        return path

    def size(self, key: str) -> int | None:
        """Length of an object in bytes, or None if there is none."""
        with translated(key):
            try:
                status = self._locate(key).lstat()
            except FileNotFoundError:
                return None
            except NotADirectoryError:
                if self._root.is_dir():
                    raise
                return None
            self._require_regular(status.st_mode, key)
            return status.st_size

    @staticmethod
    def _require_regular(mode: int, key: str) -> None:
        if not stat.S_ISREG(mode):
            raise error("UCP-E-LINK", "only a regular file may lie here", at=key)

    @staticmethod
    def _require_length(descriptor: int, stop: int, key: str) -> None:
        size = os.fstat(descriptor).st_size
        if size < stop:
            raise error("UCP-E-LENGTH", f"the object ends at byte {size}, before {stop}", at=key)

    @contextmanager
    def _reading(self, key: str) -> Iterator[int]:
        """A descriptor for reading; those of packs stay open, since many segments lie in one."""
        kept = key.startswith("packs/")
        if kept:
            with self._lock:
                descriptor = self._descriptors.get(key)
            if descriptor is not None:
                yield descriptor
                return
        descriptor = os.open(self._locate(key), _READ_FLAGS)
        try:
            self._require_regular(os.fstat(descriptor).st_mode, key)
            if kept:
                with self._lock:
                    if len(self._descriptors) < _OPEN_PACKS and key not in self._descriptors:
                        self._descriptors[key] = descriptor
                    else:
                        kept = False
            yield descriptor
        finally:
            if not (kept and self._descriptors.get(key) == descriptor):
                os.close(descriptor)

    def head(self, key: str, most: int) -> bytes | None:
        """The first ``most`` bytes of an object, or all where it has fewer; None if there is none."""
        with translated(key):
            try:
                with self._reading(key) as descriptor:
                    size = min(most, os.fstat(descriptor).st_size)
                    return self.read(key, 0, size) if size > _ONE_CALL else os.pread(descriptor, size, 0)
            except FileNotFoundError:
                return None
            except NotADirectoryError:
                if self._root.is_dir():
                    raise
                return None

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Bytes ``[start, stop)`` of an object."""
        with translated(key), self._reading(key) as descriptor:
            # Before memory is taken for what may not be there (SPEC UCP-S-003).
            self._require_length(descriptor, stop, key)
            data = os.pread(descriptor, stop - start, start)
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
        """All bytes of an object, in order."""
        size = self.size(key)
        if size is None:
            raise error("UCP-E-MISSING", "the object is missing; the checkpoint is damaged", at=key)
        for start in range(0, size, _PIECE_BYTES):
            yield self.read(key, start, min(start + _PIECE_BYTES, size))

    def mapped(self, key: str, start: int, stop: int) -> memoryview:
        """Bytes ``[start, stop)`` of an object where they lie, mapped for as long as a view of any of them is kept."""
        with translated(key), self._reading(key) as descriptor:
            self._require_length(descriptor, stop, key)
            return self._mappings.view(key, descriptor, start, stop, keep=key.startswith("packs/"))

    @contextmanager
    def glimpse(self, key: str, start: int, stop: int) -> Iterator[memoryview | None]:
        """Bytes ``[start, stop)`` of an object, mapped where they are worth it and surely there."""
        data: memoryview | None = None
        with ExitStack() as stack:
            if stop - start >= _MAPPED_BYTES:
                with suppress(UcpError, OSError):
                    view = self.mapped(key, start, stop)
                    stack.enter_context(populated(view))
                    data = view
            yield data

    def keys(self) -> Iterator[str]:
        """Keys of everything below the directory, links and special files included; links are not followed."""
        with translated(self.url):
            if not self._root.is_dir():
                return
            for directory, names, files in os.walk(self._root):
                base = Path(directory)
                for name in files + [name for name in names if (base / name).is_symlink()]:
                    yield (base / name).relative_to(self._root).as_posix()

    def prepare(self) -> None:
        """Make an empty directory; debris of an uncommitted attempt is moved aside and removed."""
        with translated(self.url):
            self._begin()
            self._claim.clear_debris()

    def resume(self) -> None:
        """Lock the directory, and leave what lies there."""
        with translated(self.url):
            self._begin()
            self._claim.require_no_other()

    def _begin(self) -> None:
        self._make_directories(self._root.parent)
        with suppress(FileExistsError):
            self._root.mkdir()
        self._claim.hold()
        self._made_directories[self._root] = None
        self._made_directories[self._root.parent] = None

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
                self._made_directories.pop(parent, None)

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
        self._made_directories[self._root] = None

    def _make_directories(self, directory: Path) -> None:
        missing = []
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for directory in reversed(missing):
            with suppress(FileExistsError):
                directory.mkdir()
            with self._lock:
                self._made_directories[directory] = None
                self._made_directories[directory.parent] = None

    def _require_directory(self, directory: Path) -> None:
        if directory not in self._made_directories:
            self._make_directories(directory)
            with self._lock:
                self._made_directories[directory] = None

    def _create_file(self, key: str) -> tuple[Path, int]:
        check_key(key, key or self.url)
        self._claim.require_mine()
        path = self._root.joinpath(*key.split("/"))
        self._require_directory(path.parent)
        descriptor = os.open(path, _CREATE_FLAGS, 0o666)
        self._wrote(path, 0)
        with self._lock:
            self._created[path] = _identity(os.fstat(descriptor))
        return path, descriptor

    def create(self, key: str, buffers: Sequence[memoryview]) -> None:
        """Write a whole new object, exclusively."""
        with translated(key):
            path, descriptor = self._create_file(key)
            try:
                write_all(descriptor, buffers, 0)
            finally:
                os.close(descriptor)
            self._wrote(path, sum(buffer.nbytes for buffer in buffers))

    def replace(self, key: str, buffers: Sequence[memoryview]) -> None:
        """Write a whole object, whatever lies there: it appears whole."""
        with translated(key):
            check_key(key, key or self.url)
            path = self._root.joinpath(*key.split("/"))
            with self._staged(buffers) as (staged, _):
                self._require_directory(path.parent)
                with self._lock:
                    # What takes its place may be given its number.
                    self._created.pop(path, None)
                staged.replace(path)
            self._wrote(path, sum(buffer.nbytes for buffer in buffers))

    def create_pack(self, key: str) -> LocalPackFile:
        """Begin a new pack."""
        with translated(key):
            path, descriptor = self._create_file(key)
            durable = self._write_back is not None
            return LocalPackFile(key, descriptor, partial(self._wrote, path), is_durable=durable)

    def _wrote(self, path: Path, nbytes: int) -> None:
        if self._write_back is not None:
            self._write_back.wrote(path, nbytes)

    def flush(self) -> None:
        """Sync files, several at a time, and then every directory that was made or changed."""
        if self._write_back is None:
            return
        with translated(self.url):
            self._write_back.flush()
            for directory in self._made_directories:
                sync(directory)

    def publish(self, data: bytes) -> None:
        """Link a finished, synced file under the root's name: it appears whole, once, or not at all."""
        with translated(ROOT_KEY):
            with self._staged([memoryview(data)]) as (staged, descriptor):
                if self._write_back is not None:
                    os.fsync(descriptor)
                self._link(staged)
                self._published = True
            if self._write_back is not None:
                sync(self._root)

    @contextmanager
    def _staged(self, buffers: Sequence[memoryview]) -> Iterator[tuple[Path, int]]:
        """A file with these bytes under a name that everybody takes for debris."""
        self._claim.require_mine()
        staged = self._root / f"{STAGED}{uuid.uuid4().hex}"
        descriptor = os.open(staged, _CREATE_FLAGS, 0o666)
        try:
            write_all(descriptor, buffers, 0)
            yield staged, descriptor
        finally:
            os.close(descriptor)
            with suppress(OSError):
                staged.unlink(missing_ok=True)

    def _link(self, staged: Path) -> None:
        target = self._root / ROOT_KEY
        try:
            os.link(staged, target)
        except OSError as reason:
            if reason.errno == errno.EEXIST and target.samefile(staged):
                return  # a network file system that lost its answer and tried again
            if reason.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            # Without hard links the check and the rename are two steps: exclusive among careful writers only.
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from reason
            staged.rename(target)

    def discard(self) -> None:
        """Remove the files created through this store, and directories that become empty.

        Nothing is removed once the root was published, or where another file has taken a path meanwhile.
        """
        created, self._created = self._created, {}
        if self._published or not self._claim.is_mine():
            return
        directories = {self._root}
        for path, identity in created.items():
            with suppress(OSError):
                if _identity(path.lstat()) == identity:
                    path.unlink()
            directories.update(parent for parent in path.parents if self._root in parent.parents)
        for directory in sorted(directories, key=lambda path: -len(path.parts)):
            with suppress(OSError):
                directory.rmdir()

    def close(self) -> None:
        """Close the descriptors of packs, and let go of the directory."""
        self._claim.release()
        self._mappings.forget()
        if self._write_back is not None:
            self._write_back.close()
        with self._lock:
            descriptors, self._descriptors = self._descriptors, {}
        for descriptor in descriptors.values():
            os.close(descriptor)

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()
