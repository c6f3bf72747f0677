"""Looking for the living replica of a rank on this machine, and taking the state from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ucpformat.errors import UcpError
from ucpformat.replay.own_values import decoded
from ucpformat.replay.replica.company import Span
from ucpformat.replay.replica.image import Image, filled, require_same
from ucpformat.replay.replica.wire import reached, receive_document, send_document
from ucpformat.update_log.reading import StoredLog

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.update_log.documents import Exactness

__all__ = ["Found", "Held", "found_replica"]


@dataclass(frozen=True, slots=True)
class Held:
    """The state that a replica is about to give: what it is made of, and what is not in its bytes."""

    exactness: Exactness
    checked: int
    values: Mapping[str, Any]
    image: Image


@dataclass(frozen=True, slots=True)
class Found:
    """A replica that waits to give the state at one of the steps of ``span``, in an epoch of a log."""

    stream: socket.socket
    log: str
    epoch: int
    digest: str
    span: Span

    def ask(self, step: int) -> Held | None:
        """Ask for the state at a step; None where the replica has ended."""
        try:
            send_document(self.stream, {"step": step})
            said: Any = receive_document(self.stream)
        except OSError:
            return None
        values = decoded(said["values"], "replica")
        return Held(said["exactness"], said["checked"], values, Image.from_json(said["image"]))

    def fill(self, held: Held, model: Module, optimizer: Optimizer) -> bool:
        """Give the state to a model and its optimizer; return whether all of it came.

        Raises:
            MismatchError: ``UCP-E-MISMATCH`` where these are others than the replica's; nothing is changed then.
        """
        require_same(held.image, model, optimizer)
        try:
            filled(held.image, self.stream, model, optimizer)
        except OSError:
            return False  # It was killed meanwhile.
        return True

    def is_saved(self) -> bool:
        """Return whether the replica has committed a checkpoint of the state; waits for it."""
        try:
            said: Any = receive_document(self.stream)
        except OSError:
            return False
        return bool(said["is_saved"])


def found_replica(url: str, rank: int, ranks: int) -> Found | None:
    """Return the replica of a rank in the newest epoch of a log, None where there is none on this machine.

    Ranks count in the order of the job's group. A job of another size has none.
    """
    try:
        with StoredLog(url) as log:
            if not log.keys.epochs:
                return None
            stored = log.epoch(log.keys.epochs[-1])
    except UcpError:
        return None  # Whatever is wrong with the log, a recovery from the disk says.
    if stored.epoch.ranks != ranks:
        return None
    stream = reached(stored.epoch.start, rank)
    if stream is None:
        return None
    try:
        said: Any = receive_document(stream)
        named = (said["log"], said["epoch"], said["digest"])
        if named == (stored.epoch.log, stored.epoch.epoch, stored.digest):
            return Found(stream, *named, Span(*said["span"]))
    except OSError:
        pass
    stream.close()
    return None
