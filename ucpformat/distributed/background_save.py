"""One save in the background: what the call copies, what is copied behind it, and the thread that writes."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ucpformat.distributed.later_copies import LaterCopies
from ucpformat.distributed.save import SaveReport
from ucpformat.distributed.share import cut
from ucpformat.distributed.snapshot import Batch, Snapshot
from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from ucpformat.distributed.arena import Arena
    from ucpformat.distributed.group import Group
    from ucpformat.distributed.kept import Kept
    from ucpformat.distributed.later_copies import Fences, Pacing
    from ucpformat.distributed.save import Saving
    from ucpformat.distributed.share import Part, SlotPiece
    from ucpformat.distributed.snapshot import Copier, KeptSnapshot

__all__ = ["AsyncSave", "BackgroundSave"]


class AsyncSave:
    """A save that goes on in the background, or was skipped.

    >>> save = ucp.async_save("step-1.ucp", {"w": np.ones(4, np.float32)})
    >>> report = save.wait()
    >>> save.done()
    True
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._ended = threading.Event()
        self._batches: list[Batch] = []
        self._later: LaterCopies | None = None
        self._report: SaveReport | None = None
        self._failure: BaseException | None = None
        self._told = False

    @classmethod
    def ended(cls, path: str, report: SaveReport) -> AsyncSave:
        """Return a save that is over and good.

        >>> ucp.AsyncSave.ended("example.ucp", report).wait().nbytes
        36
        """
        found = cls(path)
        found._end(report)
        return found

    def done(self) -> bool:
        """Return whether it has ended, well or not; does not raise.

        >>> save = ucp.async_save("step-1.ucp", {"w": np.ones(4)})
        >>> report = save.wait()
        >>> save.done()
        True
        """
        return self._ended.is_set()

    def staged(self) -> None:
        """Return when every tensor is copied; with ``fence=``, and on a device, copies may be under way after the call.

        >>> save = ucp.async_save("step-1.ucp", {"w": np.ones(4)})
        >>> save.staged()  # the state may change from here on
        >>> report = save.wait()
        """
        if (later := self._later) is not None:
            later.wait_for_all()
        for batch in list(self._batches):
            batch.copied.ready()

    def wait(self, timeout: float | None = None) -> SaveReport:
        """Return when this rank knows that the checkpoint is committed.

        Raises:
            TimeoutError: after ``timeout`` seconds.
            UcpError: as `save`; whatever made the save fail.

        >>> ucp.async_save("step-1.ucp", {"w": np.ones(4)}).wait(timeout=60).nbytes
        32
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"{self.path} is not written yet")
        self._told = True
        if self._failure is not None:
            raise self._failure
        if self._report is None:  # pragma: no cover - one of them is set before the end
            raise AssertionError("a save ended without report")
        return self._report

    @property
    def _untold(self) -> bool:
        return self._ended.is_set() and self._failure is not None and not self._told

    def _disown(self) -> None:
        # A new event: a thread of the parent may have held the lock of the old one when the process was forked.
        self._ended = threading.Event()
        self._batches.clear()
        if self._later is not None:
            self._later.disown()
            self._later = None
        message = "this save is under way in the process that this one was forked from: wait for it there"
        self._told = True
        self._end(error("UCP-E-RANK", message, at=self.path))

    def _end(self, outcome: SaveReport | BaseException) -> None:
        if isinstance(outcome, SaveReport):
            self._report = outcome
        else:
            self._failure = outcome
        self._ended.set()


class BackgroundSave:
    """One save: batches go through a queue to a thread that writes them.

    They come from the thread of the call. What is copied behind it, before ``fences``, the thread that writes copies
    first, so that not two threads take processors from training; where that has to wait for room, a third one copies.
    """

    def __init__(
        self,
        saving: Saving,
        group: Group,
        arena: Arena,
        result: AsyncSave,
        then: Callable[[], object] | None,
        keep: Callable[[KeptSnapshot | None], None],
        pieces: Kept[list[SlotPiece]],
        writes: ThreadPoolExecutor,
    ) -> None:
        self._saving = saving
        self._group = group
        self._arena = arena
        self._result = result
        self._then = then
        self._keep = keep
        self._pieces = pieces
        self._snapshot: Snapshot | None = None
        self._later: LaterCopies | None = None
        self._queue: queue.SimpleQueue[Sequence[Part] | Batch | BaseException | None] = queue.SimpleQueue()
        self._accounted: queue.SimpleQueue[tuple[float, float, float]] = queue.SimpleQueue()
        self._writes = writes
        self._is_given = False
        self._ends = threading.Lock()
        """Taken, and never released, by who ends the save: the thread that writes, or the caller where none will."""
        self._copying = threading.Thread(target=self._copy_later, name="ucp-later-copies", daemon=True)

    def stage(
        self,
        copier: Copier,
        kept: KeptSnapshot | None,
        began: float,
        admitted: float,
        fences: Fences | None,
        pacing: Pacing,
    ) -> None:
        """Copy all that is not behind a fence, or as much as there is room for at first, and let threads do the rest.

        What fails here fails the save, on all ranks, as if it had failed in the thread. The save does not end before
        it is known for how long the caller was kept: since ``began``, and until ``admitted`` by the previous save.
        """
        staging = time.perf_counter()
        try:
            saving = self._saving
            pieces = self._pieces.of(saving.cut_by, lambda: list(cut(saving.share(), saving.form)))
            self._snapshot = snapshot = Snapshot(saving, self._arena, copier, kept, pieces)
            at_once, later = self._parted(snapshot)
            if later and fences is not None:
                self._later = self._result._later = LaterCopies(snapshot, later, fences, pacing)
            if not snapshot.fits:
                self._give()  # what is written makes room
            for batch in snapshot.batches(at_once):
                self._hand_on(batch)
                batch.copied.hold()
            if self._later is None:
                self._queue.put(None)
            else:
                self._later.begin()
                if not snapshot.fits:
                    self._copying.start()
        except BaseException as failure:
            if self._later is not None:
                self._later.stop()
            self._queue.put(failure)
            if not isinstance(failure, Exception):
                raise
        finally:
            # Last: a thread that is awake takes the interpreter's lock from the call. Ctrl-C may come here, too.
            try:
                if not self._is_given:
                    self._give()
            finally:
                now = time.perf_counter()
                self._accounted.put((now - began, admitted - began, now - staging))

    def _give(self) -> None:
        """Let the thread write."""
        self._writes.submit(self._write)
        self._is_given = True

    def _parted(self, snapshot: Snapshot) -> tuple[Sequence[int], dict[frozenset[int], list[int]]]:
        """Return the pieces that are copied in the call, and those that are copied later, by their fences."""
        slots = snapshot.slots
        fences = self._saving.local.fences
        if not snapshot.fits and self._saving.shares_chunks:
            return range(len(slots)), {}
        later: dict[frozenset[int], list[int]] = {}
        for number, slot in enumerate(slots):
            if slot in fences:
                later.setdefault(fences[slot], []).append(number)
        return [number for number, slot in enumerate(slots) if slot not in fences], later

    def _hand_on(self, batch: Batch) -> None:
        """Let a batch be written, unless all are when they are copied: in the order of slots then."""
        self._result._batches.append(batch)
        if self._later is None or (self._snapshot is not None and not self._snapshot.fits):
            self._queue.put(batch)

    def _copy_later(self) -> None:
        if self._later is None or self._snapshot is None:  # pragma: no cover - they are set before it starts
            raise AssertionError("nothing to copy")
        try:
            self._later.run(self._hand_on)
            for parts in self._snapshot.whole() if self._snapshot.fits else ():
                self._queue.put(parts)
            self._queue.put(None)
        except BaseException as failure:
            self._later.stop()
            self._queue.put(failure)

    def never_began(self, failure: BaseException) -> None:
        """End the save if no thread will, so that no caller waits for it."""
        if not self._is_given and self._ends.acquire(blocking=False):
            if self._later is not None:
                self._later.stop()
            self._saving.give_up()
            self._result._end(failure)

    def _batches(self) -> Iterator[Sequence[Part]]:
        while (batch := self._queue.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            if isinstance(batch, Batch):
                batch.copied.ready()
            parts = batch.parts if isinstance(batch, Batch) else batch
            yield parts
            self._arena.give(len(parts))
        if self._later is not None:
            self._later.settle()

    def _write(self) -> None:
        if not self._ends.acquire(blocking=False):
            return
        if self._later is not None and self._snapshot is not None and self._snapshot.fits:
            self._copy_later()
        began = time.perf_counter()
        outcome: SaveReport | BaseException
        try:
            outcome = self._saving.run(self._batches, self._group)
            if self._snapshot is not None:
                self._keep(self._snapshot.kept(outcome.digest))
            if self._then is not None:
                self._then()
        except BaseException as failure:
            outcome = failure
        self._arena.abandon()
        writing = time.perf_counter() - began
        stalled, waited, staging = self._accounted.get()
        fenced = 0.0
        if self._later is not None:
            self._later.stop()
            if self._copying.ident is not None:
                self._copying.join()  # it writes to the arena, which is the next save's
            fenced = self._later.fenced
        self._result._batches.clear()
        self._result._later = None
        if isinstance(outcome, BaseException):
            self._result._end(outcome)
        else:
            self._result._end(
                replace(
                    outcome,
                    seconds=waited + outcome.seconds,
                    stalled=stalled,
                    waited=waited,
                    staging=staging,
                    fenced=fenced,
                    writing=writing,
                    arena_bytes=self._arena.nbytes,
                )
            )
