"""Traces of system calls, as trace.c writes them down, and operations that are recorded under it."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

__all__ = ["Record", "What", "build", "mark", "read_trace", "record"]

_HEADER = struct.Struct("<4I3Q")
_SOURCE = Path(__file__).with_name("trace.c")


class What(IntEnum):
    """`enum what` of trace.c."""

    MARKED = 0
    CREATED = 1
    WRITTEN = 2
    CUT = 3
    SYNCED = 4
    MADE = 5
    REMOVED = 6
    UNLINKED = 7
    LINKED = 8
    RENAMED = 9
    ALLOCATED = 10


@dataclass(frozen=True, slots=True)
class Record:
    """One call that has succeeded. ``start`` and ``length`` are bytes; ``start`` has the flags of a rename."""

    what: What
    inode: int
    source: str
    target: str
    start: int
    length: int
    data: bytes


def build(directory: Path) -> Path:
    """Compile the library that is preloaded."""
    library = directory / "trace.so"
    compiler = shutil.which("cc") or "cc"
    flags = ["-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    return library


def record(directory: Path, scope: Path, module: str, *arguments: str) -> list[Record]:
    """Run a module in a process whose changes below ``scope`` are written down."""
    trace = directory / "trace"
    environment = {
        **os.environ,
        "LD_PRELOAD": str(build(directory)),
        "UCP_TRACE": str(trace),
        "UCP_TRACE_SCOPE": str(scope),
        "OPENBLAS_NUM_THREADS": "1",
    }
    subprocess.run([sys.executable, "-m", module, *arguments], env=environment, check=True)
    return list(read_trace(trace))


def mark(text: str) -> None:
    """Write a text into the trace: what was done before it in this thread stands before it there."""
    with suppress(FileNotFoundError):
        os.close(os.open(f"/.ucp-mark/{text}", os.O_RDONLY))


def read_trace(path: Path) -> Iterator[Record]:
    """The records of a trace."""
    with path.open("rb") as file:
        while header := file.read(_HEADER.size):
            what, source, target, size, inode, start, length = _HEADER.unpack(header)
            yield Record(
                What(what),
                inode,
                os.fsdecode(file.read(source)),
                os.fsdecode(file.read(target)),
                start,
                length,
                file.read(size),
            )
