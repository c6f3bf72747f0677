"""Time, processor time and memory of one piece of work."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Footprint", "Reading", "cpu_seconds", "footprint", "measured"]

_PROCESS: Final = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Reading:
    """What one piece of work took.

    ``cpu_seconds``: user and system time of all threads. ``peak_bytes``: resident memory at its highest,
    above what was resident before.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def measured(work: Callable[[], None]) -> Reading:
    """Do the work once, with garbage collected and freed memory given back before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    # 5 sets the high-water mark of resident memory back to what is resident now (proc(5)).
    (_PROCESS / "clear_refs").write_text("5")
    resident = _status("VmRSS")
    cpu = cpu_seconds()
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return Reading(seconds, cpu_seconds() - cpu, max(0, _status("VmHWM") - resident))


def cpu_seconds() -> float:
    """User and system time of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _status(field: str) -> int:
    for line in (_PROCESS / "status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_PROCESS}/status has no {field}")


class Footprint(NamedTuple):
    """What lies on the disk: bytes of the files' contents, and how many files."""

    nbytes: int
    objects: int


def footprint(directory: Path) -> Footprint:
    """Sum over the files below a directory."""
    sizes = [(Path(path) / name).stat().st_size for path, _, names in os.walk(directory) for name in names]
    return Footprint(sum(sizes), len(sizes))
