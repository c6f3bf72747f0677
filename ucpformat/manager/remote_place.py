"""Run directories behind fsspec URLs."""

from __future__ import annotations

import datetime
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import fsspec

from ucpformat.errors import UcpError, error
from ucpformat.manager.run_directory import foreign_among, step_of
from ucpformat.model.root import ROOT_KEY
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.remote.access import has_directories, translated
from ucpformat.storage.stores.remote.s3_uploads import S3Upload, S3Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["RemotePlace"]


class RemotePlace:
    """A prefix of an object store, or a directory of any file system that fsspec knows."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        with translated(url):
            self._filesystem, self._path = fsspec.core.url_to_fs(self.url)
            self._has_directories = has_directories(self._filesystem)
            self._uploads = S3Uploads.by(self._filesystem)

    def names(self) -> list[str]:
        """Return entries that are no single objects."""
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
        """Return URL of an entry; that of a chain of protocols has the path in its first link."""
        first, *others = self.url.split("::")
        return "::".join((f"{first.rstrip('/')}/{name}", *others))

    def _full(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    def age(self, name: str) -> float | None:
        """Return seconds between the newest change of an object below an entry and that of one written now."""
        with translated(self.url):
            return self._age(name, self._filesystem.find(self._full(name)))

    def _age(self, name: str, paths: Iterable[str]) -> float | None:
        """Do as `age`, of objects that were listed, and of what is being uploaded."""
        try:
            changes = [self._changed(path) for path in paths]
            if self._uploads is not None:
                for upload in self._uploads.unfinished_below(self._full(name)):
                    with suppress(FileNotFoundError):
                        changes.append(self._uploads.changed(upload))
            now = self._now()
        except NotImplementedError:
            return None
        return (now - max(changes)).total_seconds() if changes else None

    def _now(self) -> datetime.datetime:
        """Return what the store says of an object that is written now."""
        probe = self._full(f".ucp-clock-{uuid.uuid4().hex[:8]}")
        try:
            self._filesystem.pipe_file(probe, b"")
            self._filesystem.invalidate_cache()  # adlfs looks for it in a listing that it has kept
            return self._changed(probe)
        finally:
            with suppress(Exception):
                self._filesystem.rm_file(probe)

    def _changed(self, key: str) -> datetime.datetime:
        found: Any = self._filesystem.modified(key)
        if not isinstance(found, datetime.datetime):
            raise NotImplementedError
        return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)

    def is_foreign(self, name: str) -> bool:
        """Return whether anything at its top is no part of a checkpoint."""
        with translated(self.url):
            base = self._filesystem._strip_protocol(self._full(name)).rstrip("/") + "/"
            found = self._filesystem.find(self._full(name))
        return foreign_among([key.removeprefix(base).partition("/")[0] for key in found])

    def remove(self, name: str) -> None:
        """Remove the root document, then what it reaches; what else is there may be another attempt's."""
        reached = _reached(self.child(name))
        with translated(name):
            found = self._found(name)
            if ROOT_KEY not in found:
                raise error(
                    "UCP-E-NOT-FOUND", "there is no checkpoint any more; nothing was removed", at=name
                )
            with suppress(FileNotFoundError):
                self._filesystem.rm_file(found.pop(ROOT_KEY))
            self._remove([path for key, path in found.items() if reached is None or reached(key)])

    def clear(self, name: str, older_than: float) -> None:
        """Remove the objects of debris, unless a checkpoint was committed there meanwhile, or anything has changed."""
        with translated(name):
            found = self._found(name)
            # A listing may be late to show what was put last.
            if ROOT_KEY in found or self._filesystem.exists(f"{self._full(name)}/{ROOT_KEY}"):
                message = "a checkpoint was committed here meanwhile; nothing was removed"
                raise error("UCP-E-EXISTS", message, at=name)
            # Of the very objects that are removed: others may have come since somebody looked at their age.
            age = self._age(name, found.values())
            if found and (age is None or age < older_than):
                raise error("UCP-E-EXISTS", "a writer is at work here; nothing was removed", at=name)
            self._remove(list(found.values()))

    def is_being_cleared(self, name: str) -> bool:
        """Return False: an object store is cleared without a mark."""
        del name
        return False

    def abort_uploads(self, older_than: float, *, dry: bool) -> dict[str, int]:
        """Give up multipart uploads of which nothing has arrived for ``older_than`` seconds; how many, by entry."""
        found: dict[str, int] = {}
        if self._uploads is None:
            return found
        with translated(self.url):
            base = self._filesystem._strip_protocol(self._path).rstrip("/") + "/"
            uploads = list(self._uploads.unfinished_below(self._path))
            now = self._now() if uploads else None
            for upload in uploads:
                name = upload.path.removeprefix(base).partition("/")[0]
                with suppress(FileNotFoundError):  # somebody has completed or aborted it
                    if now is None or not self._is_dead(name, upload, now, older_than):
                        continue
                    if not dry:
                        self._uploads.abort(upload.path, upload.identifier)
                    found[name] = found.get(name, 0) + 1
        return found

    def _is_dead(self, name: str, upload: S3Upload, now: datetime.datetime, older_than: float) -> bool:
        """Return whether an upload is one of a checkpoint, and nothing of it has arrived for so long."""
        if step_of(name) is None or self._uploads is None:
            return False
        if (now - upload.begun).total_seconds() < older_than:
            return False
        return (now - self._uploads.changed(upload)).total_seconds() >= older_than

    def _found(self, name: str) -> dict[str, str]:
        """Return paths below an entry, by key."""
        self._filesystem.invalidate_cache()
        base = self._filesystem._strip_protocol(self._full(name)).rstrip("/") + "/"
        return {path.removeprefix(base): path for path in self._filesystem.find(self._full(name))}

    def _remove(self, paths: list[str]) -> None:
        """Remove objects that were listed, and what directories they leave empty."""
        try:
            if paths:
                self._filesystem.rm(paths)  # many by one request, where the medium can
        except FileNotFoundError:
            for path in paths:
                with suppress(FileNotFoundError):
                    self._filesystem.rm_file(path)
        if self._has_directories:
            parents = {parent for path in paths for parent in _parents(path)}
            for directory in sorted(parents, key=lambda path: -path.count("/")):
                with suppress(Exception):  # it is not empty, or above the checkpoint
                    self._filesystem.rmdir(directory)


def _parents(path: str) -> Iterator[str]:
    """Yield the directories of a path in a checkpoint, the checkpoint's own among them."""
    while "/" in (path := path.rpartition("/")[0]):
        yield path
        if path.rpartition("/")[2].partition(".ucp")[1]:
            return


def _reached(url: str) -> Callable[[str], bool] | None:
    """Return which keys the root document at ``url`` reaches; None where that cannot be read."""
    try:
        with open_checkpoint(url) as checkpoint:
            root = checkpoint.root
            keys = {reference.key for _, reference in root.references()}
            keys.update(pack.key for pack in checkpoint.packs or ())
            keys.update(reference.key for _, reference in checkpoint.state.objects())
            # In storage plain nobody else has these keys.
            return lambda key: key in keys or (root.storage == "plain" and key.startswith("atoms/"))
    except UcpError:
        return None
