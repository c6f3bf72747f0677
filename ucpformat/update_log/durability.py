"""How far a log goes: what is durable, and where a recovery ends (SPEC-UPDATE-LOGS section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.errors import Problem
    from ucpformat.update_log.documents import Epoch
    from ucpformat.update_log.reading import Chain, StoredBatch, StoredLog, Stretch

__all__ = ["Extent", "ReplayedSteps", "extent_of", "require_on_branch"]


class ReplayedSteps(NamedTuple):
    """Steps ``[begin, stop)`` of an epoch that a recovery makes again, and the batches of each rank that have them."""

    epoch: Epoch
    begin: int
    stop: int
    chains: tuple[Chain, ...]

    def batches(self) -> list[StoredBatch]:
        """Return the batches of all ranks that have one of the steps."""
        return [
            batch
            for chain in self.chains
            for batch in chain.batches
            if batch.header.first_step < self.stop and batch.header.stop_step > self.begin
        ]


@dataclass(frozen=True, slots=True)
class Extent:
    """The steps of a log that a recovery makes again from a state on, and the state that it ends with.

    ``faults`` are batches that are missing, torn or damaged; ``lost`` says that durable ones lie behind such.
    """

    replayed: tuple[ReplayedSteps, ...]
    stop_step: int
    faults: tuple[Problem, ...]
    lost: bool


def extent_of(log: StoredLog, begin: tuple[int, int]) -> Extent:
    """Return how far a log goes from a state of the branch on, an epoch and a step.

    Raises:
        UcpError: ``UCP-E-LOG`` where the state is not on the branch, or steps behind it were removed; what reading the
            documents of the log raises.
    """
    branch = log.branch()
    first, step = begin
    require_on_branch(branch, first, step, log.url)
    found: list[ReplayedSteps] = []
    for stored, cut in branch:
        epoch = stored.epoch
        if epoch.epoch < first or (cut is not None and cut <= step):
            continue
        chains = tuple(log.chain(epoch.epoch, rank, step) for rank in range(epoch.ranks))
        if max(chain.first_step for chain in chains) > step:
            raise error("UCP-E-LOG", f"steps from {step} on were removed from the log", at=log.url)
        durable = min(chain.stop_step for chain in chains)
        goes_on = cut is not None and durable >= cut
        ends = set.intersection(*(chain.ends() for chain in chains))
        stop = cut if cut is not None and goes_on else max([step, *(end for end in ends if end <= durable)])
        if stop > step:
            found.append(ReplayedSteps(epoch, step, stop, chains))
        step = stop
        if not goes_on:
            # Behind a batch that does not count others may lie, or the epochs that went on from there.
            lost = cut is not None or any(chain.behind for chain in chains)
            faults = tuple(chain.fault for chain in chains if chain.fault is not None)
            return Extent(tuple(found), stop, faults, lost)
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
    if not branch:
        raise error("UCP-E-LOG", f"the checkpoint is of epoch {epoch}, and the log has no epoch", at=at)
    message = f"epoch {epoch} is not one that the newest goes on from: this state was given up in a recovery"
    raise error("UCP-E-LOG", message, at=at)
