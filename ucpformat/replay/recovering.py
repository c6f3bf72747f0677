"""`recover`: the newest durable step of a run, from a checkpoint and the log behind it (SPEC-UPDATE-LOGS 4)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ucpformat.distributed.group import agreed, decided
from ucpformat.errors import Problem, UcpError, error
from ucpformat.manager.collection import is_damage
from ucpformat.reader import open_checkpoint
from ucpformat.replay.begun_options import begun_options, require_same_options
from ucpformat.replay.compressors import residuals_of
from ucpformat.replay.exactness import require_replayable
from ucpformat.replay.log_options import require_kinds
from ucpformat.replay.own_values import encoded_values, give_back
from ucpformat.replay.plan import STATELESS, RecoveryPlan, log_url, plan_recovery, require_run
from ucpformat.replay.replaying import LiveJob, Replay, Replayed, SumsDifferError, own_values_differ
from ucpformat.replay.replica.taking import Taken, taken
from ucpformat.replay.tracked import RESIDUALS, optimizer_name, tracked_state
from ucpformat.state_dict.save_load import load
from ucpformat.state_dict.torch_group import group_of
from ucpformat.update_log.reading import StoredLog

if TYPE_CHECKING:
    import os

    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.distributed.group import Group
    from ucpformat.jsonio import JsonValue
    from ucpformat.replay.compressors import GradientCompressor
    from ucpformat.replay.plan import Candidate
    from ucpformat.replay.tracked import TrackedState
    from ucpformat.state_dict.reading import LoadReport
    from ucpformat.update_log.documents import Exactness

__all__ = ["Recovery", "recover"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `recover` did.

    Attributes:
        step: the step of the state.
        checkpoint_step: that of the checkpoint that it began with, or that a replica has saved of its state; None where
            there is none.
        exactness: ``bitwise`` where the state has the very bits that training had, ``tolerance`` or ``lossy`` else.
        continuation: how near training that goes on from here is to one that was not interrupted: ``exactness``, or
            ``lossy`` where residuals of error feedback are not stored of this step or no ``compressor`` takes them, or
            where ranks of a job of another size had other values of their own than the first one.
        checked: how many sums of the state that the log has were compared with it, and found equal.
        faults: batches that are missing, torn or damaged, and checkpoints that were passed over.
        values: the rank's own values that no object has taken.
        from_replica: whether the state came from the memory of a replica.
        log, epoch, epoch_digest, next_epoch, options: what `UpdateLog` goes on from.

    >>> model = torch.nn.Linear(4, 2)
    >>> ucp.recover("nothing", model, torch.optim.SGD(model.parameters())).step
    0
    """

    step: int = 0
    checkpoint_step: int | None = None
    exactness: Exactness = "bitwise"
    continuation: Exactness = "bitwise"
    checked: int = 0
    faults: tuple[Problem, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    log: str | None = None
    epoch: int | None = None
    epoch_digest: str = ""
    next_epoch: int = 0
    from_replica: bool = False
    options: tuple[JsonValue, ...] = field(default=(), compare=False, repr=False)


def recover(
    run: str | os.PathLike[str],
    model: Module,
    optimizer: Optimizer,
    *,
    state: Mapping[str, Any] | None = None,
    rng: bool = True,
    compressor: GradientCompressor | None = None,
    keep_residuals: bool = False,
    allow_loss: bool = False,
    allow_other_options: bool = False,
    group: object = None,
) -> Recovery:
    """Bring a model and its optimizer to the newest durable step of a run that `UpdateLog` has logged.

    The newest good checkpoint is loaded, and the optimizer makes the steps behind it again, with the gradients and the
    options that the log has. Every rank of ``group`` calls this, under whatever parallelism, with the objects whose
    states the log kept as ``state``. Where the run has no checkpoint, nothing is changed.

    ``compressor`` is that of the log, and gets its residuals back, if it has error feedback. A log has them every so
    many steps: with ``keep_residuals`` the state is the last one whose residuals are stored, and without, the newest,
    with residuals of zero unless they are stored (``continuation``).

    Where durable steps lie behind a batch that is missing or damaged, that is an error, unless ``allow_loss``: the
    state is then that before the first such batch. What a crash has cut off at the end is no loss: it was not durable.

    The optimizer then has the options of the log. One that was made with others, beside the learning rate and which
    kernels it uses, is refused, unless ``allow_other_options``: set what is to be another afterwards.

    Returns:
        The step, how exact it is, and what `UpdateLog` takes as ``after``.

    Raises:
        UcpError: ``UCP-E-MISMATCH`` for other parameters, groups, options, or another optimizer than the log has;
            ``UCP-E-LOG`` for durable steps that would be lost; what `load` raises.

    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> recovery = ucp.recover("run", model, optimizer)
    >>> with ucp.UpdateLog("run", model, optimizer, after=recovery) as log:
    ...     for _ in range(log.steps, 5):
    ...         model(torch.ones(1, 4)).sum().backward()
    ...         log.step()
    >>> ucp.recover("run", model, optimizer).step
    5
    """
    require_run(run)
    require_kinds(model=model, optimizer=optimizer, state=state, rng=rng, compressor=compressor)
    require_kinds(
        keep_residuals=keep_residuals, allow_loss=allow_loss, allow_other_options=allow_other_options
    )
    require_replayable(optimizer)
    together = group_of(group)
    url = log_url(run)
    options = tuple(begun_options(optimizer))
    if not allow_other_options:
        agreed(together, lambda: _require_options(url, optimizer, options))
    found = _recovered(
        run, model, optimizer, dict(state or {}), rng, compressor, keep_residuals, allow_loss, together
    )
    return replace(found, options=options)


def _require_options(url: str, optimizer: Optimizer, options: tuple[JsonValue, ...]) -> bytes:
    require_same_options(url, optimizer_name(optimizer), options)
    return b""


def _recovered(
    run: str | os.PathLike[str],
    model: Module,
    optimizer: Optimizer,
    state: dict[str, Any],
    rng: bool,
    compressor: GradientCompressor | None,
    keep_residuals: bool,
    allow_loss: bool,
    together: Group,
) -> Recovery:
    url = log_url(run)
    held = taken(url, model, optimizer, together)
    if isinstance(held, Taken):
        return Recovery(
            held.step,
            held.step if held.is_saved else None,
            held.exactness,
            held.exactness,
            held.checked,
            (),
            give_back(held.values, state, rng=rng),
            held.log,
            held.epoch,
            held.digest,
            held.epoch + 1,
            from_replica=True,
        )
    found = decided(together, lambda: _plan(run, allow_loss, keep_residuals))
    plan = RecoveryPlan.from_bytes(found)
    if not plan.candidates:
        return _without_checkpoint(url, together)
    job = _Job(url, model, optimizer, state, rng, together, residuals_of(compressor))
    job.require_same(plan.candidates[0].step)
    faults = [*plan.faults, *([] if held is None else [held])]
    for candidate in plan.candidates:
        stop = candidate.stop_step
        while True:
            fault = job.load(candidate)
            if fault is not None:
                faults.append(Problem(fault.code, candidate.path, f"passed over: {fault.message}"))
                break
            try:
                return job.replay(candidate, stop, tuple(faults))
            except SumsDifferError as differ:
                message = f"step {differ.step} has not the state of training: {differ}; went back to step {differ.good}"
                faults.append(Problem("UCP-E-LOG", url, message))
                stop = differ.good
    message = "no checkpoint of this run could be loaded"
    if not allow_loss:
        message = (
            "no checkpoint could be loaded that leads to the last durable step; allow_loss=True takes any"
        )
    raise error("UCP-E-NOT-FOUND", f"{message}: {faults[-1].message}", at=str(run))


def _plan(run: str | os.PathLike[str], allow_loss: bool, keep_residuals: bool) -> bytes:
    return plan_recovery(run, allow_loss=allow_loss, keep_residuals=keep_residuals).to_bytes()


def _without_checkpoint(url: str, group: Group) -> Recovery:
    """Return the recovery of a run that has no checkpoint yet, though a log may have been begun."""

    def look() -> bytes:
        try:
            with StoredLog(url) as log:
                return json.dumps(
                    [log.document.id, len(log.keys.epochs) and log.keys.epochs[-1] + 1]
                ).encode()
        except UcpError as problem:
            if problem.code != "UCP-E-NOT-FOUND":
                raise
            return b"null"

    found = json.loads(decided(group, look))
    if found is None:
        return Recovery()
    if found[1]:
        # The first epoch had begun, and its first checkpoint was not committed.
        with StoredLog(url) as log:
            last = log.epoch(found[1] - 1)
        return Recovery(log=found[0], epoch=last.epoch.epoch, epoch_digest=last.digest, next_epoch=found[1])
    return Recovery(log=found[0])


class _Job:
    """The job that recovers, on one rank."""

    def __init__(
        self,
        url: str,
        model: Module,
        optimizer: Optimizer,
        state: dict[str, Any],
        rng: bool,
        group: Group,
        residuals: dict[str, Any] | None,
    ) -> None:
        self._url = url
        self._model = model
        self._optimizer = optimizer
        self._state = state
        self._rng = rng
        self._group = group
        self._own: Mapping[str, Any] = {}
        self._own_differ = False
        self._residuals = residuals
        self._has_residuals = False
        self._tracked: TrackedState = tracked_state(model, optimizer, group, residuals)
        self._live = LiveJob(optimizer, self._tracked, group, list(group.ranks).index(group.rank))

    def require_same(self, begin: int) -> None:
        """Refuse model and optimizer where they are not those of the log from a step on, before anything is changed."""
        try:
            log = StoredLog(self._url)
        except UcpError as problem:
            if problem.code == "UCP-E-NOT-FOUND":
                return
            raise
        with log:
            replay = Replay(self._live, log, begin, begin)
            for stored, cut in log.branch():
                if cut is None or cut > begin:
                    replay.applier(stored.epoch)

    def load(self, candidate: Candidate) -> UcpError | None:
        """Load a checkpoint; what is wrong with it, as all ranks agree, is returned where another may do."""
        failure: UcpError | None = None

        def fill() -> bytes:
            nonlocal failure
            try:
                state: dict[str, Any] = {"model": self._model, "optim": self._optimizer}
                with open_checkpoint(candidate.path) as checkpoint:
                    state |= dict.fromkeys({"own", STATELESS} & checkpoint.state.values.keys())
                    self._has_residuals = any(name.startswith(f"{RESIDUALS}.") for name in checkpoint)
                self._clear_residuals()
                if self._has_residuals and self._residuals is not None:
                    state[RESIDUALS] = self._residuals
                reports: list[LoadReport] = []
                rule = self._first_where_none if "own" in state else None
                load(
                    candidate.path,
                    state,
                    group=self._group,
                    per_rank=rule,
                    strict=False,
                    report=reports.append,
                )
                self._own = state.get("own") or {}
                self._settle(reports[0], set(state.get(STATELESS) or ()), candidate.path)
            except UcpError as problem:
                if not is_damage(problem.code):
                    raise
                failure = problem
                return b"damaged"
            return b""

        said = agreed(self._group, fill)
        if not any(said):
            return None
        return failure or error("UCP-E-RANK", "another rank found it damaged", at=candidate.path)

    def _settle(self, report: LoadReport, stateless: set[str], path: str) -> None:
        """Take away the states of parameters that had none: those that had never had a gradient.

        Raises:
            MismatchError: ``UCP-E-MISMATCH`` for anything else that the checkpoint has not, or has beside.
        """
        missing = set(report.missing)
        for one in self._tracked.tensors:
            mine = {name for name in missing if name.startswith(f"optim.state.{one.atom}.")}
            is_stateless = len(mine) == len(self._optimizer.state.get(one.tensor, ()))
            missing -= mine if is_stateless else set()
            if is_stateless or one.atom in stateless:
                self._optimizer.state.pop(one.tensor, None)
        # A job without error feedback needs no residuals.
        needless = ("optim.param_groups.", f"{RESIDUALS}.")
        # Under FSDP2 a state without entries is saved as such.
        empty = {f"optim.state.{name}" for name in stateless}
        unexpected = {
            name for name in report.unexpected if not name.startswith(needless) and name not in empty
        }
        for name in sorted({*missing, *unexpected}):
            what = (
                "has no such entry" if name in missing else "has an entry that model and optimizer have not"
            )
            raise error("UCP-E-MISMATCH", f"{name}: the checkpoint {what}", at=path)

    def replay(self, candidate: Candidate, stop: int, faults: tuple[Problem, ...]) -> Recovery:
        """Replay the log from a checkpoint on, up to a step."""
        try:
            log = StoredLog(self._url, verify=False)
        except UcpError as problem:
            if problem.code != "UCP-E-NOT-FOUND":
                raise
            left = give_back(self._own, self._state, rng=self._rng)
            going_on = self._continuation(Replayed("bitwise"))
            return Recovery(candidate.step, candidate.step, continuation=going_on, faults=faults, values=left)
        with log:
            found = Replay(self._live, log, candidate.step, stop).run()
            going_on = self._continuation(found)
            own = self._own if found.values is None else found.values
            left = give_back(own, self._state, rng=self._rng)
            branch = log.branch()
            if not branch:
                return Recovery(
                    stop,
                    candidate.step,
                    continuation=going_on,
                    faults=faults,
                    values=left,
                    log=log.document.id,
                )
            last = branch[-1].stored
            return Recovery(
                stop,
                candidate.step,
                found.exactness,
                going_on,
                found.checked,
                faults,
                left,
                log.document.id,
                last.epoch.epoch,
                last.digest,
                log.keys.epochs[-1] + 1,
            )

    def _continuation(self, replayed: Replayed) -> Exactness:
        """Return how near training is that goes on from here; residuals that are not those of the state are cleared."""
        is_at_checkpoint = replayed.has_residuals is None
        has_residuals = self._has_residuals if is_at_checkpoint else replayed.has_residuals
        are_stored = self._residuals is not None and (is_at_checkpoint or replayed.residuals_are_stored)
        if has_residuals and not are_stored:
            self._clear_residuals()
        values_differ = self._own_differ if replayed.values is None else replayed.values_differ
        return "lossy" if values_differ or (has_residuals and not are_stored) else replayed.exactness

    def _clear_residuals(self) -> None:
        for one in self._tracked.tensors:
            if one.role == "residual":
                one.tensor.zero_()

    def _first_where_none(self, stored: Any, position: int, size: int) -> object:
        """Return a rank's own values; in a job of another size those of the first rank."""
        entries = stored.entries
        self._own_differ = len(entries) != size and own_values_differ([*map(encoded_values, entries)])
        return entries[position] if len(entries) == size else entries[0]
