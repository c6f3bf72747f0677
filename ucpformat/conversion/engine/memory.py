"""A bound on the memory of a conversion, which holds whatever the size of the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ucpformat.errors import error

__all__ = ["DEFAULT_MEMORY", "MemoryBudget", "needed_for", "workers_within"]

DEFAULT_MEMORY: Final = 1 << 30

_SPAN_BYTES: Final = (
    36 << 20
)  # what a strided read holds (torch_dcp.strided), small slots that wait, and change


def needed_for(chunk_bytes: int, upload_bytes: int = 0) -> int:
    """Bytes that copying one chunk may take: its array, one to cast or compare, one to compress, and a span.

    ``upload_bytes`` as the `Store` that it goes to has them.
    """
    return 3 * chunk_bytes + _SPAN_BYTES + upload_bytes


def workers_within(memory: int, wanted: int, chunk_bytes: int, upload_bytes: int = 0) -> int:
    """How many workers may each hold a chunk, and have some on its way, at once.

    Raises:
        UcpError: ``UCP-E-LIMIT`` where not one may.
    """
    need = needed_for(chunk_bytes, upload_bytes)
    if memory < need:
        uploads = f", and uploads {upload_bytes} of them" if upload_bytes else ""
        raise error(
            "UCP-E-LIMIT",
            f"chunks of {chunk_bytes} bytes take {need} bytes of memory{uploads}, and {memory} are allowed; "
            f"give --memory {-(-need >> 20)}M or more",
        )
    return max(1, min(wanted, memory // need))


class MemoryBudget:
    """Bytes that the threads of a process may hold together; ``peak`` is the most they did."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.peak = 0
        self._held = 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, nbytes: int) -> Iterator[None]:
        """Wait until so many bytes are free, and hold them."""
        nbytes = min(nbytes, self.limit)
        with self._changed:
            self._changed.wait_for(lambda: self._held + nbytes <= self.limit)
            self._held += nbytes
            self.peak = max(self.peak, self._held)
        try:
            yield
        finally:
            with self._changed:
                self._held -= nbytes
                self._changed.notify_all()
