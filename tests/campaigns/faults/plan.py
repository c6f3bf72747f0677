"""The page that a process shares with the shim: which call meets which fault (`struct plan` of shim.c)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

__all__ = ["ERRORS", "SIGNALS", "Fault", "Plan", "faults_of"]

When = Literal["before", "after", "short"]
_WHENS: Final[tuple[When, ...]] = ("before", "after", "short")

ERRORS: Final = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR)
SIGNALS: Final = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)


class _Page(ctypes.Structure):
    _fields_ = (
        ("armed", ctypes.c_int),
        ("count", ctypes.c_int),
        ("at", ctypes.c_int),
        ("number", ctypes.c_int),
        ("when", ctypes.c_int),
        ("fired", ctypes.c_int),
        ("name", ctypes.c_char * 32),
        ("scope", ctypes.c_char * 4096),
        ("log", (ctypes.c_char * 4) * 8192),
    )


@dataclass(frozen=True)
class Fault:
    """What happens at the call of a number, counted from 1: an errno, or a signal."""

    at: int
    what: int | signal.Signals
    when: When

    def __str__(self) -> str:
        name = self.what.name if isinstance(self.what, signal.Signals) else errno.errorcode[self.what]
        return f"{name} {self.when} call {self.at}" if self.when != "short" else f"half of call {self.at}"


class Plan:
    """The page, shared with every process that is forked from here."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), ctypes.sizeof(_Page))
        self._page = _Page.from_buffer(self._memory)

    @staticmethod
    def create(path: Path) -> None:
        """Make the file, before the process is started that has the shim."""
        path.write_bytes(bytes(ctypes.sizeof(_Page)))

    def arm(self, scope: str, fault: Fault | None) -> None:
        """Count calls below ``scope`` from now on, and let one meet a fault."""
        page = self._page
        page.armed = page.count = page.fired = page.at = 0
        page.name = b""
        page.scope = os.fsencode(scope)
        if fault is not None:
            page.at = fault.at
            page.number = -fault.what if isinstance(fault.what, signal.Signals) else fault.what
            page.when = _WHENS.index(fault.when)
        page.armed = 1

    def disarm(self) -> list[str]:
        """Count no more; the calls that were counted, by the beginnings of their names."""
        self._page.armed = 0
        return [self._page.log[number].value.decode() for number in range(min(8192, self._page.count))]

    @property
    def fired(self) -> str | None:
        """The name of the call that met the fault, if one did."""
        return self._page.name.decode() if self._page.fired else None


def faults_of(calls: list[str]) -> list[Fault]:
    """Every fault of every call of a run."""
    found = []
    for number, name in enumerate(calls, 1):
        for when in ("before", "after"):
            found += [
                Fault(number, what, when)
                for what in (*ERRORS, *SIGNALS)
                # A write that has written anything says how much, and is never told to be interrupted (write(2)).
                if not (name.startswith("writ") and (what, when) == (errno.EINTR, "after"))
            ]
        if name.startswith("writ"):
            found.append(Fault(number, errno.EIO, "short"))
    return found
