"""Writing batches of a log in the background, one after another."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from ucpformat.errors import error
from ucpformat.update_log.drafts import sound_batch_bytes
from ucpformat.update_log.place import BatchKey, batch_key
from ucpformat.update_log.together import ENOUGH_BYTES, joined_drafts, written_together

if TYPE_CHECKING:
    from collections.abc import Callable

    from ucpformat.update_log.documents import Epoch
    from ucpformat.update_log.drafts import BatchDraft
    from ucpformat.update_log.place import LogPlace

__all__ = ["BatchWriter"]


class BatchWriter:
    """Writes the batches of one rank in a thread of its own; whoever gives it more than it may hold waits.

    Call `put` for each batch in order, `drain` to wait for all of them, and `close` at the end. An error of the thread
    is raised by the next call of any of these, and nothing is written after it. In an object store, batches that have
    come while one was written are written as one. None is begun within ``every`` seconds of the one before, unless
    somebody waits for it, or enough waits for a request of its own.
    A process that was forked has no such thread: it is refused, and `close` does nothing there.
    """

    def __init__(
        self,
        place: LogPlace,
        epoch: Epoch,
        digest: str,
        rank: int,
        *,
        most_bytes: int,
        every: float = 0.0,
    ) -> None:
        self._place = place
        self._epoch = epoch
        self._previous = digest
        self._rank = rank
        self._most_bytes = most_bytes
        self._every = every
        self._queue: deque[BatchDraft] = deque()
        self._pending = self._awaited = self._written = 0
        self._is_closed = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._process = os.getpid()
        self.durable_step = epoch.first_step
        self.written_bytes = 0
        self._thread = threading.Thread(target=self._run, name="ucp-update-log", daemon=True)
        self._thread.start()

    def put(self, batch: BatchDraft) -> None:
        """Hand a batch over; waits while more than the bound is under way."""
        nbytes = batch.nbytes
        self._require_own_process()
        with self._changed:
            self._wait(lambda: not self._pending or self._pending + nbytes <= self._most_bytes)
            self._queue.append(batch)
            self._pending += nbytes
            self._changed.notify_all()

    def drain(self) -> None:
        """Return when every batch is durable."""
        self._require_own_process()
        with self._changed:
            self._wait(lambda: not (self._queue or self._pending))

    def close(self) -> None:
        """End the thread when every batch is durable."""
        if os.getpid() != self._process:
            return
        try:
            self.drain()
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            self._thread.join()

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            message = "this process was forked from the one that logs; log there, or begin another run here"
            raise error("UCP-E-MISMATCH", message, at=self._place.url)

    def _wait(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that the thread brings about, which it does without delay; raise what it has met."""
        self._awaited += 1
        try:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failure or is_so())
        finally:
            self._awaited -= 1
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        begun = -self._every
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                wait = begun + self._every - time.monotonic()
                self._changed.wait_for(self._is_hurried, max(0.0, wait))
                if not self._queue:
                    return
            begun = time.monotonic()
            try:
                batches, nbytes = self._write()
            except BaseException as failure:
                with self._changed:
                    self._failure = failure
                    self._changed.notify_all()
                return
            with self._changed:
                for batch in batches:
                    self._queue.popleft()
                    self._pending -= batch.nbytes
                self._written += len(batches)
                self.written_bytes += nbytes
                self.durable_step = batches[-1].first_step + len(batches[-1].steps)
                self._changed.notify_all()

    def _is_hurried(self) -> bool:
        return bool(self._awaited or self._is_closed or self._pending >= ENOUGH_BYTES)

    def _write(self) -> tuple[list[BatchDraft], int]:
        """Write batches that wait as one; return them, and the bytes of it."""
        # Somebody else may have gone on from this log, and taken this process for dead.
        if (refusal := self._place.fenced(self._epoch.epoch)) is not None:
            raise refusal
        with self._changed:
            waiting = [*self._queue] if self._place.is_remote else [self._queue[0]]
        count = written_together(waiting, self._written, is_alone=self._epoch.ranks == 1)
        batch = joined_drafts(waiting[:count]) if count > 1 else waiting[0]
        key = batch_key(BatchKey(self._epoch.epoch, self._rank, batch.first_step))
        buffers, digest = sound_batch_bytes(batch, self._epoch, self._rank, self._previous, at=key)
        self._place.create(key, buffers)
        self._previous = digest
        return waiting[:count], sum(one.nbytes for one in buffers)
