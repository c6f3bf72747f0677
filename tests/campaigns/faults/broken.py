"""Protocols that do not hold, which the fault campaign has to find out: each with the operation that shows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

from ucpformat.manager.local_place import LocalPlace
from ucpformat.model.root import ROOT_KEY
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
def root_in_place() -> Iterator[None]:
    """The root document is written under its name, a piece at a time."""

    def publish(self: LocalStore, data: bytes) -> None:
        with open(self._root / ROOT_KEY, "xb", buffering=0) as file:
            file.writelines(data[start : start + 256] for start in range(0, len(data), 256))

    with patch.object(LocalStore, "publish", publish):
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
    "save, plain": root_in_place,
    "collect": delete_by_listing,
}
"""By the name of the operation."""
