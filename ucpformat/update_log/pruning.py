"""Removing the batches of a log that no recovery needs (SPEC-UPDATE-LOGS section 4)."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from ucpformat.update_log.place import batch_key
from ucpformat.update_log.reading import StoredLog

if TYPE_CHECKING:
    from ucpformat.update_log.place import BatchKey, LogPlace

__all__ = ["Pruned", "needless_batches", "prune", "prune_before"]


class Pruned(NamedTuple):
    """How many batches were removed, or would be, and how many are kept, with their bytes."""

    removed: int
    removed_bytes: int
    kept: int
    kept_bytes: int


def prune(log: StoredLog, place: LogPlace, oldest: int, *, dry: bool = False) -> Pruned:
    """Remove the batches that `needless_batches` names; with ``dry``, only say how many they are.

    Raises:
        UcpError: as `needless_batches`, and what removing raises.
    """
    needless = needless_batches(log, oldest)
    sizes = {key: log.store.size(batch_key(key)) or 0 for key in log.keys.batches}
    if not dry:
        place.remove(map(batch_key, needless))
    freed = sum(sizes[key] for key in needless)
    return Pruned(len(needless), freed, len(sizes) - len(needless), sum(sizes.values()) - freed)


def prune_before(oldest: int, place: LogPlace) -> bytes:
    """Remove what `needless_batches` names of the log at a place; returns nothing, for other ranks to hear of it."""
    with StoredLog(place.url, verify=False) as log:
        prune(log, place, oldest)
    return b""


def needless_batches(log: StoredLog, oldest: int) -> list[BatchKey]:
    """Return batches that no recovery needs from a checkpoint of the step ``oldest`` or a later one, in order.

    Those are batches of epochs that were given up, those of an epoch of the branch that begin where the next epoch has
    gone on from it, and those that end before ``oldest``. Documents are read, and no batch.

    Raises:
        UcpError: as `StoredLog.branch`.
    """
    cuts = {one.stored.epoch.epoch: one.stop_step for one in log.branch()}
    found: list[BatchKey] = []
    for (number, _), group in groupby(log.keys.batches, key=lambda key: key[:2]):
        keys = list(group)
        if number not in log.keys.epochs:
            continue  # nobody knows what it was
        cut = cuts.get(number, -1)
        # A batch ends where the next one of its rank begins, and is of no use behind the cut.
        ends = [*(key.first_step for key in keys[1:]), None]
        for key, end in zip(keys, ends, strict=True):
            stops = [one for one in (end, cut) if one is not None]
            if min(stops, default=oldest + 1) <= oldest or (cut is not None and key.first_step >= cut):
                found.append(key)
    return found
