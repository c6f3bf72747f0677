"""How many threads do the work where a caller does not say."""

from __future__ import annotations

import os

__all__ = ["worker_count"]


def worker_count(wanted: int | None, at_once: int | None = None) -> int:
    """``wanted``, or ``at_once``, or one thread per core and at most 8: more wait for the same disk."""
    return wanted or at_once or min(8, os.cpu_count() or 1)
