"""One task: a batch of chunks copied into a pack of its own, durably; its receipt says where each lies.

A task may be run again, by another worker too: what it stores has a name of its own, and a receipt that is there
already is the answer.
"""

from __future__ import annotations

import atexit
import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import numpy as np

from ucpformat.conversion.engine.pool import MemoryBudget, needed_for
from ucpformat.conversion.engine.work_order import Cut, cut_job, job_digest, require_same
from ucpformat.errors import UcpError
from ucpformat.storage.host_memory import Scratch
from ucpformat.storage.stores.urls import open_target
from ucpformat.storage.writing.chunk_writer import ChunkPiece, PlainChunkWriter
from ucpformat.storage.writing.packed_chunks import PackedChunkWriter
from ucpformat.storage.writing.slot_writer import raw_bytes
from ucpformat.storage.writing.stored_columns import Receipt, StoredColumns

if TYPE_CHECKING:
    from ucpformat.conversion.contract.job import Job
    from ucpformat.conversion.engine.work_order import Batch, Order
    from ucpformat.storage.stores.store import Store
    from ucpformat.storage.writing.chunk_writer import ChunkWriter, StoredChunk

__all__ = [
    "Kept",
    "Workshop",
    "convert_batch",
    "copy_batch",
    "joined_store",
    "objects_of",
    "sealed",
    "unsealed",
]

_T = TypeVar("_T")

_SMALL: Final = 1 << 20
_GATHERED_BYTES: Final = 4 << 20
_GATHERED_PIECES: Final = 256
_SEAL: Final = 32


class Kept(Generic[_T]):
    """One thing, made when it is first asked for, and again where another one is asked for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key = ""
        self._stack = ExitStack()
        self._thing: _T | None = None
        atexit.register(self.close)

    def get(self, key: str, make: Callable[[ExitStack], _T]) -> _T:
        """Return what ``make`` gives, or gave for the same key; what it enters is left when another key comes."""
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


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all tasks of a process share."""

    cut: Cut
    names: Sequence[tuple[str, str]]
    budget: MemoryBudget
    chunk_bytes: int
    scratch: Scratch

    @classmethod
    def of(cls, job: Job, cut: Cut, memory: int) -> Workshop:
        """Return the workshop of an open job that is cut so."""
        names = [(source.atom, source.slot) for source in cut.sources]
        # Kept from task to task: fresh memory costs as much as filling it.
        return cls(cut, names, MemoryBudget(memory), job.chunk_bytes, Scratch(2 * job.chunk_bytes))


_KEPT: Final[Kept[Workshop]] = Kept()


def _open(order: Order, stack: ExitStack) -> Workshop:
    if order.recipe is None:
        raise AssertionError("an order for other processes has a recipe")
    job = stack.enter_context(order.recipe.open()).job
    require_same(order.recipe, job_digest(job), order.digest)
    return Workshop.of(job, cut_job(job), order.memory)


@contextmanager
def joined_store(order: Order) -> Iterator[Store]:
    """Provide the store through a handle of its own: the committing writer does not discard what is created there."""
    store = open_target(order.url, durability=order.durability)
    try:
        store.join()
        yield store
    finally:
        store.close()


def convert_batch(order: Order, batch: Batch) -> bytes:
    """Copy a batch in whatever process this is; returns the receipt.

    Raises:
        UcpError: what opening and reading the source and writing raise.
    """
    workshop = _KEPT.get(f"{order.attempt} {order.digest}", partial(_open, order))
    return copy_batch(workshop, order, batch)


def copy_batch(
    workshop: Workshop, order: Order, batch: Batch, progress: Callable[[int], None] | None = None
) -> bytes:
    """Copy a batch of a job that is open here; returns the receipt (`Receipt.pack`)."""
    with joined_store(order) as store:
        if order.is_journaled and (earlier := _earlier(workshop, store, order, batch)) is not None:
            return earlier
        try:
            receipt = _copy(workshop, order, batch, store, progress)
            store.flush()  # before the receipt, which promises it
        except Exception:
            # Objects of storage plain have the same name whoever writes them: they are the next worker's to replace.
            if order.storage == "packed":
                with suppress(Exception):
                    store.discard()
            raise
        if order.is_journaled:
            # Another worker that did the same, thought dead or not, may have been quicker: both are right, and the
            # pack that is not admitted goes when all is done. Without any receipt the batch would be done again.
            with suppress(UcpError):
                store.replace(order.receipt_key(batch.number), [memoryview(sealed(receipt))])
        return receipt


