"""Documents of a base: what it has that an increment may share (SPEC section 8.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.errors import UcpError, error, naming
from ucpformat.model.envelope import READ_FEATURES
from ucpformat.model.root import Root, parse_root
from ucpformat.storage.reading.documents import read_root
from ucpformat.storage.stores.urls import open_store, open_target

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from ucpformat.model.root import Storage
    from ucpformat.model.table import Segment
    from ucpformat.storage.reading.documents import StoredDocuments
    from ucpformat.storage.reading.stored_slot import StoredSlot
    from ucpformat.storage.stores.store import Objects, Store
    from ucpformat.storage.writing.chunk_writer import SlotPlace

__all__ = [
    "PackUse",
    "opened_base",
    "packs_in_use",
    "require_sharing",
    "root_of_base",
    "segments_of",
    "slots_alike",
]

_MOST_PACKS: Final = 48
"""Packs that one checkpoint shares. As many stay open, so that the file that was compared is the one that is linked."""
_LEAST_USE: Final = 0.5
"""Nothing is shared of a pack less of which is in use: the rest would stay on the disk for as long as any of it."""


def root_of_base(
    path: str | os.PathLike[str],
    *,
    storage: Storage,
    chunk_bytes: int | None = None,
    target: Store | None = None,
) -> Root:
    """Read the root document of a base, and refuse one that nothing can be shared with.

    Raises:
        UcpError: as procedure 17.1 says; ``UCP-E-STORE`` for one that ``target`` shares nothing with;
            ``UCP-E-MISMATCH`` for one in the other storage, or with other chunks.
    """
    store, root = opened_base(path, storage, chunk_bytes, target)
    store.close()
    return root


def require_sharing(url: str | os.PathLike[str]) -> None:
    """Refuse a place of which no checkpoint can share with another, before anything is asked of it.

    Raises:
        StoreError: ``UCP-E-STORE``.
    """
    store = open_target(url)
    try:
        store.require_base(store)
    finally:
        store.close()


def opened_base(
    path: str | os.PathLike[str], storage: Storage, chunk_bytes: int | None, target: Store | None
) -> tuple[Objects, Root]:
    """Open a base, and read its root document; raises as `root_of_base`."""
    store = open_store(path)
    try:
        if target is not None:
            target.require_base(store)
        with naming(path):
            root = parse_root(read_root(store), features=READ_FEATURES, extensions=frozenset())
        for name, wanted, found in (
            ("storage", storage, root.storage),
            ("chunk_bytes", chunk_bytes, root.chunk_bytes),
        ):
            if wanted not in (None, found):
                message = f"the base has {name}={found!r}, not {wanted!r}: save with that, or without base="
                raise error("UCP-E-MISMATCH", message, at="base")
    except BaseException:
        store.close()
        raise
    return store, root


class PackUse(NamedTuple):
    """A pack of the base, and whether enough of it is in use for it to be shared."""

    key: str
    length: int
    is_used: bool


def packs_in_use(documents: StoredDocuments) -> list[PackUse]:
    """Return the packs of a base, by number; all tables are read."""
    packs = documents.packs or ()
    used = np.zeros(len(packs), np.int64)
    for part in documents.parts() if packs else ():
        rows = part.table.rows
        np.add.at(used, rows["container"], rows["length"].astype(np.int64))
    best = {int(number) for number in np.argsort(-used, kind="stable")[:_MOST_PACKS]}
    return [
        PackUse(pack.key, pack.length, number in best and bool(used[number] >= _LEAST_USE * pack.length))
        for number, pack in enumerate(packs)
    ]


def slots_alike(
    documents: StoredDocuments, places: Mapping[tuple[str, str], SlotPlace]
) -> dict[tuple[str, str], StoredSlot]:
    """Return slots of the base with the wanted data type, grid and compressor, by key and name."""
    slots: dict[tuple[str, str], StoredSlot] = {}
    for (atom, name), place in places.items():
        found = documents.find(atom)
        stored = None if found is None else found[0].find(atom, name)
        if stored is None or stored.compressor != place.compressor or stored.dtype != place.dtype:
            continue
        if (stored.grid.shape, stored.grid.chunk_shape) == (place.grid.shape, place.grid.chunk_shape):
            slots[place.key, place.slot] = stored
    return slots


def segments_of(stored: StoredSlot, chunk: int) -> tuple[Segment, ...]:
    """Return the segments that the base has of a chunk; none where its table is damaged."""
    try:
        return stored.segments(chunk)
    except UcpError:
        return ()
