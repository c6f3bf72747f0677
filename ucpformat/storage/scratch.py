"""Memory that a thread reads into again and again: new pages cost as much as what is read into them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ALIGNMENT", "Scratch", "aligned"]

ALIGNMENT: Final = 4096
"""Bytes: what devices take data from without a copy."""
_KEPT_BYTES: Final = 1 << 23


def aligned(memory: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    """The first ``nbytes`` of a run of bytes that begin at a multiple of `ALIGNMENT`; it has as many more to spare."""
    return memory[-memory.ctypes.data % ALIGNMENT :][:nbytes]


class Scratch:
    """Memory of each thread's own, aligned; up to ``kept_bytes`` of it are kept until the thread ends."""

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._own = threading.local()

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """At least so many bytes, with anything in them, until this thread asks again."""
        found: NDArray[np.uint8] | None = getattr(self._own, "memory", None)
        if found is None or found.nbytes < nbytes:
            found = aligned(np.empty(nbytes + ALIGNMENT, np.uint8), nbytes)
            if nbytes <= self._kept_bytes:
                self._own.memory = found
        return found
