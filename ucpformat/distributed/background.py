"""Saving in the background: a snapshot while the caller waits, the rest in a thread of its own.

Two groups keep what the caller's thread says apart from what the thread of the save says. One save is under way at a
time; whether the next one waits for it, all ranks find out together. What fails in the background is raised by
exactly one of the calls that follow, or told when the interpreter ends.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Literal, Self, get_args

from ucpformat.distributed.arena import Arena
from ucpformat.distributed.background_save import AsyncSave, BackgroundSave
from ucpformat.distributed.group import another
from ucpformat.distributed.kept import Kept
from ucpformat.distributed.later_copies import Pacing
from ucpformat.distributed.save import SaveReport, prepare_save
from ucpformat.distributed.snapshot import HostCopier
from ucpformat.errors import error, require_one_of
from ucpformat.gc_pause import paused
from ucpformat.storage.writing.stored_columns import StoredBytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ucpformat.distributed.group import Group
    from ucpformat.distributed.later_copies import Fences
    from ucpformat.distributed.local_state import LocalState
    from ucpformat.distributed.save import SaveOptions
    from ucpformat.distributed.share import SlotPiece
    from ucpformat.distributed.snapshot import Copier, KeptSnapshot

__all__ = ["BackgroundSaver", "WhenBusy"]

WhenBusy = Literal["wait", "raise", "skip"]
"""What a save does that begins while the previous one is under way."""
_MODES: Final = get_args(WhenBusy)


_open: dict[int, BackgroundSaver] = {}


def _new_thread() -> ThreadPoolExecutor:
    """Return the thread that writes the saves of one saver; to start one for each may take longer than its call."""
    return ThreadPoolExecutor(1, thread_name_prefix="ucp-async-save")


def _finish_all() -> None:
    """Let saves end when the interpreter does, and print failures that were not raised yet."""
    for saver in list(_open.values()):
        saver._finish()


def _disown_all() -> None:
    """Disown the saves of the parent in a process that was forked."""
    for saver in _open.values():
        saver._disown()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)

# Writing needs executors of concurrent.futures, which stop before `atexit` has its turn; these go in reverse order.
getattr(threading, "_register_atexit", atexit.register)(_finish_all)


class BackgroundSaver:
    """Saves one after another; a context manager that waits for the last one.

    ``group`` is that of the caller's thread, used during calls alone. All ranks make the same calls.
    ``arena_bytes`` is the most host memory for snapshots, at least one chunk: a larger one has the caller wait for what
    is written. ``copier`` gets tensors into that memory; behind the calls, no more than ``bandwidth`` bytes a second
    while training goes on.
    """

    def __init__(
        self,
        group: Group,
        *,
        arena_bytes: int | None = None,
        copier: Copier | None = None,
        bandwidth: float | None = None,
    ) -> None:
        if arena_bytes is not None and not (isinstance(arena_bytes, int) and arena_bytes >= 1):
            message = f"an arena has room for a chunk at least, not {arena_bytes} bytes"
            raise error("UCP-E-LIMIT", message, at="arena_bytes")
        self._pacing = Pacing(bandwidth)
        self._calls = group
        self._writes = another(group)
        self._copier = copier or HostCopier()
        self._arena_bytes = arena_bytes
        self.arena = self._new_arena()
        """Where snapshots lie."""
        self._last: AsyncSave | None = None
        self._kept: KeptSnapshot | None = None
        """What the arena has since the last save was committed."""
        self._pieces: Kept[list[SlotPiece]] = Kept()
        self._thread = _new_thread()
        self._closed = False

    def save(
        self,
        path: str | os.PathLike[str],
        describe_state: Callable[[], LocalState],
        options: SaveOptions,
        *,
        when_busy: WhenBusy = "wait",
        then: Callable[[], object] | None = None,
        fences: Fences | None = None,
    ) -> AsyncSave:
        """Take a snapshot, and save it in the background; ``then`` is called there after the commit.

        With ``fences``, slots that the state has behind them are copied when the call has returned.

        Raises:
            UcpError: on all ranks, as `prepare_save`; what made the previous save fail, where nobody has heard of it;
                ``UCP-E-EXISTS`` where it is still under way and ``when_busy`` is ``"raise"``.
        """
        require_one_of("when_busy=", when_busy, _MODES)
        if self._closed:
            raise error("UCP-E-STORE", "this saver is closed; make another one", at=str(path))
        began = time.perf_counter()
        if not self._admitted(str(path), when_busy):
            kept = time.perf_counter() - began
            report = SaveReport(
                "", 0, 0, StoredBytes(0, 0, 0), kept, kept, waited=kept, arena_bytes=self.arena.nbytes
            )
            return AsyncSave.ended(str(path), report)
        result = AsyncSave(str(path))
        waited = time.perf_counter()
        with paused:
            saving = prepare_save(path, describe_state, self._calls, options)
            work = BackgroundSave(
                saving, self._writes, self.arena, result, then, self._keep, self._pieces, self._thread
            )
            before, self._kept = self._kept, None
            try:
                self._last = result
                _open[id(self)] = self
                work.stage(self._copier, before, began, waited, fences, self._pacing)
            except BaseException as failure:
                work.never_began(failure)
                raise
        return result

    def _keep(self, kept: KeptSnapshot | None) -> None:
        self._kept = kept

    def _admitted(self, path: str, when_busy: WhenBusy) -> bool:
        """Return whether to save now, as all ranks agree."""
        last = self._last
        if when_busy == "wait":
            self.drain()
        busy = last is not None and not last.done()
        failed = last is not None and last._untold
        try:
            said = self._calls.all_gather(bytes([busy, failed, _MODES.index(when_busy)]))
        except BaseException as reason:
            if last is not None and last._untold:
                last._told = True
                raise last._failure from reason  # type: ignore[misc]
            raise
        where = [rank for rank, flags in zip(self._calls.ranks, said, strict=True) if flags[1]]
        if where and last is not None:
            # Ranks that have heard of it raise all the same: none may go on alone.
            last._ended.wait()
            last._told = True
            if last._failure is not None:
                raise last._failure
            raise error("UCP-E-RANK", f"the previous save failed on rank {where[0]}", at=last.path)
        if len({flags[2] for flags in said}) > 1:
            raise error("UCP-E-MISMATCH", "ranks differ in `when_busy`: give all the same", at=path)
        if not any(flags[0] for flags in said):
            return True
        if when_busy == "raise":
            message = "the previous save is still being written; wait for it, or save less often"
            raise error("UCP-E-EXISTS", message, at=path)
        return False

    def drain(self) -> None:
        """Return when nothing is under way; does not raise."""
        if self._last is not None:
            self._last._ended.wait()

    def wait(self) -> None:
        """Return when nothing is under way.

        Raises:
            UcpError: what made the last save fail, where nobody has heard of it.
        """
        self.drain()
        if self._last is not None and self._last._untold:
            self._last.wait()

    def close(self) -> None:
        """Let the last save end, and release memory and threads; raises as `wait`."""
        try:
            self.wait()
        finally:
            if not self._closed:
                self._closed = True
                _open.pop(id(self), None)
                self._thread.shutdown()
                self._copier.close()
                self.arena.close()
                self._kept = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BaseException as failure:
            if value is None:
                raise
            # What ended the block goes first; this is told with it.
            value.add_note(f"and a save in the background failed: {failure}")

    def _new_arena(self) -> Arena:
        return Arena(limit=self._arena_bytes, allocate=self._copier.allocate)

    def _disown(self) -> None:
        """Leave the save that is under way to the process that began it; threads do not survive a fork."""
        if self._last is not None and not self._last.done():
            self._last._disown()
        self._copier.forget()
        self._thread = _new_thread()
        self._kept = None
        self.arena = self._new_arena()  # as with the event of a save: nobody here would release its lock

    def _finish(self) -> None:
        try:
            self.close()
        except BaseException as failure:
            path = self._last.path if self._last is not None else ""
            print(
                f"ucpformat: saving {path} in the background failed: {failure}", file=sys.stderr, flush=True
            )
