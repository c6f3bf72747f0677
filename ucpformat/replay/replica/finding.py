"""Looking for the living replica of a run on this machine, and taking the state from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ucpformat.errors import UcpError
from ucpformat.replay.own_values import decoded
from ucpformat.replay.replica.image import Image, filled
from ucpformat.replay.replica.wire import reached, receive_document
from ucpformat.update_log.reading import StoredLog

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.update_log.documents import Exactness

__all__ = ["Found", "found_replica"]


@dataclass(frozen=True, slots=True)
class Found:
    """A replica that waits to give its state: that of ``step`` in an epoch of a log."""

    stream: socket.socket
    log: str
    epoch: int
    digest: str
    step: int
    exactness: Exactness
    checked: int
    values: Mapping[str, Any]
    image: Image

    def fill(self, model: Module, optimizer: Optimizer) -> bool:
        """Give the state to a model and its optimizer; whether all of it came.

        Raises:
            MismatchError: ``UCP-E-MISMATCH`` where these are others than the replica's; nothing is changed then.
        """
        try:
            filled(self.image, self.stream, model, optimizer)
        except OSError:
            self.stream.close()
            return False  # It was killed meanwhile.
        except BaseException:
            self.stream.close()
            raise
        return True

    def is_saved(self) -> bool:
        """Return whether the replica has committed a checkpoint of the state; waits for it, and ends the talk."""
        with self.stream:
            try:
                said: Any = receive_document(self.stream)
            except OSError:
                return False
            return bool(said["is_saved"])


def found_replica(url: str) -> Found | None:
    """Return the replica of the newest epoch of a log, None where there is none on this machine."""
    try:
        with StoredLog(url) as log:
            if not log.keys.epochs:
                return None
            stored = log.epoch(log.keys.epochs[-1])
    except UcpError:
        return None  # Whatever is wrong with the log, a recovery from the disk says.
    stream = reached(stored.epoch.start, 0)
    if stream is None:
        return None
    try:
        said: Any = receive_document(stream)
        named = (said["log"], said["epoch"], said["digest"])
        if named == (stored.epoch.log, stored.epoch.epoch, stored.digest):
            values = decoded(said["values"], "replica")
            image = Image.from_json(said["image"])
            return Found(stream, *named, said["step"], said["exactness"], said["checked"], values, image)
    except OSError:
        pass
    stream.close()
    return None
