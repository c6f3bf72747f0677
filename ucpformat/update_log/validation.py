"""Every problem of a log (SPEC-UPDATE-LOGS, SPEC section 18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ucpformat.errors import Problem, UcpError
from ucpformat.update_log.place import batch_key, epoch_key
from ucpformat.update_log.reading import StoredLog
from ucpformat.update_log.steps import entries_of, require_agreement, require_places, steps_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.update_log.documents import Epoch
    from ucpformat.update_log.reading import Chain

__all__ = ["log_problems", "problems_of"]


def log_problems(url: str) -> list[Problem]:
    """Return what is wrong with a log; every byte that counts is looked at.

    A batch that is torn, with nothing behind it, is what a crash leaves, and the warning ``UCP-W-UNREFERENCED``.
    """
    try:
        with StoredLog(url) as log:
            return [*problems_of(log)]
    except UcpError as problem:
        return [problem.problem()]


def problems_of(log: StoredLog) -> Iterator[Problem]:
    """Yield what is wrong with a log that is open, as `log_problems` returns it; raises what the store raises."""
    for number in log.keys.epochs:
        try:
            epoch = log.epoch(number).epoch
        except UcpError as problem:
            yield problem.problem()
            continue
        try:
            log.before(epoch)
        except UcpError as problem:
            # What is wrong with the other epoch by itself is told once.
            if problem.at.startswith(epoch_key(number)) or problem.code == "UCP-E-MISSING":
                yield problem.problem()
        strangers = {key.rank: key for key in reversed(log.keys.batches) if key.epoch == number}
        for rank in sorted(strangers):
            if rank >= epoch.ranks:
                message = f"the epoch has {epoch.ranks} ranks"
                yield Problem("UCP-E-LOG", batch_key(strangers[rank]), message)
        chains = [log.chain(number, rank) for rank in range(epoch.ranks)]
        for chain in chains:
            if chain.fault is not None:
                is_debris = chain.is_torn and not chain.behind
                code = "UCP-W-UNREFERENCED" if is_debris else chain.fault.code
                yield Problem(code, chain.fault.at, chain.fault.message)
        yield from _of_steps(log, epoch, chains)
    strange = {key.epoch for key in log.keys.batches} - {*log.keys.epochs}
    for number in sorted(strange):
        yield Problem("UCP-E-MISSING", epoch_key(number), "there are batches of this epoch, and no document")


def _of_steps(log: StoredLog, epoch: Epoch, chains: list[Chain]) -> Iterator[Problem]:
    """Yield what is wrong with steps that all ranks have."""
    begin = max(chain.first_step for chain in chains)
    stop = min(chain.stop_step for chain in chains)
    ranks = [steps_from(log, chain, begin) for chain in chains]
    pieces = epoch.pieces_by_tensor()
    for _ in range(begin, stop):
        steps = [next(rank) for rank in ranks]
        try:
            require_agreement(steps, epoch, pieces)
            for logged in entries_of(steps, epoch).values():
                require_places(logged, epoch.pieces[logged.entry.piece].shape)
        except UcpError as problem:
            yield problem.problem()
