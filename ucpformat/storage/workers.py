"""How much work goes to how many threads, where a caller does not say, and how much of it to one call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["call_groups", "task_groups", "worker_count", "writer_count"]

_T = TypeVar("_T")


def worker_count(wanted: int | None, at_once: int | None = None) -> int:
    """``wanted``, or ``at_once``, or one thread per core and at most 8: more wait for the same disk."""
    return wanted or at_once or min(8, os.cpu_count() or 1)


def writer_count(wanted: int | None, *, waits: bool) -> int:
    """As `worker_count`; where writers wait for the disk, another uses the processor meanwhile."""
    return wanted or worker_count(None) + (1 if waits else 0)


def task_groups(
    items: Iterable[_T], size: Callable[[_T], int], *, nbytes: int, most: int
) -> Iterator[list[_T]]:
    """Items in order, so many to a task that their sizes come to ``nbytes``, or ``most``: tasks cost as well."""
    group: list[_T] = []
    held = 0
    for item in items:
        group.append(item)
        held += size(item)
        if held >= nbytes or len(group) == most:
            yield group
            group, held = [], 0
    if group:
        yield group


def call_groups(
    items: Iterable[_T], place: Callable[[_T], tuple[str, int, int]], *, gap: int, nbytes: int, most: int
) -> Iterator[list[_T]]:
    """Items that one call reads: parts of one object, none of which begins within another, and little between them.

    ``place`` is an item's key, first byte and end; items are sorted by the first two. A group spans ``nbytes`` at most,
    unless it is one item, with gaps of at most ``gap`` bytes.
    """
    group: list[_T] = []
    of, first, end = "", 0, 0
    for item in items:
        key, start, stop = place(item)
        if group and not (
            key == of and 0 <= start - end <= gap and stop - first <= nbytes and len(group) < most
        ):
            yield group
            group = []
        if not group:
            of, first = key, start
        group.append(item)
        end = stop
    if group:
        yield group
