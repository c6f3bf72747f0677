"""Protocols that do not survive a loss of power, and that the campaign therefore has to find out.

`python -m tests.campaigns.power.broken DIRECTORY` does an operation under each of them.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from tests.campaigns.power.operations import OPERATIONS, Operation, main
from ucpformat.conversion.engine import out_directory
from ucpformat.manager.local_place import LocalPlace
from ucpformat.storage.stores import local, local_io
from ucpformat.storage.stores.directory_claim import DirectoryClaim
from ucpformat.storage.stores.draft import Draft
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.sharing import Sharable
from ucpformat.update_log import place

__all__ = ["BROKEN"]


@contextmanager
def root_first() -> Iterator[None]:
    """The root document is published, and then what it reaches made durable."""
    publish, flush = LocalStore.publish, LocalStore.flush

    def early(self: LocalStore, data: bytes) -> None:
        publish(self, data)
        flush(self)

    def nothing(self: LocalStore, reached: Iterable[str] = (), root: bytes | None = None) -> None:
        pass

    with patch.object(LocalStore, "publish", early), patch.object(LocalStore, "flush", nothing):
        yield


@contextmanager
def flag_after() -> Iterator[None]:
    """The root document has its name before its bytes are durable."""
    offer = Draft.offer

    def unsynced(self: Draft, data: bytes) -> Callable[[], None]:
        offer(self, data)
        return lambda: None

    with patch.object(Draft, "offer", unsynced):
        yield


@contextmanager
def names_not_durable() -> Iterator[None]:
    """A save ends when the root document has its name, which nothing has made durable."""
    publish = DirectoryClaim.publish

    def unsynced(self: DirectoryClaim, data: bytes, *, is_durable: bool) -> None:
        del is_durable
        publish(self, data, is_durable=False)

    with patch.object(DirectoryClaim, "publish", unsynced):
        yield


@contextmanager
def parents_not_durable() -> Iterator[None]:
    """Directories above the checkpoint are made, and nobody syncs the ones that they are in."""
    make = local_io.make_parents

    def unsynced(path: Path, *, is_durable: bool) -> Path | None:
        del is_durable
        return make(path, is_durable=False)

    with patch.object(local, "make_parents", unsynced):
        yield


@contextmanager
def delete_by_listing() -> Iterator[None]:
    """A checkpoint is removed file by file, as they are listed."""

    def remove(self: LocalPlace, name: str) -> None:
        shutil.rmtree(self.child(name))

    with patch.object(LocalPlace, "remove", remove):
        yield


@contextmanager
def exports_not_durable() -> Iterator[None]:
    """Files of an export are durable, and no names."""
    with patch.object(out_directory, "sync", lambda path: None):
        yield


@contextmanager
def shared_files_not_synced() -> Iterator[None]:
    """Files of a base get their names in an increment, and are taken for durable."""
    share = LocalStore.share

    def unsynced(self: LocalStore, key: str, source: Sharable) -> bool:
        with patch.object(self, "_wrote", lambda *_: None):
            return share(self, key, source)

    with patch.object(LocalStore, "share", unsynced):
        yield


@contextmanager
def batch_names_not_durable() -> Iterator[None]:
    """Batches of a log are durable, and their names are not."""
    with patch.object(place, "sync", lambda path: None):
        yield


def _under(change: Callable[[], AbstractContextManager[None]], name: str) -> Operation:
    (operation,) = (one for one in OPERATIONS if one.name == name)

    def run(path: Path) -> None:
        with change():
            operation.run(path)

    return replace(operation, name=f"{change.__name__}, {name}", run=run)


BROKEN: Sequence[Operation] = (
    _under(root_first, "save"),
    _under(flag_after, "save"),
    _under(names_not_durable, "save"),
    _under(parents_not_durable, "save over one that was left"),
    _under(delete_by_listing, "collect"),
    _under(shared_files_not_synced, "increment of what is not durable"),
    _under(batch_names_not_durable, "update log"),
    _under(exports_not_durable, "convert to safetensors, several files"),
)

if __name__ == "__main__":
    main(Path(sys.argv[1]), BROKEN)
