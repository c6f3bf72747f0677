"""How a forked process does a scenario, and with which exit code it ends."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.campaigns.faults.plan import Plan
from ucpformat.errors import UcpError

__all__ = [
    "REGISTERED",
    "STOPPED",
    "SUCCESS",
    "UNREGISTERED",
    "as_command",
    "as_function",
    "load_what_it_needs",
]

SUCCESS, REGISTERED, STOPPED, UNREGISTERED, LEFT_OPEN = 0, 3, 4, 5, 16
_DEADLINE = 60
_MOMENT = 15.0
"""Seconds."""


def as_function(work: Callable[[], None], plan: Plan, said: Path) -> NoReturn:
    """Call a function; end with a status of this module, and what is not registered in the file ``said``.

    `LEFT_OPEN` is added where descriptors are open afterwards of files beside ``said`` or below, whatever has happened.
    """
    ended = UNREGISTERED
    try:
        ended = _called(work, plan, said)
        plan.disarm()
        if left := _left_open(said.parent):
            said.write_text(f"{left}")
            ended += LEFT_OPEN
    finally:
        os._exit(ended)


def _left_open(place: Path) -> list[str]:
    """What is open below a directory, when all threads have ended, which may take a moment."""
    until = time.monotonic() + _MOMENT
    while True:
        is_alone = threading.active_count() == 1
        found = []
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{descriptor}")
                if path.startswith(f"{place}/"):
                    found.append(path)
        if not found or is_alone or time.monotonic() > until:
            return found
        time.sleep(0.01)


def _called(work: Callable[[], None], plan: Plan, said: Path) -> int:
    """How a function ends."""
    ended = UNREGISTERED
    try:
        signal.alarm(_DEADLINE)
        signal.signal(signal.SIGTERM, _exit)
        warnings.simplefilter("ignore")  # what could not be removed, on purpose
        work()
        ended = SUCCESS
    except UcpError:
        ended = REGISTERED
    except (KeyboardInterrupt, SystemExit):
        ended = STOPPED
    except BaseException as failure:
        plan.disarm()
        said.write_text(traceback.format_exc())
        # What a signal raises within `threading.Condition` comes out as "release unlocked lock".
        reason: BaseException | None = failure
        while reason is not None:
            if isinstance(reason, KeyboardInterrupt | SystemExit):
                ended = STOPPED
            reason = reason.__context__
    return ended


def as_command(arguments: Sequence[str], place: Path, plan: Plan, said: Path) -> NoReturn:
    """Be `python -m ucpformat` in a directory; what it says goes into the file ``said``."""
    code = 99
    try:
        signal.alarm(_DEADLINE)
        sink = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.chdir(place)
        warnings.simplefilter("ignore")
        sys.argv = ["ucp", *arguments]
        runpy.run_module("ucpformat", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        plan.disarm()
        traceback.print_exc()
        code = 98
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def load_what_it_needs(arguments: Sequence[str], place: Path) -> None:
    """Do a command here, so that the processes that are forked need not import what it does."""
    here, told = Path.cwd(), sys.argv
    os.chdir(place)
    sys.argv = ["ucp", *arguments]
    try:
        with suppress(SystemExit), redirect_stdout(StringIO()):
            runpy.run_module("ucpformat", run_name="__main__", alter_sys=True)
    finally:
        sys.argv = told
        os.chdir(here)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
