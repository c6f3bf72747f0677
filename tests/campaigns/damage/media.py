"""Where a checkpoint lies that is damaged: objects by key, in a directory or below a URL of fsspec."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import fsspec

__all__ = ["Directory", "Medium", "Remote"]


class Medium(Protocol):
    """The objects of one checkpoint, as somebody sees them who knows nothing of it."""

    url: str

    def objects(self) -> dict[str, bytes]:
        """All of them."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write or replace one."""
        ...

    def remove(self, key: str) -> None:
        """Remove one."""
        ...

    def restore(self, good: Mapping[str, bytes]) -> None:
        """Have these objects, and no others."""
        ...


class Directory:
    """A local directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = str(path)

    def objects(self) -> dict[str, bytes]:
        return {
            path.relative_to(self.path).as_posix(): path.read_bytes()
            for path in sorted(self.path.rglob("*"))
            if path.is_file()
        }

    def put(self, key: str, data: bytes) -> None:
        (self.path / key).parent.mkdir(parents=True, exist_ok=True)
        (self.path / key).write_bytes(data)

    def remove(self, key: str) -> None:
        (self.path / key).unlink()

    def restore(self, good: Mapping[str, bytes]) -> None:
        shutil.rmtree(self.path)
        for key, data in good.items():
            self.put(key, data)

    def replace_by_link(self, key: str, elsewhere: Path) -> None:
        """Let a link to a copy of the object lie in its place."""
        elsewhere.write_bytes((self.path / key).read_bytes())
        self.remove(key)
        os.symlink(elsewhere, self.path / key)

    def replace_folder_by_link(self, key: str, elsewhere: Path) -> None:
        """Let a link to a copy of the object's directory lie in that's place."""
        folder = (self.path / key).parent
        shutil.copytree(folder, elsewhere)
        shutil.rmtree(folder)
        os.symlink(elsewhere, folder)


class Remote:
    """A URL of an object store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._files: Any
        self._files, self._path = fsspec.core.url_to_fs(url)

    def objects(self) -> dict[str, bytes]:
        self._files.invalidate_cache()
        found = self._files.find(self._path)
        start = len(self._path.rstrip("/")) + 1
        return {path[start:]: self._files.cat_file(path) for path in found}

    def put(self, key: str, data: bytes) -> None:
        self._files.pipe_file(f"{self._path}/{key}", data)

    def remove(self, key: str) -> None:
        self._files.rm_file(f"{self._path}/{key}")

    def restore(self, good: Mapping[str, bytes]) -> None:
        now = self.objects()
        for key in now.keys() - good.keys():
            self.remove(key)
        for key, data in good.items():
            if now.get(key) != data:
                self.put(key, data)
