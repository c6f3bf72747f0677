"""One conversion into a universal checkpoint: plan, hand out batches, gather receipts, commit (SPEC 17.4).

Nothing is visible before the root document is published. What is finished when a conversion is interrupted stays,
with its receipts, and a later one goes on from there (`journal`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from ucpformat.conversion.engine import journal
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.conversion.engine.pool import Pool, open_pool, run_tasks, workers_within
from ucpformat.conversion.engine.work_order import (
    Batch,
    Order,
    batch_size,
    batches,
    cut_job,
    job_digest,
    url_of,
)
from ucpformat.conversion.engine.worker import Workshop, convert_batch, copy_batch
from ucpformat.errors import error
from ucpformat.storage.stores.urls import open_target
from ucpformat.storage.writing.stored_columns import Receipt
from ucpformat.writer import CheckpointWriter

if TYPE_CHECKING:
    from ucpformat.conversion.contract.job import Job
    from ucpformat.conversion.engine.work_order import Recipe
    from ucpformat.storage.stores.store import Store

__all__ = ["Engine", "EngineOptions"]

_SLOT_SECONDS: Final = 3e-4  # of Python, which threads share, for a chunk
_BYTES_PER_SECOND: Final = 1e9  # of everything else, which they do not
_WORTH_PROCESSES: Final = 5.0  # seconds of Python: starting processes costs one or two


class Engine:
    """One attempt to write a job. ``recipe`` is how other processes come to it; without one all is done in threads."""

    def __init__(
        self,
        job: Job,
        url: str | os.PathLike[str],
        options: EngineOptions,
        recipe: Recipe | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._job = job
        self._url = url_of(url)
        self._options = options
        self._recipe = recipe
        self._progress = progress or (lambda _: None)
        self._cut = cut_job(job)
        self._batches = list(batches(self._cut.places, options.batch_bytes or batch_size(job.nbytes)))
        self._packs: set[str] = set()
        self._names = [(source.atom, source.slot) for source in self._cut.sources]
        if options.resume and recipe is None:
            raise error("UCP-E-STORE", "a job that only this process knows cannot be resumed by another one")

    def run(self) -> str:
        """Write and commit; returns the root digest.

        Raises:
            UcpError: what the source, the workers and the store raise; nothing is visible then.
        """
        with self._pool() as pool:
            if not self._options.resume:
                return self._write(pool, self._order(secrets.token_hex(4)), None, {})
            store = open_target(self._url, durability=self._options.durability)
            try:
                store.resume(self._options.storage)
                earlier = journal.earlier(store, self._order(""), self._batches, self._cut)
                attempt = secrets.token_hex(4) if earlier is None else earlier.attempt
                receipts = {} if earlier is None else earlier.receipts
                return self._write(pool, self._order(attempt), store, receipts)
            finally:
                store.close()

    def _order(self, attempt: str) -> Order:
        return Order(
            url=self._url,
            storage=self._options.storage,
            durability=self._options.durability,
            attempt=attempt,
            digest=job_digest(self._job),
            memory=self._options.memory,
            is_journaled=self._recipe is not None,
            recipe=self._recipe,
        )

    def _pool(self) -> AbstractContextManager[Pool]:
        with closing(open_target(self._url)) as store:
            upload_bytes = store.upload_bytes
        return open_pool(
            self._options,
            partial(
                workers_within,
                self._options.memory,
                chunk_bytes=self._job.chunk_bytes,
                upload_bytes=upload_bytes,
            ),
            is_known=self._recipe is not None,
            is_python_bound=self._is_python_bound(),
        )

    def _is_python_bound(self) -> bool:
        chunks = sum(place.grid.count for place in self._cut.places)
        rest = self._job.nbytes / _BYTES_PER_SECOND
        return chunks * _SLOT_SECONDS > max(_WORTH_PROCESSES, rest)

    def _write(self, pool: Pool, order: Order, prepared: Store | None, receipts: Mapping[int, bytes]) -> str:
        writer = CheckpointWriter(
            self._url,
            self._job.atoms,
            storage=order.storage,
            chunk_bytes=self._job.chunk_bytes,
            step=self._job.step,
            log=self._job.log,
            annotations=self._job.annotations,
            extensions=self._job.extensions,
            # Documents are each process's own, also where two go on with one attempt.
            attempt=order.attempt if prepared is None else secrets.token_hex(4),
            workers=1,
            prepared=prepared,
            durability=order.durability,
        )
        try:
            if order.is_journaled and not receipts:
                journal.begin(order, self._batches)
            self._gather(pool, order, writer, receipts)
            writer.expect_contents(
                {
                    (source.atom, source.slot): source.content
                    for source in self._job.sources
                    if source.content is not None
                }
            )
            writer.set_state(self._job.state)
            for name, (media_type, data) in self._job.blobs.items():
                writer.add_blob(name, data, media_type)
            for name, image in self._job.images.items():
                writer.add_image(name, image)
            digest = writer.commit()
        except BaseException as failure:
            if isinstance(failure, Exception) and not self._options.resume:
                if writer.withdraw():
                    with suppress(Exception):
                        journal.clear(order)
                writer.abort()
            else:
                writer.leave()
            raise
        if order.is_journaled:
            with suppress(Exception):  # what stays is a warning to validators
                journal.finish(order, self._packs)
        return digest

    def _gather(
        self, pool: Pool, order: Order, writer: CheckpointWriter, receipts: Mapping[int, bytes]
    ) -> None:
        """Have the batches copied that no receipt speaks of, and take over what all receipts say."""
        for data in receipts.values():
            self._admit(writer, data)
        self._progress(sum(batch.nbytes for batch in self._batches if batch.number in receipts))
        left = [batch for batch in self._batches if batch.number not in receipts]
        workshop = None if pool.is_remote else Workshop.of(self._job, self._cut, order.memory)

        def submit(executor: Executor, batch: Batch) -> Future[bytes]:
            if workshop is None:
                return executor.submit(convert_batch, order, batch)
            return executor.submit(copy_batch, workshop, order, batch, self._progress)

        def done(batch: Batch, data: bytes) -> None:
            self._admit(writer, data)
            if pool.is_remote:
                self._progress(batch.nbytes)

        run_tasks(pool, left, submit, done)

    def _admit(self, writer: CheckpointWriter, data: bytes) -> None:
        receipt = Receipt.unpack(data, self._names)
        writer.admit(receipt.packs, receipt.stored)
        self._packs.update(pack.key for pack in receipt.packs)
