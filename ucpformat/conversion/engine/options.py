"""How a conversion is carried out: memory, which is bounded whatever the size of the model, workers, durability."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ucpformat.conversion.engine.pool import PoolKind
    from ucpformat.model.root import Storage
    from ucpformat.storage.stores.store import Durability

__all__ = ["DEFAULT_MEMORY", "EngineOptions"]

DEFAULT_MEMORY: Final = 1 << 30


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
