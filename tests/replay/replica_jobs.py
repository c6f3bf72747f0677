"""Replicas as forks of the trainer, which start in no time, and trainers that are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ucpformat.replay.replica import link
from ucpformat.replay.replica.process import main


class Forked:
    """What a link asks of the process that it has started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._is_over = False

    def kill(self) -> None:
        if not self._is_over:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        limit = time.monotonic() + timeout
        while time.monotonic() < limit:
            self._is_over = self._is_over or bool(os.waitpid(self.pid, os.WNOHANG)[0])
            if self._is_over:
                return 0
            time.sleep(0.005)
        raise AssertionError("the replica does not end")


def fork_replicas(note: Path, begin: Callable[[], None] = lambda: None) -> None:
    """Have replicas of this process, and of its forks, be forks; ``note`` has the number of the last one.

    Each calls ``begin`` first.
    """

    def started(channel: Any, stream: Any, memory: int, inherited: Any) -> Forked:
        trainer = os.getpid()
        child = os.fork()
        if child == 0:
            os.setsid()
            assert not inherited  # that of one process is alone
            kept = {0, 1, 2, channel.fileno(), stream.fileno(), memory}
            for number in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
                with suppress(OSError):
                    os.close(number)
            try:
                begin()
                main(channel.detach(), stream.detach(), memory, trainer)
            finally:
                os._exit(0)
        note.write_text(str(child))
        return Forked(child)

    link._started = started  # type: ignore[assignment]


def forked(act: Callable[[], None]) -> int:
    """Run something in a fork; return its status, negative where a signal ended it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def end_replica(note: Path) -> None:
    """Kill the replica, if there is one, and return when it is gone."""
    if note.exists():
        end_process(int(note.read_text()))


def end_process(number: int) -> None:
    """Kill a process, and return when it is gone."""
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    while Path(f"/proc/{number}/fd").exists() and (state_of(number) != "Z" or _threads(number) > 1):
        time.sleep(0.002)


def _threads(number: int) -> int:
    """How many threads a process has yet: until the last has ended, its sockets are open."""
    try:
        return len(os.listdir(f"/proc/{number}/task"))
    except OSError:
        return 0


def state_of(number: int) -> str:
    """The letter that the kernel has for the state of a process, empty where there is none."""
    with suppress(OSError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    return ""
