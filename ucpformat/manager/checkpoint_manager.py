"""`CheckpointManager`: saving, keeping and resuming of one run, by one process or by all ranks of a job."""

from __future__ import annotations

import json
import signal
import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from ucpformat.distributed.background_save import AsyncSave
from ucpformat.distributed.group import agreed, decided
from ucpformat.distributed.save import SaveOptions
from ucpformat.distributed.save_options import step_number
from ucpformat.errors import UcpError, error, require_one_of
from ucpformat.manager.collection import DEBRIS_AGE, Collected, collect
from ucpformat.manager.increments import Increments
from ucpformat.manager.pace import CADENCE, Pace
from ucpformat.manager.restoring import first_good, seen_by_first
from ucpformat.manager.retention import Retention
from ucpformat.manager.run_directory import METRICS, RunDirectory, metrics_to_keep, open_run
from ucpformat.manager.stop_request import StopRequest
from ucpformat.state_dict.async_save import AsyncSaver, WhenBusy, begin_save
from ucpformat.state_dict.save_load import save_state
from ucpformat.state_dict.torch_group import own_group
from ucpformat.storage.stores.urls import refuse_target
from ucpformat.validation import LEVELS, Level
from ucpformat.writer import DEFAULT_CHUNK_BYTES

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from types import TracebackType

    from torch.nn import Module

    from ucpformat.cadence import Cadence
    from ucpformat.distributed.save_options import Replicas
    from ucpformat.model.compressor import Compression
    from ucpformat.model.pipeline import Pipeline
    from ucpformat.model.root import LogPosition, Storage
    from ucpformat.state_dict.fences import Fence
    from ucpformat.state_dict.tensors.local_tensors import TensorLayout

__all__ = ["CheckpointManager"]

_Seen = TypeVar("_Seen")


