"""Which checkpoint a recovery begins with, and at which step of the log it ends; nothing is loaded."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from ucpformat.errors import Problem, UcpError, error
from ucpformat.manager.run_directory import open_run
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.urls import local_path, name_of
from ucpformat.update_log.documents import least_exact
from ucpformat.update_log.durability import extent_of, require_on_branch
from ucpformat.update_log.place import LOG_NAME, SUFFIX, epoch_key
from ucpformat.update_log.reading import StoredLog
from ucpformat.update_log.residuals import residuals_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ucpformat.manager.run_directory import RunDirectory
    from ucpformat.model.root import LogPosition
    from ucpformat.reader import Checkpoint
    from ucpformat.update_log.documents import Exactness
    from ucpformat.update_log.durability import Extent, ReplayedSteps

__all__ = [
    "LOG_NAME",
    "STATELESS",
    "Candidate",
    "PlannedSteps",
    "RecoveryPlan",
    "absolute",
    "log_url",
    "oldest_usable",
    "plan_or_problem",
    "plan_recovery",
    "plan_with_log",
]

_EPOCH_GONE: Final = "the document of epoch {} is gone, and what was logged in it counts"
_ALLOW_LOSS: Final = "restore it from a copy; recover(allow_loss=True) goes on without"
STATELESS: Final = "stateless"
"""The value of a checkpoint that names parameters whose optimizer states are none, though slots of zeros are there."""


def log_url(run: str | os.PathLike[str]) -> str:
    """Return where the log of a run lies."""
    path = local_path(run)
    return f"{str(run).rstrip('/')}/{LOG_NAME}" if path is None else os.path.join(path, LOG_NAME)


def absolute(run: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return a run such that it is the same whatever directory the process changes to."""
    path = local_path(run)
    return run if path is None else os.path.abspath(path)


def require_run(run: str | os.PathLike[str]) -> None:
    """Refuse a log where its run is asked for: as a run it would look empty; raises ``UCP-E-MISMATCH``."""
    local_path(run)  # refuses what is no path
    if name_of(os.fspath(run).rstrip("/")).endswith(SUFFIX):
        message = "this is an update log; give the directory of the run that it lies in"
        raise error("UCP-E-MISMATCH", message, at=os.fspath(run))


class PlannedSteps(NamedTuple):
    """Steps ``[first_step, stop_step)`` of an epoch that a recovery makes again, and what it reads of the log for them.

    They are as exact as ``exactness`` says where the optimizer has the ``profile``.
    """

    epoch: int
    first_step: int
    stop_step: int
    optimizer: str
    exactness: Exactness
    profile: Mapping[str, str]
    ranks: int
    batches: int
    nbytes: int


