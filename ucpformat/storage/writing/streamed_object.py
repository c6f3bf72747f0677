"""Objects of any length, written piece by piece."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ucpformat.errors import error
from ucpformat.model.references import DocumentRef
from ucpformat.storage.stores.store import PackFullError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ucpformat.storage.stores.store import Store

__all__ = ["write_object"]


def write_object(store: Store, key: str, pieces: Iterable[bytes]) -> DocumentRef:
    """Write an object, of which one piece is in memory at a time, and return the reference to it.

    Raises:
        UcpError: ``UCP-E-LIMIT`` where it is longer than one object can be there; what the store and ``pieces`` raise.
    """
    digest, length = hashlib.sha256(), 0
    file = store.create_pack(key)
    try:
        for piece in pieces:
            digest.update(piece)
            length += len(piece)
            file.append([memoryview(piece)], 1)
        file.close()
    except PackFullError:
        file.abort()
        raise error(
            "UCP-E-LIMIT", "this is longer than one object can be here: split the file", at=key
        ) from None
    except BaseException:
        file.abort()
        raise
    return DocumentRef(key, length, f"sha256:{digest.hexdigest()}")
