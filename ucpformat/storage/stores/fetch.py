"""Fetching documents: bounded, and checked before anybody parses them (SPEC section 17.1)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error
from ucpformat.model.reference import DocumentRef, sha256_digest
from ucpformat.model.root import MAX_DOCUMENT_BYTES, MAX_ROOT_BYTES, ROOT_KEY
from ucpformat.storage.stores.local_io import MISSING

if TYPE_CHECKING:
    from ucpformat.storage.stores.store import Store

__all__ = ["check_object", "read_document", "read_root"]

_PIECE_BYTES: Final = 1 << 22


def read_root(store: Store) -> bytes:
    """The bytes of the root document.

    Raises:
        UcpError: ``UCP-E-NOT-FOUND`` without one, which says what lies there instead; ``UCP-E-LIMIT`` for one over
            4 MiB.
    """
    data = store.head(ROOT_KEY, MAX_ROOT_BYTES + 1)
    if data is None:
        from ucpformat.storage.stores.not_a_checkpoint import not_a_checkpoint

        raise error("UCP-E-NOT-FOUND", not_a_checkpoint(store.url), at=store.url)
    if len(data) > MAX_ROOT_BYTES:
        raise error("UCP-E-LIMIT", f"the root document has more than {MAX_ROOT_BYTES} bytes", at=ROOT_KEY)
    return data


def read_document(store: Store, reference: DocumentRef, *, limit: int = MAX_DOCUMENT_BYTES) -> bytes:
    """The bytes of a referenced object, checked against length and digest before anybody parses them.

    Raises:
        UcpError: ``UCP-E-LIMIT``, ``UCP-E-MISSING``, ``UCP-E-LENGTH``, ``UCP-E-DIGEST``.
    """
    if reference.length > limit:
        raise error("UCP-E-LIMIT", f"{reference.length} bytes exceed the limit of {limit}", at=reference.key)
    data = store.head(reference.key, reference.length + 1)
    if data is None or len(data) != reference.length:
        _check_length(store, reference)
        raise error("UCP-E-LENGTH", "the object changes while it is read", at=reference.key)
    if sha256_digest(data) != reference.digest:
        raise error("UCP-E-DIGEST", "the object does not match its recorded SHA-256", at=reference.key)
    return data


def check_object(store: Store, reference: DocumentRef) -> None:
    """Check length and digest of an object of any length, piece by piece.

    Raises:
        UcpError: ``UCP-E-MISSING``, ``UCP-E-LENGTH``, ``UCP-E-DIGEST``.

    """
    _check_length(store, reference)
    digest = hashlib.sha256()
    for start in range(0, reference.length, _PIECE_BYTES):
        digest.update(store.read(reference.key, start, min(start + _PIECE_BYTES, reference.length)))
    if f"sha256:{digest.hexdigest()}" != reference.digest:
        raise error("UCP-E-DIGEST", "the object does not match its recorded SHA-256", at=reference.key)


def _check_length(store: Store, reference: DocumentRef) -> None:
    size = store.size(reference.key)
    if size is None:
        raise error("UCP-E-MISSING", MISSING, at=reference.key)
    if size != reference.length:
        raise error(
            "UCP-E-LENGTH", f"the object has {size} bytes, recorded are {reference.length}", at=reference.key
        )
