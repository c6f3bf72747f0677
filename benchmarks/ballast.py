"""A page cache that is full before each reading, as it is on any machine that has run for a while.

A virtual machine may report its free pages to its host, which takes them away; whoever uses such a page next waits
until the host has given it back, about a second for each GiB. Who follows a deletion then finds pages that are still
there, and who comes two seconds later does not. Once clean pages of a file nobody needs fill the memory, everybody
allocates by taking some of those, and the host still has them.

The file is sparse and as large as the memory: reading its holes takes pages of the cache, and no disk.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
import numpy as np

from benchmarks.cache import files_below

__all__ = ["Ballast", "Filled", "ballast_options", "loaded", "memory", "prepare", "words"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_CALL_BYTES: Final = 1 << 21
_CALLS: Final = 8
"""Between two looks at what is free."""
_LEAST_FREE: Final = 1 << 28
_FREE_PARTS: Final = 128
_GIBIBYTE: Final = 1 << 30


class Filled(NamedTuple):
    """What filling took: bytes that were read of the file, and bytes of memory that were free before and after."""

    nbytes: int
    free_before: int
    free_after: int


def memory(name: str) -> int:
    """Bytes of ``MemFree`` or another line of /proc/meminfo."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/meminfo has no {name}")


def _memory_free() -> int:
    return memory("MemFree")


@dataclass(slots=True)
class Ballast:
    """A sparse file of ``nbytes`` that is read while more than ``floor`` bytes of memory are free.

    ``floor``: the kernel keeps some memory free whatever is read.
    """

    path: Path
    nbytes: int
    floor: int
    free: Callable[[], int] = _memory_free
    _at: int = 0

    def fill(self, at_most: int | None = None) -> Filled:
        """Read on from where the last call ended, at most once around, and about so many bytes at most.

        Pages that were read first are the first to go, so that what is missing begins there. They are read, and not
        asked for by ``POSIX_FADV_WILLNEED``: who takes back pages that nobody used would find them.
        """
        before = after = self.free()
        done = 0
        most = self.nbytes if at_most is None else min(self.nbytes, at_most)
        if before > self.floor:
            buffer = bytearray(_CALL_BYTES)
            with open(self.path, "rb", buffering=0) as file:
                while after > self.floor and done < most:
                    for _ in range(_CALLS):
                        # At the end of the file a call gets less.
                        got = os.preadv(file.fileno(), [buffer], self._at)
                        self._at = 0 if self._at + got >= self.nbytes else self._at + got
                        done += got
                    after = self.free()
        return Filled(done, before, after)

    def claim(self, nbytes: int) -> None:
        """Use what stays free, and free it again: the host has those pages for the next seconds."""
        np.ones(max(self.floor, nbytes), np.uint8)

    def drop(self, nbytes: int) -> None:
        """Free the pages of so many bytes that were read last."""
        end = self._at or self.nbytes
        with open(self.path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), max(0, end - nbytes), nbytes, os.POSIX_FADV_DONTNEED)
        self._at = max(0, end - nbytes)


def prepare(ballast: Ballast | None, *warm: Path, room: int = 0) -> None:
    """Fill the memory before a reading; where that took some, have the files below ``warm`` in the cache after it.

    ``room``: so many bytes of what was read last are dropped in the end, so that whoever writes into the page cache
    finds pages that are free and that the host has. Without a ballast nothing is done.
    """
    if ballast is None:
        return
    free = ballast.free()
    # What is missing is not always next: so much is read for it and no more, and what stays free is claimed.
    filled = ballast.fill(2 * free if free > 2 * ballast.floor else 0)
    if filled.nbytes:
        buffer = bytearray(_CALL_BYTES)
        for directory in warm:
            for path in files_below(directory):
                with open(path, "rb", buffering=0) as file:
                    while file.readinto(buffer):
                        pass
    ballast.claim(filled.free_after)
    if room:
        ballast.drop(room)


@contextmanager
def loaded(directory: Path, steady: bool, kept: Path | None = None) -> Iterator[Ballast | None]:
    """A ballast that is full, in a file of its own in a directory or in one that is kept; None if not ``steady``.

    None as well where holes do not fill the memory: a file system in memory, or a limit on what may be cached.
    """
    if not steady:
        yield None
        return
    with tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as room:
        nbytes = memory("MemTotal")
        ballast = Ballast(kept or Path(room, "ballast"), nbytes, max(_LEAST_FREE, nbytes // _FREE_PARTS))
        with open(ballast.path, "ab") as file:
            file.truncate(nbytes)
        _say("filling the page cache, so that everybody finds the same (--no-steady leaves that out)")
        filled = ballast.fill()
        sizes = [f"{size / _GIBIBYTE:.1f} GiB" for size in filled]
        line = f"{sizes[0]} read, {sizes[1]} of memory free before, {sizes[2]} after"
        full = filled.free_after <= max(2 * ballast.floor, filled.free_before // 2)
        _say(line if full else f"{line}: the cache cannot be filled here, and readings may spread")
        yield ballast if full else None


def _say(line: str) -> None:
    click.echo(line, err=True)


def ballast_options(command: _Command) -> _Command:
    """Options ``steady`` and ``kept`` of a command, for `loaded` and `words`."""
    steady = click.option(
        "--steady/--no-steady",
        default=sys.platform == "linux",
        help="Fill the page cache before each reading (on Linux).",
    )
    kept = click.option(
        "--ballast",
        "kept",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Fill it from this sparse file, and keep it, so that the next command need not begin anew.",
    )
    return steady(kept(command))


def words(ballast: Ballast | None) -> str:
    """What a command line says of it."""
    return " --no-steady" if ballast is None else ""
