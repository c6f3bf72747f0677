"""Protocols that do not hold, which the fault campaign has to find out: each with the operation that shows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from unittest.mock import patch

from ucpformat.errors import UcpError
from ucpformat.manager.local_place import LocalPlace
from ucpformat.storage.stores.directory_claim import DirectoryClaim
from ucpformat.storage.stores.local import LocalStore

__all__ = ["BROKEN"]


@contextmanager
def root_first() -> Iterator[None]:
    """The root document is published, and then the documents that it reaches are written."""
    create, publish = LocalStore.create, LocalStore.publish
    later: list[tuple[str, bytes]] = []

    def wait(self: LocalStore, key: str, buffers: Sequence[memoryview]) -> None:
        del self
        later.append((key, b"".join(buffers)))

    def early(self: LocalStore, data: bytes) -> None:
        publish(self, data)
        for key, content in later:
            create(self, key, [memoryview(content)])

    with patch.object(LocalStore, "create", wait), patch.object(LocalStore, "publish", early):
        yield


@contextmanager
def flag_after() -> Iterator[None]:
    """Success is told, and the root document has its name if nothing comes between."""
    publish = DirectoryClaim.publish

    def told(self: DirectoryClaim, data: bytes, *, is_durable: bool) -> None:
        with suppress(OSError, UcpError):
            publish(self, data, is_durable=is_durable)

    with patch.object(DirectoryClaim, "publish", told):
        yield


@contextmanager
def delete_by_listing() -> Iterator[None]:
    """A checkpoint is removed file by file, in the order of a listing."""

    def remove(self: LocalPlace, name: str) -> None:
        for directory, folders, files in os.walk(self.child(name), topdown=False):
            for file in sorted(files):
                os.unlink(os.path.join(directory, file))
            for folder in folders:
                os.rmdir(os.path.join(directory, folder))
        os.rmdir(self.child(name))

    with patch.object(LocalPlace, "remove", remove):
        yield


BROKEN: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "save": root_first,
    "save, plain": flag_after,
    "collect": delete_by_listing,
}
"""By the name of the operation."""
