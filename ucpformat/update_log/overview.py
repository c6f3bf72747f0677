"""What a log has, epoch by epoch (SPEC-UPDATE-LOGS section 4)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ucpformat.errors import UcpError
from ucpformat.update_log.place import batch_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.update_log.documents import Exactness
    from ucpformat.update_log.reading import StoredLog

__all__ = ["EpochOverview", "overview"]


@dataclass(frozen=True, slots=True)
class EpochOverview:
    """What an epoch has: steps ``[first_step, stop_step)`` that are there, in how many batches and bytes.

    ``counts`` says whether it is on the branch; what it has beyond ``stop_step`` was given up then. ``steps_written``
    are all that are durable.
    """

    epoch: int
    first_step: int
    stop_step: int
    ranks: int
    batches: int
    bytes: int
    steps_written: int
    optimizer: str
    exactness: Exactness
    counts: bool

    def to_json(self) -> dict[str, Any]:
        """Return what programs are told."""
        return asdict(self)


def overview(log: StoredLog) -> Iterator[EpochOverview]:
    """Yield what each epoch has whose document can be read; raises as `StoredLog.branch`."""
    counted = {one.stored.epoch.epoch: one.stop_step for one in log.branch()}
    for number in log.keys.epochs:
        try:
            epoch = log.epoch(number).epoch
        except UcpError:
            continue
        keys = [key for key in log.keys.batches if key.epoch == number]
        chains = [log.chain(number, rank) for rank in range(epoch.ranks)]
        first = min(chain.first_step for chain in chains)
        durable = min(chain.stop_step for chain in chains)
        stop = counted.get(number)
        yield EpochOverview(
            number,
            max(first, epoch.first_step),
            durable if stop is None else min(durable, stop),
            epoch.ranks,
            len(keys),
            sum(log.store.size(batch_key(key)) or 0 for key in keys),
            durable - first,
            epoch.optimizer,
            epoch.exactness,
            number in counted,
        )
