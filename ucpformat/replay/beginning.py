"""How an epoch of a log begins: by one rank of a job, for all of them (SPEC-UPDATE-LOGS section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ucpformat.distributed.group import decided
from ucpformat.errors import error
from ucpformat.model.envelope import Envelope
from ucpformat.model.references import sha256_digest
from ucpformat.reader import open_checkpoint
from ucpformat.replay.begun_options import BEGUN_OPTIONS
from ucpformat.replay.exactness import exactness_of, profile_of
from ucpformat.replay.tracked import optimizer_name, shared_out
from ucpformat.update_log.creation import create_epoch, create_log, drawn_id
from ucpformat.update_log.documents import After, Epoch
from ucpformat.update_log.place import LOG_KEY, has_log
from ucpformat.update_log.reading import StoredLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim import Optimizer

    from ucpformat.distributed.group import Group
    from ucpformat.jsonio import JsonValue
    from ucpformat.replay.recovering import Recovery
    from ucpformat.replay.tracked import TrackedState
    from ucpformat.update_log.place import LogPlace

__all__ = ["begin_epoch", "goes_on", "require_own_recovery"]


def require_own_recovery(url: str, after: Recovery | None, group: Group) -> None:
    """Refuse what the recovery of another run has returned: an epoch of another log would make this one unreadable.

    Raises:
        UcpError: ``UCP-E-MISMATCH``; what reading the document of the log raises.
    """

    def look() -> bytes:
        if after is None or after.log is None:
            return b""
        if not has_log(url):
            return b"there is no log"
        with StoredLog(url, verify=False) as log:
            return b"" if log.document.id == after.log else b"this is another log"

    problem = decided(group, look).decode()
    if problem:
        message = f"after= is what recover() has returned of another run: {problem}; recover() from this one"
        raise error("UCP-E-MISMATCH", message, at=url)


def goes_on(url: str, epoch: Epoch, after: Recovery | None, path: str | None) -> bool:
    """Return whether an epoch goes on from a checkpoint of its log, with the tensors and groups of the one before."""
    if after is None or after.epoch is None or path is None:
        return False
    if after.continuation == "lossy":
        return False  # the checkpoint may have residuals that training goes on without
    with open_checkpoint(path) as checkpoint:
        position = checkpoint.root.log
    if position is None or position.id != epoch.log:
        return False
    with StoredLog(url) as log:
        found = log.epoch(after.epoch).epoch
    return (found.tensors, found.groups) == (epoch.tensors, epoch.groups)


def begin_epoch(
    place: LogPlace,
    tracked: TrackedState,
    optimizer: Optimizer,
    group: Group,
    step: int,
    after: Recovery | None,
    options: Sequence[JsonValue],
) -> tuple[Epoch, str]:
    """Create a log, or the next epoch of it, together with all ranks; return the epoch and its digest.

    ``options`` are noted as those that the script of the job begins with.

    Raises:
        UcpError: ``UCP-E-EXISTS`` for a log that is there, without ``after``; ``UCP-E-FENCED`` where another process
            has begun the epoch.
    """
    tensors, pieces = shared_out(tracked, group)

    def create() -> bytes:
        number, log, before, create_in = 0, drawn_id(), None, create_log
        if after is not None and after.log is not None:
            number, log = after.next_epoch, after.log
            before = None if after.epoch is None else After(after.epoch, after.epoch_digest)
            create_in = create_epoch
        elif place.has(LOG_KEY):
            message = "this run has a log already; recover() from it, and give what that returns as after="
            raise error("UCP-E-EXISTS", message, at=place.url)
        epoch = Epoch(
            log,
            number,
            drawn_id(),
            step,
            before,
            len(group.ranks),
            tuple(tensors),
            tuple(pieces),
            tuple(map(tuple, tracked.groups)),
            optimizer_name(optimizer),
            profile_of(optimizer, tracked),
            exactness_of(optimizer, tracked),
            Envelope(annotations={BEGUN_OPTIONS: [*options]}),
        )
        return create_in(place, epoch)

    data = decided(group, create)
    return Epoch.parse(data, at=place.url), sha256_digest(data)
