"""Looking for the living replica of a rank on this machine, and taking the state from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ucpformat.replay.own_values import decoded
from ucpformat.replay.replica.image import Image, filled, require_same
from ucpformat.replay.replica.living import greeted, newest_epoch
from ucpformat.replay.replica.wire import receive_document, send_document

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.replay.replica.spans import Span
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
    """A replica that waits to give the state at one of the steps of ``span``, in an epoch of a log.

    ``company`` says of which of the jobs of replicas that came one after another it is.
    """

    stream: socket.socket
    log: str
    epoch: int
    digest: str
    span: Span
    company: int

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
    stored = newest_epoch(url)
    if stored is None or stored.epoch.ranks != ranks or (found := greeted(stored, rank)) is None:
        return None
    epoch = stored.epoch
    return Found(found.stream, epoch.log, epoch.epoch, stored.digest, found.span, found.company)
