"""Which checkpoint a recovery begins with, and at which step of the log it ends; nothing is loaded."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from ucpformat.errors import Problem, UcpError, error
from ucpformat.manager.run_directory import open_run
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.urls import local_path, open_store
from ucpformat.update_log.durability import extent_of, require_on_branch
from ucpformat.update_log.place import LOG_KEY
from ucpformat.update_log.reading import StoredLog

if TYPE_CHECKING:
    import os

    from ucpformat.update_log.durability import Extent

__all__ = ["LOG_NAME", "STATELESS", "Candidate", "RecoveryPlan", "has_log", "log_url", "plan_recovery"]

LOG_NAME: Final = "updates.ucplog"
STATELESS: Final = "stateless"
"""The value of a checkpoint that names parameters whose optimizer states are none, though slots of zeros are there."""


def log_url(run: str | os.PathLike[str]) -> str:
    """Return where the log of a run lies."""
    path = local_path(run)
    return f"{(str(run) if path is None else path).rstrip('/')}/{LOG_NAME}"


def has_log(url: str) -> bool:
    """Return whether a log lies at a path or URL."""
    store = open_store(url)
    try:
        return store.size(LOG_KEY) is not None
    except UcpError:
        return False
    finally:
        store.close()


class Candidate(NamedTuple):
    """A checkpoint that a recovery may begin with."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Checkpoints to begin with, the newest first, and the step to end with; ``faults`` say what was passed over."""

    candidates: list[Candidate]
    stop_step: int
    faults: list[Problem]

    def to_bytes(self) -> bytes:
        """Return the plan as other ranks get it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` was given."""
        found = json.loads(data)
        candidates = [Candidate(*one) for one in found["candidates"]]
        return cls(candidates, found["stop_step"], [Problem(**one) for one in found["faults"]])


def plan_recovery(run: str | os.PathLike[str], *, allow_loss: bool = False) -> RecoveryPlan:
    """Look at the checkpoints of a run, and at every byte of its log that counts.

    Raises:
        UcpError: ``UCP-E-LOG`` where durable steps would be lost, or no checkpoint can be gone on from.
    """
    url = log_url(run)
    directory = open_run(run)
    steps = directory.steps()[::-1]
    if not steps:
        return RecoveryPlan([], 0, [])
    try:
        log = StoredLog(url)
    except UcpError as problem:
        if problem.code != "UCP-E-NOT-FOUND":
            raise
        # Checkpoints alone: the newest good one.
        candidates = [Candidate(step, directory.path(step)) for step in steps]
        return RecoveryPlan(candidates, 0, [])
    with log:
        branch = log.branch()
        if not branch or not log.keys.batches:
            # A log that was begun, and has no steps: whatever checkpoints there are, they are what is durable.
            return RecoveryPlan([Candidate(step, directory.path(step)) for step in steps], 0, [])
        found: list[Candidate] = []
        faults: list[Problem] = []
        stop: int | None = None
        for step in steps:
            path = directory.path(step)
            try:
                with open_checkpoint(path) as checkpoint:
                    progress = checkpoint.root.progress
                position = None if progress is None else progress.log
                if position is None or position.id != log.document.id:
                    raise error("UCP-E-LOG", "the checkpoint is of no log, or of another one", at=path)
                require_on_branch(branch, position.epoch, step, path)
                extent = extent_of(log, (position.epoch, step))
                if extent is None:
                    raise AssertionError("a branch that has an epoch has an extent")
                if stop is not None and extent.stop_step != stop:
                    raise error("UCP-E-LOG", f"the log has not all steps from {step} to {stop}", at=path)
            except UcpError as problem:
                faults.append(Problem(problem.code, path, f"passed over: {problem.message}"))
                continue
            if stop is None:
                _require_whole(extent, step, url, allow_loss=allow_loss)
                faults[:0] = extent.faults
                stop = extent.stop_step
            found.append(Candidate(step, path))
        if stop is None:
            raise error(
                "UCP-E-LOG", f"no checkpoint can be gone on from: {faults[-1].message}", at=faults[-1].at
            )
        return RecoveryPlan(found, stop, faults)


def _require_whole(extent: Extent, step: int, url: str, *, allow_loss: bool) -> None:
    if extent.lost and not allow_loss:
        end = max(step, extent.stop_step)
        message = f"durable steps lie behind it; recover(allow_loss=True) ends at step {end}"
        first = extent.faults[0] if extent.faults else Problem("UCP-E-LOG", url, "batches are missing")
        raise error("UCP-E-LOG", f"{message}: {first.message}", at=first.at)
