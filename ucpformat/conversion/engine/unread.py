"""The files of a source that its importer did not look at: each is in the report, and none is left out in silence."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.conversion.contract.foreign import Lost

if TYPE_CHECKING:
    from ucpformat.tensor_files.source_files import Watched

__all__ = ["unread_files"]

_STATE: Final = re.compile(
    r".*\.(pt|pth|bin|pkl|pickle|ckpt|safetensors|distcp|npy|npz|msgpack|h5|gguf|ot|onnx)", re.IGNORECASE
)
"""Files that by their names may hold states: beside files that were read, they are not left out unasked."""

_BESIDE: Final = "a file that belongs to nothing that was read"
_FOLDER: Final = "a directory of which nothing was read"
_LISTED: Final = 100_000


def unread_files(source: str, seen: Watched, named: Sequence[Lost]) -> list[Lost]:
    """What lies in the directory ``source`` and was not looked at, but for what an importer has ``named`` itself.

    A directory of which nothing was read is one entry, ``files/NAME/``. A file beside others that were read, which by
    its suffix may hold states, matters; the rest is reported alone. Nothing is said of a source that is one file, nor
    where the importer opened nothing through `SourceFiles`.
    """
    root = Path(source)
    if not root.is_dir() or not (seen.files or seen.folders):
        return []
    top = os.path.realpath(root)
    touched = {_within(top, path) for path in (*seen.files, *seen.folders)}
    busy = {parent for path in touched if path is not None for parent in Path(path).parents}
    taken = {_within(top, path) for path in seen.folders}
    known = {one.what for one in named}
    unread = []
    for name, is_folder in _entries(root, {str(path) for path in busy}, taken):
        what = f"files/{name}"
        if name in touched or _is_told(name, known):
            continue
        if is_folder:
            unread.append(Lost(f"{what}/", _FOLDER, matters=False))
        else:
            unread.append(Lost(what, _BESIDE, matters=_STATE.fullmatch(name) is not None))
    return unread


def _within(top: str, path: Path) -> str | None:
    """The place of a path below ``top``; of a link itself, not of what it leads to. None where it is elsewhere."""
    place = os.path.join(os.path.realpath(path.parent), path.name) if path.name else os.path.realpath(path)
    relative = os.path.relpath(place, top)
    return None if relative.startswith("..") else relative


def _is_told(name: str, known: set[str]) -> bool:
    """Whether an importer has named this, or a directory above; it may have named it from further below."""
    parts = Path(name).parts
    return any(
        f"{scope}/{'/'.join(parts[first:stop])}" in known
        for scope in ("files", "items")
        for first in range(len(parts))
        for stop in range(first + 1, len(parts) + 1)
    )


def _entries(root: Path, busy: set[str], taken: set[str | None]) -> Iterator[tuple[str, bool]]:
    """Files and directories below ``root`` by name; directories are entered where something in them was read."""
    pending = ["."]
    left = _LISTED
    while pending and left > 0:
        folder = pending.pop()
        if folder in taken:
            continue
        with os.scandir(root / folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            name = os.path.normpath(f"{folder}/{entry.name}")
            left -= 1
            if not entry.is_dir(follow_symlinks=False):
                yield name, False
            elif name in busy or name in taken:
                pending.append(name)
            else:
                yield name, True
