"""`UpdateLog`: every step of a training loop, durable (SPEC-UPDATE-LOGS)."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import torch

from ucpformat.distributed.group import agreed, decided
from ucpformat.errors import error
from ucpformat.manager import CheckpointManager
from ucpformat.model.root import LogPosition
from ucpformat.replay.beginning import begin_epoch, goes_on, require_own_recovery
from ucpformat.replay.begun_options import begun_options
from ucpformat.replay.capture import BROKEN, Capture
from ucpformat.replay.compressors import residuals_of
from ucpformat.replay.content import checkpoint_bytes, checkpoint_content
from ucpformat.replay.exactness import require_replayable
from ucpformat.replay.full_pace import FullPace, LogGrowth
from ucpformat.replay.log_options import (
    gradient_bytes,
    has_same_groups,
    require_kinds,
    require_of_replica,
    require_same_groups,
    require_scaler,
    seconds_of_batch,
    steps_of_batch,
)
from ucpformat.replay.own_values import JobValues, encoded_values
from ucpformat.replay.plan import absolute, log_url, require_run
from ucpformat.replay.replica.feed import ReplicaFeed
from ucpformat.replay.replica.setting import Setting, require_local
from ucpformat.replay.state_sums import state_sums
from ucpformat.replay.tracked import GroupOptions, held_pieces, tracked_state
from ucpformat.state_dict.torch_group import own_group
from ucpformat.update_log.batch_writer import BatchWriter
from ucpformat.update_log.drafts import BatchDraft, StepDraft
from ucpformat.update_log.place import LogPlace
from ucpformat.update_log.pruning import prune_before

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.cadence import Cadence
    from ucpformat.jsonio import JsonValue
    from ucpformat.replay.compressors import GradientCompressor
    from ucpformat.replay.recovering import Recovery
    from ucpformat.replay.replica.options import Replica
    from ucpformat.update_log.batch import Sum

__all__ = ["UpdateLog"]


class UpdateLog:
    """Logs what each step of an optimizer applies, beside full checkpoints, so that a job goes on from the very step.

    ``run`` is a directory of checkpoints, or any URL that takes a save. Every rank of ``group`` makes the log and calls
    `step` in place of ``optimizer.step()``; ranks share the logging of what several of them hold. Steps are written in
    the background: ``batch`` of them together, or as many as make a quarter of a MiB; to an object store all that wait
    are written as one, and with ``"auto"`` a second apart. A full checkpoint of ``model``
    and ``optimizer`` is saved first, and every ``full_every`` steps, in the background; with ``"auto"`` at no more than
    3 % of the time, when the log has grown to the size of one, or where failures come every ``mtbf`` seconds, as often
    as `cadence.exact_replay` says of measured times (`cadence`, ``ucp ls`` and ``ucp log`` show what was decided). The
    ``keep_full`` newest stay, and the steps since the oldest of them.

    ``state`` has objects with a ``state_dict()``, such as a schedule, a scaler or a sampler, whose state dicts are kept
    with every batch; ``rng`` says whether torch's generator on the CPU is. Both are kept as they are when `step`
    returns. What has a method ``step``, ``update`` or ``update_parameters``, as schedules, scalers and averages,
    changes later: it is kept as at the next forward in training mode that records gradients, or the next `step`.
    ``compressor`` changes gradients before each step (`TopK`). Residuals of one with error feedback are saved in every
    checkpoint, and in the log every ``residuals_every`` steps, where a batch then ends; None is in checkpoints alone.
    Every ``check_every`` steps sums of the state are kept, by which a recovery proves itself. At most ``pending_bytes``
    of captured steps wait to be written: `step` then waits for the disk.

    With ``replica``, True or a `Replica`, steps go to a process beside this one instead of to the disk. It has the
    state in its memory, makes each step again, saves the checkpoints, and outlives this process: `recover` gets the
    state from it. ``pending_bytes`` is then the memory in which steps wait for it, and a step is durable when a
    checkpoint of it, or of a later one, is.

    On a run that has a log, `recover` comes first, and ``after`` is what it returned.

    Raises:
        UcpError: ``UCP-E-EXISTS`` where the run has a log, and ``after`` is not given; ``UCP-E-FENCED`` where another
            process has gone on from the same recovery; ``UCP-E-MISMATCH`` for an optimizer whose steps cannot be
            replayed, or a job that can have no replica; what `save` raises.

    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> with ucp.UpdateLog("run", model, optimizer) as log:
    ...     for _ in range(3):
    ...         loss = model(torch.ones(1, 4)).sum()
    ...         loss.backward()
    ...         log.step()
    ...         optimizer.zero_grad()
    >>> again = torch.nn.Linear(4, 2)
    >>> recovery = ucp.recover("run", again, torch.optim.AdamW(again.parameters()))
    >>> recovery.step, recovery.exactness, torch.equal(again.weight, model.weight)
    (3, 'bitwise', True)
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        model: Module,
        optimizer: Optimizer,
        *,
        after: Recovery | None = None,
        state: Mapping[str, Any] | None = None,
        rng: bool = True,
        compressor: GradientCompressor | None = None,
        residuals_every: int | None = 100,
        batch: int | Literal["auto"] = "auto",
        full_every: int | Literal["auto"] | None = "auto",
        mtbf: float | None = None,
        keep_full: int = 2,
        check_every: int = 200,
        pending_bytes: int = 1 << 28,
        replica: bool | Replica = False,
        group: object = None,
    ) -> None:
        require_run(run)
        run = absolute(run)
        require_kinds(model=model, optimizer=optimizer, after=after, state=state, rng=rng)
        require_kinds(
            compressor=compressor, residuals_every=residuals_every, batch=batch, full_every=full_every
        )
        require_kinds(
            keep_full=keep_full, check_every=check_every, pending_bytes=pending_bytes, replica=replica
        )
        require_replayable(optimizer)
        residuals = residuals_of(compressor)
        self._group = own_group(group)
        if replica:
            require_of_replica(batch, residuals, mtbf)
            require_local(log_url(run), self._group, optimizer)
        self._pace = FullPace(None if replica else full_every, mtbf, self._group)
        self._rank = list(self._group.ranks).index(self._group.rank)
        self._model = model
        self._optimizer = optimizer
        self._group_options = GroupOptions(optimizer)
        self._check_every = check_every
        self._residuals_every = None if residuals is None else residuals_every
        self._tracked = tracked_state(model, optimizer, self._group, residuals)
        self._url = log_url(run)
        self._place = LogPlace(self._url)
        self._is_closed = False
        require_own_recovery(self._url, after, self._group)
        self._manager = CheckpointManager(
            run, keep_last=keep_full, asynchronous=not replica, group=self._group
        )
        self._step = 0 if after is None else after.step
        self._values = JobValues(state or {}, rng=rng)
        saved = None if after is None else after.checkpoint_step
        if after and after.from_replica and saved is None and after.log and after.epoch is not None:
            # The replica could not. Ahead of the epoch, since nothing on the disk leads to the state behind it.
            self._save_checkpoint(LogPosition(after.log, after.epoch))
            self._manager.wait()
            saved = self._step
        options = begun_options(optimizer) if after is None else after.options
        self._epoch, digest = begin_epoch(
            self._place, self._tracked, optimizer, self._group, self._step, after, options
        )
        whole = gradient_bytes(self._epoch)
        self._batch = steps_of_batch(1 if replica else batch, whole)
        growth = LogGrowth(
            self._step,
            gradient_bytes(self._epoch, self._rank) / max(1, whole),
            partial(checkpoint_bytes, optimizer, self._tracked),
            lambda: self._writer.written_bytes,
        )
        self._pace.begin(self._step, growth)
        self._steps: list[StepDraft] = []
        self._first_step = self._step
        self._options: tuple[Mapping[str, JsonValue], ...] | None = None
        self._is_unsettled = False
        self._sums: Sequence[Sum] = ()
        position = LogPosition(self._epoch.log, self._epoch.epoch)
        on_from = None if saved is None else self._manager.path(saved)
        is_chained = goes_on(self._url, self._epoch, after, on_from)
        if saved != self._step or not is_chained:
            self._save_checkpoint(position)
            if not is_chained:
                # Without it no step could be recovered, however durable.
                self._manager.wait()
        self._writer: BatchWriter | ReplicaFeed
        if replica:
            held, values = held_pieces(self._tracked, self._epoch), encoded_values(self._values.now())
            path = os.fspath(run)
            setting = Setting(path, self._url, self._epoch, digest, full_every, keep_full, self._group, held)
            self._writer = ReplicaFeed(replica, setting, model, optimizer, values, most_bytes=pending_bytes)
        else:
            every = seconds_of_batch(batch, self._place)
            self._writer = BatchWriter(
                self._place, self._epoch, digest, self._rank, most_bytes=pending_bytes, every=every
            )
        copied = self._writer.copied if isinstance(self._writer, ReplicaFeed) else None
        self._capture = Capture(self._tracked, self._epoch, self._rank, compressor, copied)
        if isinstance(self._writer, ReplicaFeed):
            self._writer.buffers = self._capture.buffers_seen
        self._hook = optimizer.register_step_pre_hook(self._capture.before_step)
        # Ahead of FSDP2's own hook, behind which parameters are whole for the time of the forward.
        self._forward_hook = model.register_forward_pre_hook(self._at_forward, prepend=True)

    @property
    def steps(self) -> int:
        """How many steps are done: the step of the state.

        >>> model = torch.nn.Linear(4, 2)
        >>> with ucp.UpdateLog("run", model, torch.optim.SGD(model.parameters())) as log:
        ...     log.steps
        0
        """
        return self._step

    @property
    def durable_step(self) -> int:
        """The step up to which this rank's batches are durable.

        >>> model = torch.nn.Linear(4, 2)
        >>> with ucp.UpdateLog("run", model, torch.optim.SGD(model.parameters())) as log:
        ...     log.durable_step
        0
        """
        return self._writer.durable_step

    @property
    def cadence(self) -> Cadence | None:
        """How often full checkpoints are saved, and why; None where ``full_every`` says it, or too little was measured.

        >>> model = torch.nn.Linear(4, 2)
        >>> with ucp.UpdateLog("run", model, torch.optim.SGD(model.parameters())) as log:
        ...     log.cadence is None
        True
        """
        return self._pace.cadence

    def step(self, scaler: Any = None) -> None:
        """Have the optimizer make its step, and log it; with a ``GradScaler`` through that, which may skip it.

        Gradients are copied as they are when the optimizer gets them, clipped and unscaled.

        Raises:
            UcpError: an error of the writing of an earlier step.

        >>> model = torch.nn.Linear(4, 2)
        >>> with ucp.UpdateLog("run", model, torch.optim.SGD(model.parameters())) as log:
        ...     model(torch.ones(1, 4)).sum().backward()
        ...     log.step()
        ...     log.steps
        1
        """
        self._require_going()
        require_scaler(scaler)
        require_replayable(self._optimizer)
        self._settle()
        if isinstance(self._writer, ReplicaFeed):
            self._writer.begin_step()
        # Behind the hooks of others, which may change gradients.
        self._hook.remove()
        self._hook = self._optimizer.register_step_pre_hook(self._capture.before_step)
        make = self._optimizer.step if scaler is None else partial(scaler.step, self._optimizer)
        draft = self._capture.step(
            partial(self._pace.made, make), with_residuals=self._has_residuals_at(self._step + 1)
        )
        options = self._group_options.now()
        if not self._steps or options != self._options:
            draft.options = self._options = options
        self._steps.append(draft)
        self._step += 1
        self._values.look()
        self._sums = self._sums_now()
        self._is_unsettled = True
        if isinstance(self._writer, ReplicaFeed) and not self._values.are_late:
            self._settle()

    def _require_open(self) -> None:
        if self._is_closed:
            raise error("UCP-E-MISMATCH", "the log is closed; recover(), and make another one", at=self._url)

    def _require_going(self) -> None:
        self._require_open()
        require_same_groups(self._optimizer, self._tracked, self._url)
        if self._capture.is_broken:
            raise error("UCP-E-MISMATCH", BROKEN, at=self._url)

    def _at_forward(self, *_: object) -> None:
        # A forward that only looks at the model, as for the loss that a schedule goes by, may come before its step.
        if torch.is_grad_enabled() and self._model.training:
            self._settle()

    def _settle(self) -> None:
        """End the last step: its batch is handed over, or a checkpoint saved, where that is due.

        A schedule makes its step, and a scaler is updated, behind the optimizer's step and before the next forward.
        """
        if not self._is_unsettled:
            return
        self._is_unsettled = False
        # A group that was added since is no part of that state.
        is_full = self._pace.is_due(self._step) and has_same_groups(self._optimizer, self._tracked)
        if self._is_batch_whole() or is_full:
            self._hand_over()
        if is_full:
            self._save_full()

    def _sums_now(self) -> Sequence[Sum]:
        """Return sums of the state where the batch ends with this step, and it is time for some."""
        # Ranks may meet in the question, and in `step` all of them are there: one that fails behind it does not wait.
        is_end = self._pace.is_due(self._step) or self._is_batch_whole()
        if not is_end or self._step // self._check_every == self._first_step // self._check_every:
            return ()
        return state_sums(self._tracked, self._optimizer, self._capture.owned)

    def _has_residuals_at(self, step: int) -> bool:
        return self._residuals_every is not None and step % self._residuals_every == 0

    def _is_batch_whole(self) -> bool:
        return len(self._steps) >= self._batch or self._has_residuals_at(self._step)

    def _hand_over(self) -> None:
        """Give the steps that wait to the writer."""
        if not self._steps:
            return
        first, last = self._first_step, self._first_step + len(self._steps)
        values = encoded_values(self._values.now())
        options = self._group_options.now()[: len(self._epoch.groups)]
        changed = None if options == self._options else options
        is_end = bool(self._sums) or self._has_residuals_at(self._step)
        self._writer.put(BatchDraft(first, self._steps, values, self._sums, changed, is_end))
        self._steps, self._first_step = [], last

    def full(self) -> None:
        """Save a full checkpoint of the state now, in the background, and remove steps that no recovery needs.

        >>> model = torch.nn.Linear(4, 2)
        >>> with ucp.UpdateLog("run", model, torch.optim.SGD(model.parameters()), full_every=None) as log:
        ...     model(torch.ones(1, 4)).sum().backward()
        ...     log.step()
        ...     log.full()
        >>> ucp.CheckpointManager("run").steps()
        [0, 1]
        """
        self._require_going()
        # Where a checkpoint is due at this step already, this is it.
        self._is_unsettled = False
        self._hand_over()
        self._save_full()

    def _save_full(self) -> None:
        if isinstance(self._writer, ReplicaFeed):
            self._writer.full()
            return
        # A process that is fenced learns of it here, and a checkpoint is never ahead of the log.
        position = LogPosition(self._epoch.log, self._epoch.epoch)
        if self._place.is_remote:  # many answers are to be waited for: the thread that saves does
            self._save_checkpoint(position, self._make_ready)
            return
        self._writer.drain()
        self._save_checkpoint(position)
        decided(self._group, self._prune)

    def _make_ready(self) -> None:
        self._writer.drain()
        if self._rank == 0:
            self._prune()

    def _save_checkpoint(self, at: LogPosition, make_ready: Callable[[], object] | None = None) -> None:
        content = checkpoint_content(self._model, self._optimizer, self._tracked, self._values.now())
        options: dict[str, Any] = {"log": at, "cadence": self._pace.cadence, "before_commit": make_ready}
        save = partial(self._manager.save, self._step, content, replace=True, **options)
        self._pace.saved(self._step, save)

    def _prune(self) -> bytes:
        """Remove batches that end before the oldest checkpoint, and those of branches that were given up."""
        return prune_before(min(self._manager.run.steps(), default=0), self._place)

    def flush(self) -> None:
        """Return when every step that was made is durable on all ranks.

        >>> model = torch.nn.Linear(4, 2)
        >>> with ucp.UpdateLog("run", model, torch.optim.SGD(model.parameters())) as log:
        ...     model(torch.ones(1, 4)).sum().backward()
        ...     log.step()
        ...     log.flush()
        ...     log.durable_step
        1
        """
        self._require_open()

        def write() -> bytes:
            self._settle()
            self._hand_over()
            self._writer.drain()
            return b""

        agreed(self._group, write)

    def close(self) -> None:
        """Write what waits, and end; the optimizer is then as before.

        Raises:
            UcpError: what went wrong in the background.

        >>> model = torch.nn.Linear(4, 2)
        >>> log = ucp.UpdateLog("run", model, torch.optim.SGD(model.parameters()))
        >>> log.close()
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._hook.remove()
        self._forward_hook.remove()
        try:
            try:
                self._settle()
                self._hand_over()
            finally:
                self._writer.close()
        finally:
            try:
                self._manager.close()
            finally:
                self._place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and isinstance(self._writer, ReplicaFeed) and len(self._group.ranks) > 1:
            # Other ranks may never come to the end, and a checkpoint takes them all: go as if killed.
            self._writer.leave()
        try:
            self.close()
        except Exception:
            if kind is None:
                raise