class Candidate(NamedTuple):
    """A checkpoint that a recovery may begin with, and the steps that it then makes again, up to ``stop_step``.

    ``residuals_step`` is the last of these states whose residuals of error feedback are stored, None where there is no
    error feedback.
    """

    step: int
    path: str
    stop_step: int
    nbytes: int = 0
    steps: tuple[PlannedSteps, ...] = ()
    residuals_step: int | None = None

    @property
    def log_bytes(self) -> int:
        """Bytes of the log that are read."""
        return sum(one.nbytes for one in self.steps)

    @property
    def exactness(self) -> Exactness:
        """What the recovery gives where the profile is that of every epoch."""
        return least_exact(one.exactness for one in self.steps)


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Checkpoints to begin with, the newest first; ``faults`` say what was passed over.

    Those behind the first one are for the case that its data are damaged: only such as lead to the same step, unless
    durable steps may be lost.
    """

    candidates: list[Candidate]
    faults: list[Problem]

    def to_bytes(self) -> bytes:
        """Return the plan as other ranks get it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` was given."""
        found = json.loads(data)
        candidates = [
            Candidate(step, path, stop, nbytes, tuple(PlannedSteps(*one) for one in steps), residuals)
            for step, path, stop, nbytes, steps, residuals in found["candidates"]
        ]
        return cls(candidates, [Problem(**one) for one in found["faults"]])


def plan_recovery(
    run: str | os.PathLike[str], *, allow_loss: bool = False, keep_residuals: bool = False
) -> RecoveryPlan:
    """Look at the checkpoints of a run, and at every byte of its log that a recovery would read.

    With ``keep_residuals`` the recovery ends with the last state whose residuals are stored.

    Raises:
        UcpError: ``UCP-E-LOG`` where durable steps would be lost, or no checkpoint can be gone on from;
            ``UCP-E-MISMATCH`` for a log, and ``UCP-E-EXISTS`` for a checkpoint, in place of their run.
    """
    require_run(run)
    try:
        log = StoredLog(log_url(run))
    except UcpError as problem:
        if problem.code != "UCP-E-NOT-FOUND":
            raise
        directory = open_run(run)
        directory.require_no_checkpoint()
        return _without_steps(directory)
    with log:
        return plan_with_log(run, log, allow_loss=allow_loss, keep_residuals=keep_residuals)


def plan_or_problem(run: str | os.PathLike[str], log: StoredLog) -> tuple[RecoveryPlan | None, list[Problem]]:
    """Return the plan of a recovery, or why it is refused.

    That may be the only sign of a loss: a batch that is missing at the begin of an epoch may have been removed with
    those before the oldest checkpoint.
    """
    try:
        return plan_with_log(run, log), []
    except UcpError as refusal:
        return None, [refusal.problem()]


def _without_steps(directory: RunDirectory) -> RecoveryPlan:
    steps = directory.steps()[::-1]
    faults: list[Problem] = []
    if steps and _has_had_log(directory.path(steps[0])):
        message = "this run had an update log, which is gone: what it had behind the checkpoint is lost"
        faults.append(Problem("UCP-E-MISSING", LOG_NAME, message))
    return RecoveryPlan([_alone(step, directory.path(step)) for step in steps], faults)


def _has_had_log(path: str) -> bool:
    try:
        with open_checkpoint(path) as checkpoint:
            return checkpoint.root.log is not None
    except UcpError:
        return False  # a recovery says what is wrong with it


def plan_with_log(
    run: str | os.PathLike[str], log: StoredLog, *, allow_loss: bool = False, keep_residuals: bool = False
) -> RecoveryPlan:
    """Return what `plan_recovery` does, for the log of a run that is open."""
    directory = open_run(run)
    steps = directory.steps()[::-1]
    if not steps and log.has_batches():
        message = "the log has steps, and the run no checkpoint to begin with: it was removed"
        raise error("UCP-E-LOG", message, at=log.url)
    if not log.has_batches():
        return _begun(log, directory, steps, allow_loss)
    log.branch()  # what is wrong with documents of the log is no fault of a checkpoint
    found: list[Candidate] = []
    faults = _lost_epochs(log)
    if faults and not allow_loss:
        raise error(faults[0].code, f"{faults[0].message}; {_ALLOW_LOSS}", at=faults[0].at)
    for step in steps:
        path = directory.path(step)
        try:
            candidate, extent = _from_checkpoint(log, step, path, keep_residuals=keep_residuals)
            if found and candidate.stop_step != found[0].stop_step and not allow_loss:
                message = f"the log leads from it to step {candidate.stop_step} only"
                raise error("UCP-E-LOG", message, at=path)
        except UcpError as problem:
            _require_answer(problem, log)
            _require_epoch(problem, allow_loss)
            faults.append(Problem(problem.code, path, f"passed over: {problem.message}"))
            continue
        if not found:
            if extent.lost and not allow_loss:
                raise _loss(extent, log.url)
            faults[:0] = extent.faults
        found.append(candidate)
    if not found:
        message = f"no checkpoint can be gone on from: {faults[-1].message}"
        raise error("UCP-E-LOG", message, at=faults[-1].at)
    return RecoveryPlan(found, faults)


def _begun(log: StoredLog, directory: RunDirectory, steps: list[int], allow_loss: bool) -> RecoveryPlan:
    """Return the plan for a log that was only begun, or whose steps a replica has had: checkpoints alone are durable.

    Those that are of the log, and not on its branch, were given up in a recovery; others may be of no log.

    Raises:
        UcpError: ``UCP-E-LOG`` where all were given up, ``UCP-E-MISSING`` where the epoch of one is gone.
    """
    branch = log.branch()
    found: list[Candidate] = []
    faults: list[Problem] = []
    for step in steps:
        path = directory.path(step)
        position = None
        try:
            with open_checkpoint(path) as checkpoint:
                position = _position(log, checkpoint, path)
        except UcpError as problem:
            _require_answer(problem, log)
            _require_epoch(problem, allow_loss)
        try:
            if position is not None:
                require_on_branch(branch, position.epoch, step, path)
        except UcpError as problem:
            faults.append(Problem(problem.code, path, f"passed over: {problem.message}"))
        else:
            found.append(_alone(step, path))
    if faults and not found:
        message = f"no checkpoint can be gone on from: {faults[-1].message}"
        raise error("UCP-E-LOG", message, at=faults[-1].at)
    return RecoveryPlan(found, faults)


def oldest_usable(log: StoredLog, directory: RunDirectory, steps: Iterable[int]) -> int | None:
    """Return the least of some steps of a run whose checkpoint the log goes on from; root documents are read alone."""
    branch = log.branch()
    for step in sorted(steps):
        path = directory.path(step)
        try:
            with open_checkpoint(path) as checkpoint:
                require_on_branch(branch, _position(log, checkpoint, path).epoch, step, path)
                return step
        except UcpError as problem:
            _require_answer(problem, log)
    return None


def _lost_epochs(log: StoredLog) -> list[Problem]:
    """Return the epochs behind the newest one that have batches: their documents are gone."""
    newest = log.keys.epochs[-1] if log.keys.epochs else -1
    numbers = sorted({key.epoch for key in log.keys.batches if key.epoch > newest})
    return [Problem("UCP-E-MISSING", epoch_key(number), _EPOCH_GONE.format(number)) for number in numbers]


def _require_epoch(problem: UcpError, allow_loss: bool) -> None:
    """Raise again that the document of an epoch is gone: its steps are, unless they may be lost."""
    if problem.at.startswith("epochs/") and problem.code == "UCP-E-MISSING" and not allow_loss:
        raise error(problem.code, f"{problem.message}; {_ALLOW_LOSS}", at=problem.at)


def _require_answer(problem: UcpError, log: StoredLog) -> None:
    """Raise again what says that an object store has not answered: that is no fault of what lies there."""
    if log.store.has_not_answered(problem):
        raise problem


def _position(log: StoredLog, checkpoint: Checkpoint, path: str) -> LogPosition:
    """Return where in a log a checkpoint is; raises ``UCP-E-LOG`` for one of no log, or of another."""
    position = checkpoint.root.log
    if position is None or position.id != log.document.id:
        raise error("UCP-E-LOG", "the checkpoint is of no log, or of another one", at=path)
    if position.epoch > max(log.keys.epochs, default=-1):
        raise error("UCP-E-MISSING", _EPOCH_GONE.format(position.epoch), at=epoch_key(position.epoch))
    return position


def _alone(step: int, path: str) -> Candidate:
    """Return a checkpoint behind which no step is logged."""
    try:
        with open_checkpoint(path) as checkpoint:
            return Candidate(step, path, step, _stored_bytes(checkpoint))
    except UcpError:
        return Candidate(step, path, step)  # a recovery says what is wrong with it, if it needs it


def _from_checkpoint(
    log: StoredLog, step: int, path: str, *, keep_residuals: bool
) -> tuple[Candidate, Extent]:
    """Return what a recovery that begins with a checkpoint does.

    Raises:
        UcpError: where it cannot be gone on from.
    """
    with open_checkpoint(path) as checkpoint:
        position = _position(log, checkpoint, path)
        nbytes = _stored_bytes(checkpoint)
    extent = extent_of(log, (position.epoch, step))
    replayed, stop = extent.replayed, extent.stop_step
    with_residuals = residuals_step(step, replayed)
    if keep_residuals and with_residuals is not None:
        stop = with_residuals
        replayed = tuple(one._replace(stop=min(one.stop, stop)) for one in replayed if one.begin < stop)
    planned = tuple(_planned(one) for one in replayed)
    return Candidate(step, path, stop, nbytes, planned, with_residuals), extent


def _planned(replayed: ReplayedSteps) -> PlannedSteps:
    epoch, batches = replayed.epoch, replayed.batches()
    nbytes = sum(batch.start + batch.header.payload_bytes for batch in batches)
    return PlannedSteps(
        epoch.epoch,
        replayed.begin,
        replayed.stop,
        epoch.optimizer,
        epoch.exactness,
        dict(epoch.profile),
        epoch.ranks,
        len(batches),
        nbytes,
    )


def _stored_bytes(checkpoint: Checkpoint) -> int:
    return sum(stored.nbytes for stored in checkpoint.slots())


def _loss(extent: Extent, url: str) -> UcpError:
    message = f"durable steps lie behind it; recover(allow_loss=True) ends at step {extent.stop_step}"
    first = extent.faults[0] if extent.faults else Problem("UCP-E-LOG", url, "batches are missing")
    return error("UCP-E-LOG", f"{message}: {first.message}", at=first.at)
