"""What one execution may do: two seconds of processor time, 256 MiB, its own directory, registered errors, no code.

Opens, removals, processes and sockets are seen by an audit hook of Python, which code in C that opens files by itself
does not pass (TensorStore); what such code is given is checked before (`SourceFiles.hand_over`).
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ucpformat.errors import REGISTRY, UcpError

__all__ = ["MEMORY", "SECONDS", "Seen", "Watch"]

SECONDS: Final = 2.0
"""Processor time of one execution."""
MEMORY: Final = 256 << 20
"""Bytes that one execution may add."""
_WAIT: Final = 90.0
"""Seconds, on a machine that is busy, after which it waits for something that does not come."""
_SPARE: Final = 1 << 30
"""Address space beyond that: of threads' arenas, of which little is touched."""

_FORBIDDEN: Final = (
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.spawn",
    "socket.",
    "pty.",
)
_PATHS: Final = frozenset(
    {
        "open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink",
        "os.truncate", "os.chmod", "os.chown", "os.utime", "shutil.rmtree", "shutil.copyfile", "shutil.move",
    }
)  # fmt: skip
_SYSTEM: Final = ("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/etc/localtime", "/usr/share/zoneinfo")


class _TooLongError(BaseException):
    """More processor time than is allowed."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What an execution came to.

    ``outcome`` is a registered code, ``ok``, or what must not be: then ``wrong`` tells more.
    """

    outcome: str
    seconds: float
    nbytes: int
    wrong: str = ""
    message: str = ""


def _inside(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


class Watch:
    """Runs what is given to `run` under the limits; one of a process, made when everything it needs is loaded.

    ``roots`` are the directories below which files may be opened; what leads to them may be listed in ``work``.
    """

    def __init__(self, *roots: Path, work: Path | None = None) -> None:
        self._roots = [os.path.realpath(root) for root in roots]
        self._code = [os.path.realpath(path) for path in (*sys.path, sys.prefix, sys.base_prefix) if path]
        self._is_on = False
        self._wrong: list[str] = []
        self._busy = threading.local()
        sys.addaudithook(self._hook)
        signal.signal(signal.SIGPROF, self._too_long)
        signal.signal(signal.SIGALRM, self._too_long)
        self._listed = "" if work is None else os.path.realpath(work)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY + _SPARE
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        self._peak = os.open("/proc/self/clear_refs", os.O_WRONLY)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on or getattr(self._busy, "is_so", False):
            return
        if event.startswith(_FORBIDDEN):
            self._wrong.append(f"{event} {arguments!r:.200}")
        elif event in _PATHS:
            self._busy.is_so = True
            try:
                self._check(event, arguments)
            finally:
                self._busy.is_so = False

    def _check(self, event: str, arguments: tuple[Any, ...]) -> None:
        path = arguments[0] if arguments else None
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor, whose opening was seen
        text = os.fsdecode(path)
        if not os.path.isabs(text) and ".." not in text.split("/"):
            return  # below a descriptor of a directory, whose opening was seen: the campaign has no other
        if event in {"os.listdir", "os.scandir"} and os.path.dirname(text) in self._roots:
            return  # what the user names, whatever it leads to
        if event == "open" and (arguments[2] or 0) & os.O_NOFOLLOW:  # which refuses what is a link
            real = os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))
        else:
            real = os.path.realpath(text)
        if _inside(real, self._roots) or real.startswith(_SYSTEM):
            return
        if self._listed and os.path.dirname(real) == self._listed and event not in {"open", "os.remove"}:
            return
        if self._listed and real == self._listed:
            return
        reads = event in {"open", "os.listdir", "os.scandir"} and (
            event != "open" or not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if reads and _inside(real, self._code):
            return  # a module
        self._wrong.append(f"{event} {text!r}")

    def _too_long(self, number: int, _: FrameType | None) -> None:
        if self._is_on:
            what = "waits for ever" if number == signal.SIGALRM else f"more than {SECONDS:.0f} s"
            self._wrong.append(what)
            raise _TooLongError

    def run(self, work: Callable[[], object]) -> Seen:
        """Run, and tell what came of it."""
        self._wrong.clear()
        os.write(self._peak, b"5")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        outcome = message = ""
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.setitimer(signal.ITIMER_REAL, _WAIT)
        self._is_on = True
        try:
            work()
            outcome = "ok"
        except UcpError as refusal:
            outcome, message = refusal.code, refusal.message
            if outcome not in REGISTRY or not message:
                self._wrong.append(f"no registered error: {refusal!r:.200}")
        except _TooLongError:
            outcome = "too long"
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:
            outcome = type(problem).__name__
            self._wrong.append(_told(problem))
        finally:
            self._is_on = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = time.process_time() - begun
        nbytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        if nbytes > MEMORY:
            self._wrong.append(f"{nbytes >> 20} MiB")
        return Seen(outcome, seconds, nbytes, "; ".join(self._wrong[:3]), message)


def _told(problem: BaseException) -> str:
    """An exception, and the innermost place in the package."""
    frames = [
        frame for frame in traceback.extract_tb(problem.__traceback__) if "/ucpformat/" in frame.filename
    ]
    place = f"{frames[-1].filename.rpartition('/ucpformat/')[2]}:{frames[-1].lineno}" if frames else "?"
    return f"{type(problem).__name__} at {place}: {problem!s:.200}"
