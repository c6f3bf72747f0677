"""Folders with random names, where cases are laid out for drivers that must not know which they are."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ucp_conformance.drafting import write_files

__all__ = ["Workplace", "snapshot"]


class Workplace:
    """A scratch folder for one case; gone with `close`."""

    def __init__(self) -> None:
        base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - tensors travel as files
        self.root = Path(tempfile.mkdtemp(prefix="u", dir=base))

    def fresh(self) -> Path:
        """Return a path that does not exist, in a folder that does, both with names that mean nothing."""
        folder = self.root / secrets.token_hex(4)
        folder.mkdir()
        return folder / secrets.token_hex(4)

    def put(self, data: bytes) -> str:
        """Return a file with this content."""
        path = self.fresh()
        path.write_bytes(data)
        return str(path)

    def checkpoint(self, objects: Mapping[str, bytes], setup: Iterable[Mapping[str, Any]]) -> Path:
        """Lay out the objects of a vector's checkpoint as the case says; returns the folder."""
        path = self.fresh()
        write_files(objects, path)
        for action in setup:
            if "pad" in action:
                target = path / action["pad"]
                target.write_bytes(target.read_bytes().ljust(action["to"]))
            elif "link" in action:
                target = path / action["link"]
                away = self.fresh()
                target.rename(away)
                target.symlink_to(away)
            else:
                target = path / action["pipe"]
                target.unlink()
                os.mkfifo(target)
        return path

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.root, ignore_errors=True)


def snapshot(path: Path) -> dict[str, bytes]:
    """Return every regular file below ``path``."""
    return {
        item.relative_to(path).as_posix(): item.read_bytes()
        for item in sorted(path.rglob("*"))
        if item.is_file() and not item.is_symlink()
    }
