"""Threads as ranks: what becomes of them when the thread that started them is interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from tests.distributed.thread_group import ThreadGroup, run_threads
from ucpformat.errors import UcpError


def test_an_interrupt_leaves_no_thread_waiting() -> None:
    """Two threads wait for messages of each other that nobody sends; so did one for another that had not begun."""
    refusals: list[str] = []

    def work(group: ThreadGroup) -> None:
        if group.rank == 0:
            os.kill(os.getpid(), signal.SIGINT)
        try:
            group.exchange({}, {1 - group.rank: np.empty(1, np.uint8)})
        except UcpError as refusal:
            refusals.append(refusal.code)
            raise

    with pytest.raises(KeyboardInterrupt):
        run_threads(2, work)
    assert set(refusals) == {"UCP-E-RANK"}
    told = len(refusals)
    time.sleep(0.1)
    assert len(refusals) == told, "none goes on"


@pytest.mark.parametrize("begun", [0, 1])
def test_an_interrupt_while_threads_start_leaves_none(monkeypatch: pytest.MonkeyPatch, begun: int) -> None:
    """Of three threads so many have begun, and wait for the others."""
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        if len(started) == begun:
            raise KeyboardInterrupt
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_threads(3, lambda group: group.all_gather(b""))
    assert not any(thread.is_alive() for thread in started)
