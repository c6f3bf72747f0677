"""What every contender does, and how all of them are made durable."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.state import TrainingState
    from ucpformat.storage.stores.store import Durability

__all__ = ["Contender", "sync_directories", "sync_files"]


class Contender(Protocol):
    """A way to save a state below an empty directory and to load it into arrays that exist."""

    @property
    def name(self) -> str:
        """Name in tables and on the command line."""
        ...

    @property
    def note(self) -> str:
        """How it is used, and what it checks."""
        ...

    def save(self, state: TrainingState, directory: Path, durability: Durability) -> None:
        """Write the state; with ``fsync``, return when files and directories are on the disk."""
        ...

    def load(self, directory: Path, into: TrainingState) -> None:
        """Fill the arrays."""
        ...


def sync_files(directory: Path) -> None:
    """Make the files directly in a directory, and the directory, durable."""
    for path in directory.iterdir():
        _sync(path)
    _sync(directory)


def sync_directories(directory: Path) -> None:
    """Make a directory and those below it durable, where a library synced the files alone."""
    for path, _, _ in os.walk(directory):
        _sync(path)


def _sync(path: str | os.PathLike[str]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
