"""Creating a log and its epochs, exclusively and whole (SPEC-UPDATE-LOGS sections 1, 2 and 4)."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from ucpformat import jsonio
from ucpformat.errors import UcpError, error
from ucpformat.model.fields import raise_first
from ucpformat.update_log.documents import LogDocument
from ucpformat.update_log.place import LOG_KEY, epoch_key, require_document
from ucpformat.update_log.reading import StoredLog

if TYPE_CHECKING:
    from ucpformat.update_log.documents import Epoch
    from ucpformat.update_log.place import LogPlace

__all__ = ["create_epoch", "create_log", "drawn_id"]


def drawn_id() -> str:
    """Draw the ``id`` of a log, or the ``start`` of an epoch (SPEC UCP-W-040)."""
    return secrets.token_hex(16)


def create_log(place: LogPlace, epoch: Epoch) -> bytes:
    """Create the log that an epoch names, and it as its first one; return the bytes of its document.

    Raises:
        UcpError: ``UCP-E-EXISTS`` where there is one, ``UCP-E-MISSING`` where all but its document is there; as
            `create_epoch`.
    """
    raise_first(epoch.problems(epoch_key(epoch.epoch)))
    require_document(place.store)
    place.create(LOG_KEY, [memoryview(jsonio.dumps_canonical(LogDocument(epoch.log).to_json()))])
    return create_epoch(place, epoch)


def create_epoch(place: LogPlace, epoch: Epoch) -> bytes:
    """Create the document of an epoch of a log that is there; return its bytes.

    Raises:
        UcpError: ``UCP-E-FENCED`` where another process has begun it; what is wrong with it, or with the epoch that it
            goes on from (SPEC UCP-W-041); what `LogPlace.create` raises.
    """
    raise_first(epoch.problems(epoch_key(epoch.epoch)))
    if epoch.after is not None:
        with StoredLog(place.url, verify=False) as log:
            log.before(epoch)
    data = jsonio.dumps_canonical(epoch.to_json())
    try:
        place.create(epoch_key(epoch.epoch), [memoryview(data)])
    except UcpError as reason:
        if reason.code != "UCP-E-EXISTS":
            raise
        message = f"epoch {epoch.epoch} has begun: another process has gone on from this log; recover() again"
        raise error("UCP-E-FENCED", message, at=place.url) from None
    return data
