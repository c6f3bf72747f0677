"""What a worker process keeps open between tasks: opening a source reads files, and tasks come one after another."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Generic, TypeVar

__all__ = ["Kept"]

_T = TypeVar("_T")


class Kept(Generic[_T]):
    """One thing, made when it is first asked for, and again where another one is asked for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key = ""
        self._stack = ExitStack()
        self._thing: _T | None = None
        atexit.register(self.close)

    def get(self, key: str, make: Callable[[ExitStack], _T]) -> _T:
        """What ``make`` gives, or gave for the same key; what it enters is left when another key comes."""
        with self._lock:
            if self._thing is None or self._key != key:
                self._stack.close()
                self._thing = None
                self._thing, self._key = make(self._stack), key
            return self._thing

    def close(self) -> None:
        """Leave what was entered."""
        with self._lock:
            self._thing = None
            self._stack.close()
