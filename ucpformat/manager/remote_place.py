"""Run directories behind fsspec URLs."""

from __future__ import annotations

import datetime
import uuid
from contextlib import suppress
from typing import Any

import fsspec

from ucpformat.errors import error
from ucpformat.manager.run_directory import foreign_among
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.remote import translated

__all__ = ["RemotePlace"]


class RemotePlace:
    """A prefix of an object store, or a directory of any file system that fsspec knows."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        with translated(url):
            self._filesystem, self._path = fsspec.core.url_to_fs(self.url)

    def names(self) -> list[str]:
        """Entries that are no single objects."""
        with translated(self.url):
            self._filesystem.invalidate_cache()
            try:
                found = self._filesystem.ls(self._path, detail=True)
            except FileNotFoundError:
                return []
        return [
            entry["name"].rstrip("/").rpartition("/")[2] for entry in found if entry["type"] == "directory"
        ]

    def child(self, name: str) -> str:
        """URL of an entry; that of a chain of protocols has the path in its first link."""
        first, *others = self.url.split("::")
        return "::".join((f"{first.rstrip('/')}/{name}", *others))

    def _full(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    def age(self, name: str) -> float | None:
        """Seconds between the newest change of an object below an entry and that of one written now."""
        probe = self._full(f".ucp-clock-{uuid.uuid4().hex[:8]}")
        with translated(self.url):
            try:
                changes = [self._changed(key) for key in self._filesystem.find(self._full(name))]
                self._filesystem.pipe_file(probe, b"")
                now = self._changed(probe)
            except NotImplementedError:
                return None
            finally:
                with suppress(Exception):
                    self._filesystem.rm_file(probe)
        return (now - max(changes)).total_seconds() if changes else None

    def _changed(self, key: str) -> datetime.datetime:
        found: Any = self._filesystem.modified(key)
        if not isinstance(found, datetime.datetime):
            raise NotImplementedError
        return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)

    def is_foreign(self, name: str) -> bool:
        """Whether anything at its top is no part of a checkpoint."""
        with translated(self.url):
            base = self._filesystem._strip_protocol(self._full(name)).rstrip("/") + "/"
            found = self._filesystem.find(self._full(name))
        return foreign_among([key.removeprefix(base).partition("/")[0] for key in found])

    def remove(self, name: str) -> None:
        """Remove the root document, then everything else."""
        with translated(name):
            self._filesystem.invalidate_cache()
            with suppress(FileNotFoundError):
                self._filesystem.rm_file(f"{self._full(name)}/{ROOT_KEY}")
            with suppress(FileNotFoundError):
                self._filesystem.rm(self._full(name), recursive=True)

    def clear(self, name: str) -> None:
        """Remove the objects of debris, unless a checkpoint was committed there meanwhile."""
        with translated(name):
            self._filesystem.invalidate_cache()
            root = f"{self._full(name)}/{ROOT_KEY}"
            found = self._filesystem.find(self._full(name))
            if any(key.lstrip("/") == root.lstrip("/") for key in found):
                message = "a checkpoint was committed here meanwhile; nothing was removed"
                raise error("UCP-E-EXISTS", message, at=name)
            for key in found:
                with suppress(FileNotFoundError):
                    self._filesystem.rm_file(key)
            with suppress(Exception):  # directories, where the medium has them and they are empty
                if not self._filesystem.find(self._full(name)):
                    self._filesystem.rm(self._full(name), recursive=True)
