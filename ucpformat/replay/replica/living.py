"""The living replicas of a run on this machine, and the steps whose state they would give; nothing is taken."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from ucpformat.errors import UcpError
from ucpformat.replay.replica.spans import Span, common_step
from ucpformat.replay.replica.wire import reached, receive_document
from ucpformat.update_log.reading import StoredLog

if TYPE_CHECKING:
    import socket

    from ucpformat.update_log.reading import StoredEpoch

__all__ = ["Greeted", "Living", "greeted", "living_replicas", "newest_epoch"]


class Living(NamedTuple):
    """Replicas of a job of so many ``ranks``: the ranks of those that answer here, and the step that they have."""

    ranks: int
    found: tuple[int, ...]
    step: int | None

    @property
    def are_all(self) -> bool:
        """Whether a recovery of as many ranks on this machine would take the state from them."""
        return len(self.found) == self.ranks and self.step is not None


def newest_epoch(url: str) -> StoredEpoch | None:
    """Return the newest epoch of a log, None where there is none, or none that can be read."""
    try:
        with StoredLog(url) as log:
            return log.epoch(log.keys.epochs[-1]) if log.keys.epochs else None
    except UcpError:
        return None  # Whatever is wrong with the log, a recovery from the disk says.


class Greeted(NamedTuple):
    """A stream to a replica, the steps that it has, and of which of the companies that came one after another it is."""

    stream: socket.socket
    span: Span
    company: int


def greeted(stored: StoredEpoch, rank: int) -> Greeted | None:
    """Return the replica of a rank in an epoch, None where there is none."""
    stream = reached(stored.epoch.start, rank)
    if stream is None:
        return None
    try:
        said: Any = receive_document(stream)
        if (said["log"], said["epoch"], said["digest"]) == (
            stored.epoch.log,
            stored.epoch.epoch,
            stored.digest,
        ):
            return Greeted(stream, Span(*said["span"]), said["company"])
    except OSError:
        pass
    stream.close()
    return None


def living_replicas(url: str) -> Living | None:
    """Return the replicas of the newest epoch of a log that answer on this machine, None where none does."""
    stored = newest_epoch(url)
    if stored is None:
        return None
    alive: dict[int, Greeted] = {}
    with ExitStack() as streams:
        for rank in range(stored.epoch.ranks):
            found = greeted(stored, rank)
            if found is not None:
                streams.enter_context(found.stream)
                alive[rank] = found
    if not alive:
        return None
    are_one = len({one.company for one in alive.values()}) == 1
    step = common_step([one.span for one in alive.values()]) if are_one else None
    return Living(stored.epoch.ranks, tuple(alive), step)
