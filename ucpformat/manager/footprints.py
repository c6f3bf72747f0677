"""What checkpoints of a run take on the disk, and what they share with one another by hard links (SPEC section 8.5)."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ucpformat.storage.stores.local_io import Identity, identity_of, translated
from ucpformat.storage.stores.urls import local_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ucpformat.jsonio import JsonValue
    from ucpformat.manager.run_directory import RunDirectory

__all__ = ["Footprint", "Footprints", "Having"]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one entry of a run takes, in bytes of its files, each counted once.

    ``freed`` are those that its removal gives back: of files that have no name anywhere else. ``shared`` are the
    others; ``shares_with`` names the entries of the run that have some of them, and ``is_shared_elsewhere`` says
    whether some have names outside the run as well.
    """

    freed: int
    shared: int
    shares_with: tuple[str, ...]
    is_shared_elsewhere: bool

    def to_json(self) -> dict[str, JsonValue]:
        """Return the object that ``ucp ls`` and ``ucp gc`` print."""
        return {
            "freed_bytes": self.freed,
            "shared_bytes": self.shared,
            "shares_with": [*self.shares_with],
            "shares_elsewhere": self.is_shared_elsewhere,
        }


@dataclass(frozen=True, slots=True)
class Having:
    """Which other entries of a run have an object: the ``same`` file, or, under the same key, ``others``."""

    same: tuple[str, ...]
    others: tuple[str, ...]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the object that ``ucp validate`` prints."""
        return {"same_file_in": [*self.same], "another_file_in": [*self.others]}


@dataclass(slots=True)
class Footprints:
    """The files of a run's entries, as they were when they were looked at; empty for a run in an object store.

    ``names`` are how many names a file has in each entry; ``sizes`` and ``links`` are those of each file.
    """

    root: str = ""
    names: dict[str, dict[Identity, int]] = field(default_factory=dict)
    sizes: dict[Identity, int] = field(default_factory=dict)
    links: dict[Identity, int] = field(default_factory=dict)

    @classmethod
    def of(cls, run: RunDirectory) -> Self:
        """Look at the files of all entries; what goes away meanwhile is left out."""
        root = local_path(run.url)
        found = cls(root or "")
        if root is None:
            return found
        with translated(run.url):
            for name in run.place.names():
                found._add(name, Path(root) / name)
        return found

    def _add(self, name: str, path: Path) -> None:
        here: dict[Identity, int] = self.names.setdefault(name, {})
        if path.is_symlink():
            return
        for directory, _, files in os.walk(path):
            for file in files:
                with suppress(FileNotFoundError):
                    status = os.lstat(os.path.join(directory, file))
                    one = identity_of(status)
                    here[one] = here.get(one, 0) + 1
                    self.sizes[one], self.links[one] = status.st_size, status.st_nlink

    def footprint(self, name: str, gone: Iterable[str] = ()) -> Footprint | None:
        """Return what an entry takes when others are ``gone``; None where it is not known."""
        if name not in self.names:
            return None
        removed = {*gone}
        others = {
            other: files for other, files in self.names.items() if other not in removed and other != name
        }
        freed = shared = 0
        is_elsewhere = False
        shares_with: set[str] = set()
        for file, count in self.names[name].items():
            there = [other for other, files in others.items() if file in files]
            before = sum(self.names[other].get(file, 0) for other in removed if other in self.names)
            left = self.links[file] - count - before - sum(others[other][file] for other in there)
            if there or left > 0:
                shared += self.sizes[file]
                shares_with.update(there)
                is_elsewhere = is_elsewhere or left > 0
            else:
                freed += self.sizes[file]
        return Footprint(freed, shared, tuple(sorted(shares_with)), is_elsewhere)

    def having(self, name: str, key: str) -> Having | None:
        """Return which other entries have an object of one, by file or by key; None where none has."""
        files = {entry: _file_at(Path(self.root) / entry / key) for entry in self.names}
        mine = files.pop(name, None)
        present = {entry: file for entry, file in files.items() if file is not None}
        same = tuple(sorted(entry for entry, file in present.items() if file == mine))
        others = tuple(sorted(entry for entry, file in present.items() if file != mine))
        # Keys that every checkpoint has name other documents.
        return Having(same, others) if same or (others and key.startswith("packs/")) else None


def _file_at(path: Path) -> Identity | None:
    with suppress(OSError):
        return identity_of(path.lstat())
    return None
