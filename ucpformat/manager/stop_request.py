"""Signals that ask a job to stop, such as that of a preemption: noted when they come, heard between steps."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["StopRequest"]


class StopRequest:
    """Notes that one of some signals came. Made and undone in the main thread, as Python wants it."""

    def __init__(self, signals: tuple[signal.Signals, ...]) -> None:
        self.came = False
        self._before = {one: signal.signal(one, self._note) for one in signals}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        before = self._before.get(signal.Signals(number))
        if callable(before):
            before(number, frame)

    def undo(self) -> None:
        """Put back what the signals did before."""
        before, self._before = self._before, {}
        for one, handler in before.items():
            signal.signal(one, handler)
