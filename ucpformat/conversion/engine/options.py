"""How a conversion is carried out: memory, which is bounded whatever the size of the model, workers, durability."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error

if TYPE_CHECKING:
    from ucpformat.conversion.engine.pool import PoolKind
    from ucpformat.model.root import Storage
    from ucpformat.storage.stores.store import Durability

__all__ = ["DEFAULT_MEMORY", "EngineOptions", "MemoryBudget", "needed_for", "workers_within"]

DEFAULT_MEMORY: Final = 1 << 30
_SPAN_BYTES: Final = 36 << 20
"""What a strided read holds (`tensor_files.strided`), small slots that wait, and change."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to write. ``memory``: bytes of buffers over all workers.

    ``pool`` says where tasks run, left out: threads, or processes where Python has much to do. ``dask`` is the address
    of a scheduler, ``executor`` anything that runs picklable calls; both come before ``pool``.
    ``resume`` goes on with what an attempt has left that was interrupted, and leaves as much where this one fails.
    """

    storage: Storage = "packed"
    durability: Durability = "fsync"
    memory: int = DEFAULT_MEMORY
    workers: int | None = None
    pool: PoolKind | None = None
    dask: str | None = None
    executor: Executor | None = None
    resume: bool = False
    batch_bytes: int | None = None
    """What a task copies; left out, a sixty-fourth of all, within 32 MiB and 1 GiB."""


def needed_for(chunk_bytes: int, upload_bytes: int = 0) -> int:
    """Return bytes that copying one chunk may take: its array, one to cast or compare, one to compress, and a span.

    ``upload_bytes`` as the `Store` that it goes to has them.
    """
    return 3 * chunk_bytes + _SPAN_BYTES + upload_bytes


def workers_within(memory: int, wanted: int, chunk_bytes: int, upload_bytes: int = 0) -> int:
    """Return how many workers may each hold a chunk, and have some on its way, at once.

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
