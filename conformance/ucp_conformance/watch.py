"""What happens to a root document while it is published (UCP-W-003), where the system tells: Linux, by inotify."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["watching"]

_KINDS: Final = {0x2: "written to", 0x8: "open for writing"}
"""IN_MODIFY and IN_CLOSE_WRITE: neither follows from a rename or a link."""
_HEADER: Final = struct.Struct("iIII")
_NONBLOCK: Final = os.O_NONBLOCK if hasattr(os, "O_NONBLOCK") else 0


@contextmanager
def watching(folder: Path, name: str = "ucp.json") -> Iterator[list[str]]:
    """Watch what is done to the file ``name`` itself of an existing folder; known after the context, nothing elsewhere.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, watching(Path(folder)) as events:
    ...     _ = (Path(folder) / "draft").write_text("{}")
    ...     _ = (Path(folder) / "draft").rename(Path(folder) / "ucp.json")
    >>> events
    []
    """
    events: list[str] = []
    if not sys.platform.startswith("linux"):
        yield events
        return
    library = ctypes.CDLL(None, use_errno=True)
    handle = library.inotify_init1(_NONBLOCK)
    if handle < 0 or library.inotify_add_watch(handle, os.fsencode(folder), 0x2 | 0x8) < 0:
        raise OSError(ctypes.get_errno(), "inotify")
    try:
        yield events
        events += _told(handle, name)
    finally:
        os.close(handle)


def _told(handle: int, name: str) -> Iterator[str]:
    while True:
        try:
            data = os.read(handle, 1 << 16)
        except BlockingIOError:
            return
        place = 0
        while place < len(data):
            _, mask, _, length = _HEADER.unpack_from(data, place)
            place += _HEADER.size + length
            of = data[place - length : place].rstrip(b"\0").decode("utf-8", "replace")
            yield from (what for bit, what in _KINDS.items() if of == name and mask & bit)
