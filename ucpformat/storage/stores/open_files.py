"""Files that stay open between reads, since many segments lie in one pack."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["KeptFiles", "OpenFile"]


@dataclass(eq=False, slots=True)
class OpenFile:
    """A descriptor, which is closed by whoever holds the file: its opener, or `KeptFiles` once that has it."""

    descriptor: int


class KeptFiles:
    """At most ``most`` open files, by the key of the object, until `close`; any thread may call its methods."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: dict[str, OpenFile] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def get(self, key: str) -> int | None:
        """Return the descriptor that is kept for an object, if there is one."""
        with self._lock:
            file = None if self._is_closed else self._files.get(key)
        return None if file is None else file.descriptor

    def offer(self, key: str, file: OpenFile) -> None:
        """Keep a file, unless there are enough, or there is one of this key."""
        with self._lock:
            if not self._is_closed and len(self._files) < self._most:
                self._files.setdefault(key, file)

    def has(self, key: str, file: OpenFile) -> bool:
        """Say whether a file is kept, or was until `close`: whoever has opened it does not close it then.

        It is asked and not remembered, since a signal may come between `offer` and what is done next.
        """
        return self._files.get(key) is file

    def close(self) -> None:
        """Close all files; none is kept from now on, of threads that still read either."""
        with self._lock:
            files = () if self._is_closed else (*self._files.values(),)
            self._is_closed = True
        for file in files:
            with suppress(OSError):
                os.close(file.descriptor)
