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

__all__ = ["Footprint", "Footprints"]


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


@dataclass(slots=True)
class Footprints:
    """The files of a run's entries, as they were when they were looked at; empty for a run in an object store.

    ``names`` are how many names a file has in each entry; ``sizes`` and ``links`` are those of each file.
    """

    names: dict[str, dict[Identity, int]] = field(default_factory=dict)
    sizes: dict[Identity, int] = field(default_factory=dict)
    links: dict[Identity, int] = field(default_factory=dict)

    @classmethod
    def of(cls, run: RunDirectory) -> Self:
        """Look at the files of all entries; what goes away meanwhile is left out."""
        found = cls()
        root = local_path(run.url)
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
