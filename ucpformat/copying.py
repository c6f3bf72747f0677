"""Copying a checkpoint from one store to another, object by object, and checking the copy before it becomes visible.

The copy has the same bytes, and so the same root digest. What the root document does not reach is not copied.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from ucpformat.errors import error, naming
from ucpformat.model.root import ROOT_KEY
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.storage.reading.documents import read_root
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.local_objects import LocalObjects
from ucpformat.storage.stores.store import PackFullError
from ucpformat.storage.stores.urls import open_target
from ucpformat.storage.workers import in_parallel
from ucpformat.validation import validate_store

if TYPE_CHECKING:
    from ucpformat.storage.stores.store import Durability, Objects, Store

__all__ = ["Copied", "copy_checkpoint", "copy_with", "reached_objects"]

_AT_ONCE: Final = 4
"""Objects under way: a large one holds a piece of 16 MiB, a small one all of itself."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied: objects, the bytes that they have, and the root digest, which is that of the source."""

    objects: int
    nbytes: int
    digest: str


def copy_checkpoint(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    durability: Durability = "fsync",
    progress: Callable[[int], None] = lambda _: None,
    expect: Callable[[int], None] = lambda _: None,
) -> Copied:
    """Copy a checkpoint between local paths and fsspec URLs, and read the copy back before it is committed.

    ``expect`` is told about how many bytes there are to copy and to check, ``progress`` of every so many that are done.

    Raises:
        UcpError: what opening the source and the commit raise, ``UCP-E-EXISTS`` where something lies at ``target``, and
            for a copy that does not verify the first of its problems. Nothing is visible at ``target`` then.
    """
    with open_checkpoint(source) as checkpoint:
        with naming(source):
            data = read_root(checkpoint.store)
        return copy_with(
            checkpoint,
            target,
            lambda *_: data,
            may_link=False,
            durability=durability,
            progress=progress,
            expect=expect,
        )


Finish = Callable[["Store", frozenset[str]], bytes]
"""Writes what a copy has beside the objects of its source, and returns its root document; is told keys of links."""


def copy_with(
    checkpoint: Checkpoint,
    target: str | os.PathLike[str],
    finish: Finish,
    *,
    without: Collection[str] = (),
    may_link: bool,
    durability: Durability,
    progress: Callable[[int], None],
    expect: Callable[[int], None],
) -> Copied:
    """Copy what a checkpoint reaches, but for objects of some keys, and commit it with the root that ``finish`` gives.

    With ``may_link``, packs and objects of chunks and blobs are hard links where there can be any. Raises as
    `copy_checkpoint`.
    """
    with naming(checkpoint.path):
        keys = [key for key in reached_objects(checkpoint) if key not in without]
        expect(2 * sum(stored.nbytes for stored in checkpoint.slots()))
    with naming(target):
        store = open_target(target, durability=durability)
        try:
            return _Copy(checkpoint, store, progress, may_link=may_link).run(keys, finish)
        finally:
            store.close()


class _Copy:
    """One copy under way."""

    def __init__(
        self, checkpoint: Checkpoint, store: Store, progress: Callable[[int], None], *, may_link: bool
    ) -> None:
        self._checkpoint = checkpoint
        self._store = store
        self._progress = progress
        self._may_link = may_link
        self._lock = threading.Lock()
        self._linked: set[str] = set()
        self._nbytes = 0

    def run(self, keys: Sequence[str], finish: Finish) -> Copied:
        """Copy the objects of these keys, check what then lies there, and publish the root document."""
        # Its keys are those of the source: another copy of it, or what that leaves, may have the same.
        self._store.prepare("plain")
        try:
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ucp-copy") as executor:
                in_parallel((partial(self._copy, key) for key in keys), executor, _AT_ONCE)
            root = finish(self._store, frozenset(self._linked))
            self._store.flush()
            self._require_good(root)
            self._store.publish(root)
        except BaseException:
            with suppress(Exception):
                self._store.discard()
            raise
        digest = json.loads(root)["digest"]
        return Copied(len(keys) + 1, self._nbytes + len(root), digest)

    def _is_linked(self, key: str) -> bool:
        """Give an object to the copy by a hard link; return whether that could be."""
        source, target = self._checkpoint.store, self._store
        if not (self._may_link and isinstance(source, LocalObjects) and isinstance(target, LocalStore)):
            return False
        if key.startswith("index/"):
            return False
        with source.sharable(key) as found:
            if not target.share(key, found):
                return False
        with self._lock:
            self._linked.add(key)
        return True

    def _copy(self, key: str) -> None:
        if self._is_linked(key):
            return
        with naming(self._checkpoint.path):
            nbytes = self._store.copy(key, self._checkpoint.store)
        if nbytes is not None:
            self._count(nbytes)
            return
        pieces = self._pieces(key)
        if not key.startswith(("packs/", "blobs/")):
            self._store.create(key, [memoryview(piece) for piece in pieces])
            return
        pack = self._store.create_pack(key)
        try:
            for piece in pieces:
                pack.append([memoryview(piece)], 1)
            pack.close()
        except PackFullError:
            pack.abort()
            raise error(
                "UCP-E-LIMIT",
                "the object is longer than one object can be here; write the checkpoint anew, with "
                "`ucp convert SOURCE TARGET --to ucp`",
                at=key,
            ) from None
        except BaseException:
            pack.abort()
            raise

    def _pieces(self, key: str) -> Iterator[bytes]:
        pieces = self._checkpoint.store.pieces(key)
        while True:
            with naming(self._checkpoint.path):
                piece = next(pieces, None)
            if piece is None:
                return
            self._count(len(piece))
            yield piece

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self._nbytes += nbytes
            self._progress(nbytes)

    def _require_good(self, root: bytes) -> None:
        """Read back everything that the root document will reach."""

        def told(nbytes: int) -> None:
            with self._lock:
                self._progress(nbytes)

        unpublished = cast("Objects", _Unpublished(self._store, root))
        problems = validate_store(unpublished, "integrity", progress=told)
        for problem in problems:
            if problem.severity == "error":
                raise error(
                    problem.code,
                    f"{problem.message}; so the copy does not verify, and was given up: `ucp validate` says whether "
                    "the source is damaged",
                    at=problem.at,
                )


class _Unpublished:
    """A store as it will be once the root document is published."""

    def __init__(self, store: Store, root: bytes) -> None:
        self._store = store
        self._root = root

    def head(self, key: str, most: int) -> bytes | None:
        """Return the first bytes of an object."""
        return self._root[:most] if key == ROOT_KEY else self._store.head(key, most)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def reached_objects(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield keys of all objects that the root document reaches, but its own."""
    yield from (reference.key for _, reference in checkpoint.root.references())
    yield from (reference.key for _, reference in checkpoint.state.objects())
    if checkpoint.packs is not None:
        yield from (pack.key for pack in checkpoint.packs)
        return
    yield "atoms/zarr.json"
    for view in checkpoint.values():
        yield f"atoms/{view.atom.key}/zarr.json"
        for slot in view.values():
            stored = slot.stored
            yield f"{stored.prefix}/zarr.json"
            for chunk in range(stored.grid.count):
                if stored.segments(chunk):  # none is a chunk of zeros, which has no object
                    yield f"{stored.prefix}/{stored.chunk_key(chunk)}"
