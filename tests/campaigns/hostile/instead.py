"""What may lie where a file of a source is expected: links, pipes, holes, nothing."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["INSTEAD", "empty", "link_out", "loop"]

_HOLE: Final = 1 << 40


def _away(path: Path, outside: Path) -> Path:
    """Move what is there out of the source."""
    outside.mkdir(exist_ok=True)
    target = outside / path.name
    shutil.rmtree(target, ignore_errors=True)
    target.unlink(missing_ok=True)
    path.rename(target)
    return target


def link_out(path: Path, outside: Path) -> None:
    path.symlink_to(_away(path, outside))


def _relative_link_out(path: Path, outside: Path) -> None:
    path.symlink_to(os.path.relpath(_away(path, outside), path.parent))


def _link_of_links(path: Path, outside: Path) -> None:
    target = _away(path, outside)
    (path.parent / "between").symlink_to(target)
    path.symlink_to("between")


def loop(path: Path, outside: Path) -> None:
    _away(path, outside)
    path.symlink_to(path.name)


def empty(path: Path, outside: Path) -> None:
    _away(path, outside)
    path.write_bytes(b"")


def _device(path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _pipe(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _socket(path: Path, outside: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)  # the names of sockets are short
        try:
            made.bind(path.name[:90])
        finally:
            os.chdir(here)


def _folder(path: Path, outside: Path) -> None:
    path.unlink()
    path.mkdir()


def _hole(path: Path, outside: Path) -> None:
    os.truncate(path, _HOLE)


def _hole_alone(path: Path, outside: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, _HOLE)


def _gone(path: Path, outside: Path) -> None:
    path.unlink()


def _half(path: Path, outside: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _zeros(path: Path, outside: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


INSTEAD: Final[dict[str, Callable[[Path, Path], object]]] = {
    "link out": link_out,
    "relative link out": _relative_link_out,
    "link of links": _link_of_links,
    "loop": loop,
    "device": _device,
    "pipe": _pipe,
    "socket": _socket,
    "folder": _folder,
    "hole behind": _hole,
    "hole": _hole_alone,
    "nothing": _gone,
    "empty file": empty,
    "half": _half,
    "zeros": _zeros,
}
