"""A recovery from memory: all ranks of a job take the state of one step from their replicas, or none does."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from ucpformat.distributed.group import agreed
from ucpformat.errors import Problem
from ucpformat.replay.replica.finding import found_replica
from ucpformat.replay.replica.spans import Span, common_step
from ucpformat.update_log.documents import least_exact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.distributed.group import Group
    from ucpformat.replay.replica.finding import Found, Held
    from ucpformat.update_log.documents import Exactness

__all__ = ["Taken", "taken"]


class Taken(NamedTuple):
    """What came from the replicas: ``values`` are this rank's own; ``is_saved`` says whether there is a checkpoint."""

    step: int
    is_saved: bool
    exactness: Exactness
    checked: int
    values: Mapping[str, Any]
    log: str
    epoch: int
    digest: str


def taken(url: str, model: Module, optimizer: Optimizer, group: Group) -> Taken | Problem | None:
    """Fill model and optimizer from the replicas of all ranks; None where there are none.

    A problem says why the replicas that there are do not do; the state has to come from the disk then, since some ranks
    may have been filled.

    Raises:
        UcpError: ``UCP-E-MISMATCH`` for another model or optimizer than that of the replica.
    """
    position = list(group.ranks).index(group.rank)
    found = found_replica(url, position, len(group.ranks))
    with ExitStack() as streams:
        if found is not None:
            streams.enter_context(found.stream)
        mine = None if found is None else [[found.digest, found.company], found.span]
        told = group.all_gather(json.dumps(mine).encode())
        step = _step([json.loads(one) for one in told], url)
        if found is None or not isinstance(step, int):
            return None if isinstance(step, int) else step
        return _filled(found, step, model, optimizer, group, url)


def _step(told: Sequence[Any], url: str) -> int | Problem | None:
    """Return the step that all replicas can give."""
    missing = [str(rank) for rank, one in enumerate(told) if one is None]
    if len(missing) == len(told):
        return None
    if missing:
        message = f"the state came from the disk: rank {', '.join(missing)} found no replica of its own on its machine"
        return Problem("UCP-E-RANK", url, message)
    step = common_step([Span(*span) for _, span in told])
    if step is None or any(name != told[0][0] for name, _ in told):
        message = f"the state came from the disk: replicas have steps {told[0][1]} to {told[-1][1]}, and none in common"
        return Problem("UCP-E-RANK", url, message)
    return step


def _filled(
    found: Found, step: int, model: Module, optimizer: Optimizer, group: Group, url: str
) -> Taken | Problem:
    held: Held | None = None

    def fill() -> bytes:
        nonlocal held
        held = found.ask(step)
        return b"all" if held is not None and found.fill(held, model, optimizer) else b""

    parts = agreed(group, fill)
    lost = [str(rank) for rank, one in enumerate(parts) if not one]
    if lost or held is None:
        message = (
            f"the state came from the disk: the replica of rank {', '.join(lost)} ended while it gave its own"
        )
        return Problem("UCP-E-RANK", url, message)
    mine = json.dumps([found.is_saved(), held.exactness]).encode()
    told = [json.loads(one) for one in group.all_gather(mine)]
    exactness = least_exact(other for _, other in told)
    is_saved = all(saved for saved, _ in told)
    return Taken(step, is_saved, exactness, held.checked, held.values, found.log, found.epoch, found.digest)
