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
    """The steps of a log that can be replayed: the branch, and the step that the log has last.

    ``faults`` are batches that are missing, torn or damaged; ``lost`` says that durable ones lie behind such.
    """

    branch: tuple[Stretch, ...]
    stop_step: int
    faults: tuple[Problem, ...]
    lost: bool


def extent_of(log: StoredLog, begin: tuple[int, int] | None = None) -> Extent | None:
    """Return how far a log goes from an epoch and a step of the branch on, None where it has no epoch.

    Every byte of the epochs from there on is looked at; without ``begin``, of all that the branch has.

    Raises:
        UcpError: ``UCP-E-LOG`` where steps behind ``begin`` were removed; what reading the documents of the log raises.
    """
    branch = log.branch()
    if not branch:
        return None
    first, step = begin or (0, 0)
    faults: list[Problem] = []
    for stored, cut in branch:
        epoch = stored.epoch
        if epoch.epoch < first or (cut is not None and cut <= step):
            continue
        chains = [log.chain(epoch.epoch, rank) for rank in range(epoch.ranks)]
        if begin is not None and max(chain.first_step for chain in chains) > step:
            raise error("UCP-E-LOG", f"steps from {step} on were removed from the log", at=log.url)
        faults += [chain.fault for chain in chains if chain.fault is not None]
        durable = min(chain.stop_step for chain in chains)
        if cut is not None and durable >= cut:
            step = cut
            continue
        ends = set.intersection(*(chain.ends() for chain in chains))
        # A key may lie about a step before the epoch.
        stop = max([epoch.first_step, *(end for end in ends if end <= durable)])
        # Behind a batch that does not count others may lie, or the epochs that went on from there.
        lost = cut is not None or any(chain.behind for chain in chains)
        return Extent(tuple(branch), stop, tuple(faults), lost)
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
