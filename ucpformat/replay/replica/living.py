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

__all__ = ["Living", "greeted", "living_replicas", "newest_epoch"]


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


def greeted(stored: StoredEpoch, rank: int) -> tuple[socket.socket, Span] | None:
    """Return a stream to the replica of a rank in an epoch, and the steps that it has, None where there is none."""
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
            return stream, Span(*said["span"])
    except OSError:
        pass
    stream.close()
    return None


def living_replicas(url: str) -> Living | None:
    """Return the replicas of the newest epoch of a log that answer on this machine, None where none does."""
    stored = newest_epoch(url)
    if stored is None:
        return None
    spans: dict[int, Span] = {}
    with ExitStack() as streams:
        for rank in range(stored.epoch.ranks):
            found = greeted(stored, rank)
            if found is not None:
                streams.enter_context(found[0])
                spans[rank] = found[1]
    if not spans:
        return None
    return Living(stored.epoch.ranks, tuple(spans), common_step([*spans.values()]))