def _earlier(workshop: Workshop, store: Store, order: Order, batch: Batch) -> bytes | None:
    """Return the receipt of a worker that has done this batch before.

    One that was thought dead may have written it when its objects were removed, for want of a receipt.
    """
    key = order.receipt_key(batch.number)
    size = store.size(key)
    data = None if size is None else unsealed(store.read(key, 0, size))
    if data is None:
        return None
    objects = objects_of(Receipt.unpack(data, workshop.names), workshop.cut)
    return data if all(store.size(name) == length for name, length in objects.items()) else None


def objects_of(receipt: Receipt, cut: Cut) -> dict[str, int]:
    """Return the objects that a receipt speaks of, with their lengths."""
    lengths = {pack.key: pack.length for pack in receipt.packs}
    if not receipt.packs:
        places = {
            (source.atom, source.slot): place for source, place in zip(cut.sources, cut.places, strict=True)
        }
        for name, chunk, stored in receipt.stored.entries():
            if stored.segment is not None:
                place = places[name]
                key = f"{place.prefix()}/{place.grid.key(place.grid.index_of(chunk))}"
                lengths[key] = stored.segment.length
    return lengths


def _copy(
    workshop: Workshop,
    order: Order,
    batch: Batch,
    store: Store,
    progress: Callable[[int], None] | None,
) -> bytes:
    writer: ChunkWriter
    if order.storage == "plain":
        # Another worker, thought dead or not, may have left half an object, or be at work on it.
        writer = PlainChunkWriter(store.replace)
    else:
        name = f"{order.attempt}-{batch.number}-{secrets.token_hex(4)}"
        writer = PackedChunkWriter(store, name=name, packs=1)
    try:
        with workshop.budget.hold(needed_for(workshop.chunk_bytes, store.upload_bytes)):
            copying = _Copying(workshop, writer, progress)
            for run in batch.runs:
                for chunk in range(run.first, run.stop):
                    copying.copy(run.slot, chunk)
            copying.send()
    except BaseException:
        with suppress(Exception):
            writer.abort()
        raise
    return Receipt(writer.finish(), StoredColumns.of(copying.stored, workshop.names), {}).pack()


class _Copying:
    """Copies chunks one by one through one buffer; small ones are gathered, since a call for each costs more."""

    def __init__(
        self, workshop: Workshop, writer: ChunkWriter, progress: Callable[[int], None] | None
    ) -> None:
        self._workshop = workshop
        self._writer = writer
        self._progress = progress
        self._names: list[tuple[str, str]] = []
        self._pieces: list[ChunkPiece] = []
        self._waiting = 0
        self.stored: list[tuple[tuple[str, str], int, StoredChunk]] = []

    def copy(self, slot: int, chunk: int) -> None:
        source, place = self._workshop.cut.sources[slot], self._workshop.cut.places[slot]
        box = place.grid.box_at(chunk)
        nbytes = box.size * place.dtype.item_bytes
        # Small ones wait to be written together.
        memory = np.empty(nbytes, np.uint8) if nbytes < _SMALL else self._workshop.scratch.take(nbytes)
        data = memory[:nbytes].view(place.dtype.numpy).reshape(box.shape)
        source.read(box, data)
        piece = ChunkPiece(place, chunk, None, raw_bytes(data, place.dtype))
        if nbytes < _SMALL:
            self._names.append((source.atom, source.slot))
            self._pieces.append(piece)
            self._waiting += nbytes
            if self._waiting >= _GATHERED_BYTES or len(self._pieces) == _GATHERED_PIECES:
                self.send()
            return
        self._done((source.atom, source.slot), piece, self._writer.write_many([piece])[0])

    def send(self) -> None:
        """Write what waits."""
        names, pieces = self._names, self._pieces
        self._names, self._pieces, self._waiting = [], [], 0
        if pieces:
            for name, piece, stored in zip(names, pieces, self._writer.write_many(pieces), strict=True):
                self._done(name, piece, stored)

    def _done(self, name: tuple[str, str], piece: ChunkPiece, stored: StoredChunk) -> None:
        self.stored.append((name, piece.chunk, stored))
        if self._progress is not None:
            self._progress(piece.data.nbytes)


def sealed(receipt: bytes) -> bytes:
    """Return a receipt as it is kept: a power cut may leave half of one."""
    return hashlib.sha256(receipt).digest() + receipt


def unsealed(data: bytes) -> bytes | None:
    """Return the receipt, None if it is not whole."""
    return data[_SEAL:] if hashlib.sha256(data[_SEAL:]).digest() == data[:_SEAL] else None
