"""Pauses of Python's cycle collector while many objects are made that stay or hold no cycles.

A document of 10,000 atoms makes some 100,000 of them, and the collector walks all that are alive again and again
in the meantime: over half of the time of opening or saving such a checkpoint where a program has torch loaded.
"""

from __future__ import annotations

import gc
import threading
from contextlib import AbstractContextManager
from typing import Final

__all__ = ["paused"]


class _Pauses(AbstractContextManager[None]):
    """Pauses that overlap, of all threads; may be entered again and again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if self._count == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._was_enabled:
                gc.enable()


paused: Final = _Pauses()
"""Pauses it, in all threads, until the last of the pauses that overlap ends; one that is off stays off."""
