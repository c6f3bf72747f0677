"""Where a run of a state machine lies, a directory or an object store in memory, and what may happen to its writers."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from fsspec.implementations.memory import MemoryFileSystem

from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.remote.store import RemoteStore

__all__ = ["STORES", "Bucket", "Directory", "Killed", "Medium", "before", "killed"]

STORES: Final = (LocalStore, RemoteStore)
_CALLS: Final = ("prepare", "create", "create_pack", "share", "flush", "publish")
_ENDS: Final = ("discard", "withdraw", "remove")


class Directory:
    """A directory of checkpoints on the disk."""

    def __init__(self) -> None:
        self._path = Path(tempfile.mkdtemp(prefix="ucp-increments-"))
        self.url = str(self._path)

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def remove(self, path: str) -> None:
        shutil.rmtree(path)

    def files(self, path: str) -> list[str]:
        """Return all but the root document."""
        found = (str(one) for one in Path(path).rglob("*") if one.is_file())
        return sorted(one for one in found if not one.endswith("ucp.json"))

    def damage(self, file: str, place: int) -> None:
        """Replace a file by one of which a bit is changed: whoever shares it has the old one."""
        data = _changed(Path(file).read_bytes(), place)
        Path(file).unlink()
        Path(file).write_bytes(data)

    def shares_nothing(self, path: str) -> bool:
        return all(one.stat().st_nlink == 1 for one in Path(path).rglob("*") if one.is_file())

    def close(self) -> None:
        shutil.rmtree(self._path)


class Bucket:
    """A prefix of an object store, in which every object stands alone."""

    def __init__(self) -> None:
        self.url = f"memory://{uuid4().hex}"
        self._files = MemoryFileSystem()

    def exists(self, path: str) -> bool:
        """Say so of objects: a directory that they have left is none."""
        return bool(self._files.find(path)) if self._files.exists(path) else False

    def remove(self, path: str) -> None:
        self._files.rm(path, recursive=True)

    def files(self, path: str) -> list[str]:
        return sorted(one for one in self._files.find(path) if not one.endswith("ucp.json"))

    def damage(self, file: str, place: int) -> None:
        self._files.pipe_file(file, _changed(self._files.cat_file(file), place))

    def shares_nothing(self, path: str) -> bool:
        return True

    def close(self) -> None:
        if self._files.exists(self.url):
            self._files.rm(self.url, recursive=True)


Medium = Directory | Bucket


def _changed(data: bytes, place: int) -> bytes:
    found = bytearray(data)
    found[place % len(found)] ^= 0x40
    return bytes(found)


class Killed(BaseException):
    """The process is no more: it cleans nothing up."""


@contextmanager
def killed(call: int, *, is_done: bool) -> Iterator[None]:
    """Kill whoever writes at so many calls of its store, before the call or, if it ``is_done``, behind it."""
    lock = threading.Lock()
    left = call
    is_dead = False

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(self: Any, *args: Any, **options: Any) -> Any:
            nonlocal left, is_dead
            with lock:
                left -= 1
                is_last = left == 0 and not is_dead
                is_dead = is_dead or is_last
                is_late = is_dead and not is_last
            if is_late or (is_last and not is_done):
                raise Killed
            found = real(self, *args, **options)
            if is_last:
                raise Killed
            return found

        return act

    def ending(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(self: Any, *args: Any, **options: Any) -> Any:
            if is_dead:
                self.close()  # as the system does with what a process has open
                raise Killed
            return real(self, *args, **options)

        return act

    with _patched(_CALLS, dying), _patched(_ENDS, ending):
        yield


@contextmanager
def before(name: str, call: int, act: Callable[[], None]) -> Iterator[None]:
    """Do something once, before so many calls of this method of a store; what it calls itself does not count."""
    lock = threading.Lock()
    left = call

    def acting(real: Callable[..., Any]) -> Callable[..., Any]:
        def done(self: Any, *args: Any, **options: Any) -> Any:
            nonlocal left
            with lock:
                left -= 1
                is_it = left == 0
            if is_it:
                act()
            return real(self, *args, **options)

        return done

    with _patched((name,), acting):
        yield


@contextmanager
def _patched(
    names: tuple[str, ...], change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    changed = [(store, name) for store in STORES for name in names]
    real = {(store, name): getattr(store, name) for store, name in changed}
    for store, name in changed:
        setattr(store, name, change(real[store, name]))
    try:
        yield
    finally:
        for (store, name), one in real.items():
            setattr(store, name, one)
