"""An object store in memory with the requests that remote stores send, each of them a point of a schedule.

It keeps to conditions and lists what is there, as S3 does. Requests may fail, be done without an answer, and be done
later, when nobody waits for them any more.
"""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.simulation.schedule import Schedule

__all__ = ["ObjectStore"]

_FAULTS = ("error", "error, done", "error, done later", "done twice", "Ctrl-C, done", "death")


@dataclass
class ObjectStore:
    """Stands for an fsspec file system: what `RemoteStore` and `RemotePlace` use of one."""

    schedule: Schedule
    is_conditional: bool = True
    objects: dict[str, bytes] = field(default_factory=dict)
    changed: dict[str, float] = field(default_factory=dict)
    """When each object was made, in seconds."""
    marks: dict[str, int] = field(default_factory=dict)
    """Entity tags."""
    numbers: Iterator[int] = field(default_factory=count)
    now: float = 0.0
    protocol: tuple[str, ...] = ("gs",)
    removed: list[bytes] = field(default_factory=list)
    """Contents of the root documents that were removed."""
    waiting: dict[int, str] = field(default_factory=dict)
    """The request that each actor is about to send."""

    def _request(self, name: str, act: Callable[[], Any]) -> Any:
        actor = self.schedule.current
        self.waiting[actor] = name
        self.schedule.point(name)
        del self.waiting[actor]
        fault = self.schedule.fault(_FAULTS)
        if fault == "death":
            self.schedule.kill()
        if fault == "error":
            raise ConnectionError("injected")
        if fault == "error, done later":
            self.schedule.later(lambda: _quietly(act))
            raise ConnectionError("no answer")
        result = act()
        self.schedule.done()
        if fault == "done twice":  # a client repeats a request whose answer was lost
            result = act()
            self.schedule.done()
        if fault == "error, done":
            raise ConnectionError("the answer was lost")
        if fault == "Ctrl-C, done":
            raise KeyboardInterrupt
        return result

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        """Put an object."""

        def act() -> None:
            if mode == "create" and self.is_conditional and path in self.objects:
                raise FileExistsError(path)
            self._put(path, bytes(value))

        self._request(f"put {path} ({mode})", act)

    def open(self, path: str, mode: str, **options: object) -> _Stream:
        """A pack: put when it is closed."""
        return _Stream(self, path)

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        """Read a range of an object."""

        def act() -> bytes:
            if path not in self.objects:
                raise FileNotFoundError(path)
            return self.objects[path][start:end]

        result: bytes = self._request(f"get {path}", act)
        return result

    def find(self, path: str, *, detail: bool = False) -> Any:
        """List, with sizes and marks if ``detail``."""
        prefix = path.rstrip("/") + "/"

        def act() -> Any:
            found = [key for key in self.objects if key.startswith(prefix)]
            return {key: self._facts(key) for key in found} if detail else found

        return self._request("list", act)

    def _facts(self, path: str) -> dict[str, Any]:
        return {"size": len(self.objects[path]), "ETag": self.marks[path]}

    def info(self, path: str) -> dict[str, Any]:
        """Look at an object, and its mark."""

        def act() -> dict[str, Any]:
            if path not in self.objects:
                raise FileNotFoundError(path)
            return self._facts(path)

        result: dict[str, Any] = self._request(f"look at {path}", act)
        return result

    def cp_file(self, source: str, path: str) -> None:
        """Copy whatever has the path by then, whatever has the other one."""

        def act() -> None:
            if source not in self.objects:
                raise FileNotFoundError(source)
            self._put(path, self.objects[source])

        self._request(f"put {path} (copy)", act)

    def _put(self, path: str, value: bytes) -> None:
        self.objects[path] = value
        self.changed[path] = self.now
        self.marks[path] = next(self.numbers)

    def exists(self, path: str) -> bool:
        """Whether anything is below a path; asked for with a listing."""
        return True

    def modified(self, path: str) -> datetime.datetime:
        """When an object was made."""

        def act() -> datetime.datetime:
            if path not in self.objects:
                raise FileNotFoundError(path)
            return datetime.datetime.fromtimestamp(self.changed[path], datetime.UTC)

        result: datetime.datetime = self._request(f"look at {path}", act)
        return result

    def size(self, path: str) -> int:
        """Look at an object."""

        def act() -> int:
            if path not in self.objects:
                raise FileNotFoundError(path)
            return len(self.objects[path])

        result: int = self._request(f"look at {path}", act)
        return result

    def rm_file(self, path: str) -> None:
        """Remove an object; silent where there is none, as S3 is."""

        def act() -> None:
            data = self.objects.pop(path, None)
            if data is not None and path.endswith("/ucp.json"):
                self.removed.append(data)

        self._request(f"remove {path}", act)

    def rm(self, paths: list[str]) -> None:
        """Remove one after another."""
        for path in paths:
            self.rm_file(path)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Nothing is kept."""

    @staticmethod
    def _strip_protocol(path: str) -> str:
        return path

    @staticmethod
    def _parent(path: str) -> str:
        return path.rpartition("/")[0]


class _Stream(io.BytesIO):
    def __init__(self, store: ObjectStore, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path

    def close(self) -> None:
        """Put what was written."""
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._store.pipe_file(self._path, data)


def _quietly(act: Callable[[], Any]) -> None:
    with suppress(OSError):
        act()