class CheckpointManager:
    """The checkpoints ``step-N.ucp`` of a run directory: a local path that all ranks see, or any fsspec URL.

    Every rank of ``group`` (the default group, unless given) makes one, and makes the same calls; the first rank looks
    at the directory and removes, and all go by what it found. A context manager that waits for the last save.

    ``keep_last``, ``keep_every`` and ``keep_best`` are the rules of `Retention`, with ``metric`` and ``mode``; without
    any, nothing is removed but debris that is older than ``debris_age`` seconds. ``asynchronous`` is for saves that
    do not say; ``arena_bytes``, ``fence`` and ``bandwidth`` are those of `AsyncSaver`.
    With ``incremental`` a checkpoint shares what is equal with the newest one, by hard links, or by copies that an
    object store makes. It is as complete as any: whatever else is removed, it stays whole. Each ``full_every``-th, 50
    unless given, shares nothing, since a byte that is lost is lost for all that share it.
    ``every`` is how many steps `is_due` lets pass between saves. With ``"auto"`` they are as few as measured times
    allow: a checkpoint is written before the next begins, all of them take at most ``max_overhead`` of the time, 0.03
    unless given, and none is saved more often than failures every ``mtbf`` seconds make worth while. `cadence` says
    what was decided, and why.

    >>> state = {"w": np.zeros(4, np.float32)}
    >>> with ucp.CheckpointManager("run", keep_last=2) as manager:
    ...     begin = manager.resume(state) or 0  # the newest good checkpoint, if there is one
    ...     for step in range(begin + 1, 4):
    ...         state["w"] += 1
    ...         save = manager.save(step, state)
    >>> manager.steps()
    [2, 3]
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        group: object = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_best: int | None = None,
        metric: str | None = None,
        mode: Literal["min", "max"] = "min",
        asynchronous: bool = False,
        arena_bytes: int | None = None,
        fence: Fence | None = None,
        bandwidth: float | None = None,
        debris_age: float = DEBRIS_AGE,
        incremental: bool = False,
        full_every: int | None = None,
        every: int | Literal["auto"] | None = None,
        max_overhead: float | None = None,
        mtbf: float | None = None,
    ) -> None:
        refuse_target(directory)
        self._pace = Pace(every, max_overhead, mtbf)
        self._increments = Increments(directory, full_every, incremental=incremental)
        if isinstance(debris_age, bool) or not (isinstance(debris_age, int | float) and debris_age >= 0):
            raise error("UCP-E-LIMIT", f"an age is a number of seconds, not {debris_age!r}", at="debris_age")
        self.run: RunDirectory = open_run(directory)
        self.retention = Retention(keep_last, keep_every, keep_best, metric, mode)
        self.asynchronous = asynchronous
        self.damaged: dict[int, UcpError] = {}
        self._debris_age = debris_age
        self._group = own_group(group)
        self._first = self._group.rank == self._group.ranks[0]
        decided(self._group, self.run.require_no_checkpoint)
        if fence is not None and not asynchronous:
            message = "fence= is about saves in the background: give asynchronous=True as well"
            raise error("UCP-E-MISMATCH", message, at="fence")
        self._new_saver = partial(
            AsyncSaver, group=self._group, arena_bytes=arena_bytes, fence=fence, bandwidth=bandwidth
        )
        # Its group is made by all ranks together: rather now than in the midst of training.
        self._saver: AsyncSaver | None = self._new_saver() if asynchronous else None
        self._metrics: dict[int, Mapping[str, float]] = {}
        self._own: set[int] = set()
        self._failed: dict[str, Any] = {}
        self._stop: StopRequest | None = None

    def path(self, step: int) -> str:
        """Return URL of the checkpoint of a step; where there is none, that of the first one that will be.

        >>> ucp.CheckpointManager("run").path(5).rpartition("/")[2]
        'step-5.ucp'
        """
        return self.run.path(step)

    def steps(self) -> list[int]:
        """Return committed steps, ascending.

        >>> with ucp.CheckpointManager("run") as manager:
        ...     saves = [manager.save(step, {"epoch": step}) for step in (1, 2)]
        ...     manager.steps()
        [1, 2]
        """
        return self._seen_by_first(self.run.steps)

    def latest(self) -> int | None:
        """Return the greatest committed step, or None.

        >>> with ucp.CheckpointManager("run") as manager:
        ...     manager.latest()
        """
        return self._seen_by_first(self.run.latest)

    def metrics(self, step: int) -> dict[str, float]:
        """Return the finite metrics that a step was saved with.

        >>> with ucp.CheckpointManager("run") as manager:
        ...     save = manager.save(1, {"epoch": 1}, metrics={"loss": 0.5})
        ...     manager.metrics(1)
        {'loss': 0.5}
        """
        return self._seen_by_first(lambda: dict(self.run.metrics(step)))

    def _seen_by_first(self, look: Callable[[], _Seen]) -> _Seen:
        """Return what the first rank finds, which is JSON, on all ranks."""
        return seen_by_first(self._group, look)

    def save(
        self,
        step: int,
        state: Mapping[str, Any] | Module,
        *,
        metrics: Mapping[str, float] | None = None,
        asynchronous: bool | None = None,
        replace: bool = False,
        when_busy: WhenBusy = "wait",
        layouts: Mapping[str, TensorLayout] | None = None,
        replicas: Replicas = "compare",
        storage: Storage = "packed",
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        compressor: Compression | None = None,
        pipeline: Pipeline | None = None,
        log: LogPosition | None = None,
        cadence: Cadence | None = None,
        before_commit: Callable[[], object] | None = None,
    ) -> AsyncSave:
        """Save ``state`` as the checkpoint of ``step``, and remove what is not kept when that is committed.

        Returns when it is committed; with ``asynchronous``, when it is copied, as `ucpformat.async_save` does, which
        also says what ``when_busy`` means. ``metrics`` are those of the first rank: numbers by name, among them that
        of `keep_best`, or none where there was no evaluation; such a checkpoint is not among the best.
        A step that this manager has itself saved or restored, or found damaged, is replaced: the earlier checkpoint
        stays until the new one is committed. So is one that was there when an earlier step was asked for by `restore`,
        and any committed one with ``replace``, which is an error without. `UpdateLog` gives the ``log`` that goes on
        from the state, its ``cadence``, and ``before_commit``, which each rank calls when its share is written.

        Raises:
            UcpError: as `save` and `async_save`, on all ranks the same.

        >>> with ucp.CheckpointManager("run") as manager:
        ...     report = manager.save(1, {"w": np.ones(4)}).wait()
        >>> report.nbytes
        32
        """
        step = step_number(step)
        background = self.asynchronous if asynchronous is None else asynchronous
        if not background:
            if when_busy != "wait":
                raise error("UCP-E-MISMATCH", "when_busy= is for saves in the background: asynchronous=True")
            self.wait()
        may_replace = replace or step in self._own or step in self.damaged

        def begin() -> bytes:
            numbers = metrics_to_keep(metrics or {}, self.retention.metric)
            if not may_replace:
                self.run.require_uncommitted(step)
            self._metrics.pop(step, None)
            base, notes = self._increments.base(self.run, storage, chunk_bytes)
            notes |= {METRICS: numbers} if numbers else {}
            notes |= {CADENCE: pace.to_json()} if (pace := cadence or self.cadence) else {}
            return json.dumps([self.run.vacant(step), notes, base]).encode()

        if self._saver is not None and (may_replace or (self._increments.are_wanted and when_busy == "wait")):
            # What is replaced, or shared, may be what the previous save is about to commit.
            self._saver.drain()
        path, annotations, base = json.loads(decided(self._group, begin))
        self.damaged.pop(step, None)
        self._own.add(step)
        options = SaveOptions(
            storage,
            chunk_bytes,
            step,
            log,
            annotations=annotations,
            replicas=replicas,
            base=base,
            pipeline=pipeline,
            before_commit=before_commit,
        )
        of_state: dict[str, Any] = {"layouts": layouts, "compressor": compressor}

        def make() -> AsyncSave:
            if background:
                then = partial(self._committed, step)
                self._saver = self._saver or self._new_saver()
                return begin_save(
                    self._saver, path, state, options, when_busy=when_busy, then=then, **of_state
                )
            report = save_state(path, state, options, group=self._group, **of_state)
            decided(self._group, lambda: self._committed(step))
            return AsyncSave.ended(path, report)

        saved = self._pace.timed(step, make)
        self._warn(self._failed, "could not be removed, or keeps others from being removed")
        return saved

    def is_due(self, step: int) -> bool:
        """Return whether to save behind a step, as ``every`` says; all ranks call it, once a step, and are told alike.

        Raises:
            UcpError: ``UCP-E-MISMATCH`` where ``every`` was not given.

        >>> with ucp.CheckpointManager("run", every=100) as manager:
        ...     [step for step in range(1, 301) if manager.is_due(step)]
        [100, 200, 300]
        """
        return self._pace.is_due(step, self._group)

    @property
    def cadence(self) -> Cadence | None:
        """How often `is_due` says to save, and why; None before enough steps and a save were measured.

        >>> ucp.CheckpointManager("run", every="auto").cadence is None
        True
        """
        return self._pace.cadence

    def _committed(self, step: int) -> bytes:
        """Collect on the first rank when a step is committed; what fails is told later, and tried again next time."""
        self._pace.committed()
        if self._first:
            try:
                collected = self._collected(step)
                self._failed.update(collected.failed)
                if collected.unjudged is not None:
                    self._failed["keep_best"] = collected.unjudged
            except Exception as problem:
                self._failed[self.run.url] = problem
        return b""

    def _collected(self, *protected: int) -> Collected:
        return collect(
            self.run,
            self.retention,
            protected=protected,
            damaged=self.damaged,
            debris_age=self._debris_age,
            metrics=self._metrics,
        )

    def collect(self) -> list[str]:
        """Remove now what is not kept, and debris; return the names of what was removed.

        Raises:
            UcpError: the first failure to remove something, after everything else was removed.

        >>> with ucp.CheckpointManager("run") as manager:
        ...     saves = [manager.save(step, {"epoch": step}) for step in (1, 2)]
        >>> ucp.CheckpointManager("run", keep_last=1).collect()
        ['step-1.ucp']
        """
        self.wait()

        def remove() -> list[str]:
            collected = self._collected()
            for name, problem in collected.failed.items():
                raise error(problem.code, problem.message, at=problem.at or name)
            return collected.removed

        return self._seen_by_first(remove)

    def restore(
        self,
        state: dict[str, Any] | Module,
        step: int | None = None,
        *,
        check: Level | None = None,
        **options: Any,
    ) -> int:
        """Fill ``state`` from the checkpoint of ``step``, or from the newest good one; returns the step.

        ``options`` are those of `ucpformat.load`. ``check`` validates a checkpoint to that level before anything is
        read into the state; what is read is verified in any case. Where the newest one is damaged, the one before it
        is taken, and so on, with a warning; `damaged` has what was passed over, and `save` may write those anew. A step
        that was saved again, and whose new checkpoint is damaged, is taken as it was saved before, if that is still
        there and whole: it then stays until the step is saved once more.

        Raises:
            UcpError: as `load`; ``UCP-E-NOT-FOUND`` where there is none, and the first damage where all are damaged:
                the state is then partly filled.

        >>> state = {"epoch": 0}
        >>> with ucp.CheckpointManager("run") as manager:
        ...     save = manager.save(7, {"epoch": 3})
        ...     manager.restore(state), state
        (7, {'epoch': 3})
        """
        found = self._restore(state, step, check, options)
        if found is None:
            raise error("UCP-E-NOT-FOUND", "no checkpoint was committed here", at=self.run.url)
        return found

    def resume(
        self, state: dict[str, Any] | Module, *, check: Level | None = None, **options: Any
    ) -> int | None:
        """Restore the newest good checkpoint as `restore`; None, ``state`` unchanged, if none was ever committed.

        >>> state = {"epoch": 0}
        >>> with ucp.CheckpointManager("run") as manager:
        ...     manager.resume(state) is None, state
        (True, {'epoch': 0})
        """
        return self._restore(state, None, check, options)

    def _restore(
        self,
        state: dict[str, Any] | Module,
        step: int | None,
        check: Level | None,
        options: Mapping[str, Any],
    ) -> int | None:
        step = None if step is None else step_number(step)
        if check is not None:
            require_one_of("check=", check, LEVELS)
        self.wait()
        steps = self.steps()
        candidates = steps[::-1] if step is None else [step]
        found = first_good(self.run, candidates, state, check, options, self._group)
        if found is None:
            return None
        self.damaged.update(found.passed)
        self._warn(found.said, f"is damaged and was passed over; resumed from {found.what}")
        self._own.add(found.step)
        if step is not None:
            # Whoever goes back to an earlier step comes to the later ones anew.
            self._own.update(one for one in steps if one > step)
        return found.step

    def _warn(self, problems: dict[str, Any], what: str) -> None:
        """Tell on the first rank what is not for all to raise; once."""
        while problems:
            name, problem = problems.popitem()
            if self._first:
                warnings.warn(f"{self.run.url}: {name} {what}: {problem}", RuntimeWarning, stacklevel=3)

    def stop_on(self, *signals: signal.Signals) -> None:
        """Note these signals (``SIGTERM``, unless given) instead of ending by them; for the main thread.

        >>> import signal
        >>> with ucp.CheckpointManager("run") as manager:
        ...     manager.stop_on(signal.SIGTERM)
        ...     manager.stopping()
        False
        """
        if self._stop is None:
            self._stop = StopRequest(signals or (signal.SIGTERM,))

    def stopping(self) -> bool:
        """Return whether a signal of `stop_on` has come on any rank, as all ranks agree; one round of the group.

        >>> with ucp.CheckpointManager("run") as manager:
        ...     manager.stopping()
        False
        """
        came = self._stop is not None and self._stop.came
        return any(said[0] for said in self._group.all_gather(bytes([came])))

    def wait(self) -> None:
        """Return when nothing is under way; raises what made the last save fail, on all ranks.

        >>> with ucp.CheckpointManager("run", asynchronous=True) as manager:
        ...     save = manager.save(1, {"epoch": 1})
        ...     manager.wait()
        ...     save.done()
        True
        """

        def waited() -> bytes:
            if self._saver is not None:
                self._saver.wait()
            return b""

        if self._saver is not None:
            agreed(self._group, waited)

    def close(self) -> None:
        """Wait as `wait` does, and release memory and threads. Call it before ``destroy_process_group``.

        >>> manager = ucp.CheckpointManager("run", asynchronous=True)
        >>> save = manager.save(1, {"epoch": 1})
        >>> manager.close()
        >>> save.done()
        True
        """
        if self._stop is not None:
            self._stop.undo()
        if self._saver is not None:
            self._saver.close()
        self._warn(self._failed, "could not be removed, or keeps others from being removed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is None:
            self.close()
            return
        if self._stop is not None:
            self._stop.undo()
        if self._saver is not None:
            self._saver.__exit__(kind, value, trace)
