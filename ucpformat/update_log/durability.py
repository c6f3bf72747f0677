"""How far a log goes: what is durable, and where a recovery ends (SPEC-UPDATE-LOGS section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.errors import Problem
    from ucpformat.update_log.reading import StoredLog, Stretch

__all__ = ["Extent", "extent_of", "require_on_branch"]


@dataclass(frozen=True, slots=True)
class Extent:
    """The steps of a log that can be replayed: the branch, and the step at which a recovery ends.

    ``faults`` are batches that are missing, torn or damaged; ``lost`` says that durable ones lie behind such.
    """

    branch: tuple[Stretch, ...]
    stop_step: int
    faults: tuple[Problem, ...]
    lost: bool


def extent_of(log: StoredLog) -> Extent | None:
    """Return how far a log goes, None where it has no epoch; every byte of the branch is looked at.

    Raises:
        UcpError: what reading the documents of the log raises.
    """
    branch = log.branch()
    if not branch:
        return None
    faults: list[Problem] = []
    for number, (stored, cut) in enumerate(branch):
        epoch = stored.epoch
        chains = [log.chain(epoch.epoch, rank) for rank in range(epoch.ranks)]
        faults += [chain.fault for chain in chains if chain.fault is not None]
        durable = min(chain.stop_step for chain in chains)
        is_short = cut is not None and durable < cut
        if cut is None or is_short:
            ends = set.intersection(*(chain.ends() for chain in chains))
            stop = max((end for end in ends if end <= durable), default=epoch.first_step)
            # Behind a batch that does not count others may lie, or the epochs that went on from there.
            lost = is_short or any(chain.behind for chain in chains)
            return Extent(tuple(branch[: number + 1]), stop, tuple(faults), lost)
    raise AssertionError("the last epoch of a branch has no cut")


def require_on_branch(branch: Sequence[Stretch], epoch: int, step: int, at: str) -> None:
    """Refuse a checkpoint with the state of a step of an epoch that is not on the branch (SPEC UCP-R-039).

    Raises:
        InvalidCheckpointError: ``UCP-E-LOG``.
    """
    for stored, stop in branch:
        if stored.epoch.epoch == epoch:
            if stored.epoch.first_step <= step and (stop is None or step <= stop):
                return
            message = f"epoch {epoch} counts up to step {stop} only, and the checkpoint has step {step}"
            raise error("UCP-E-LOG", message, at=at)
    message = f"epoch {epoch} is not one that the newest goes on from: this state was given up in a recovery"
    raise error("UCP-E-LOG", message, at=at)
