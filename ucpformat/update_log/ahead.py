"""Taking items from a thread that makes them ahead of whoever needs them, within a bound on their bytes."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["made_ahead"]

_T = TypeVar("_T")
_END: Final = object()


@contextmanager
def made_ahead(
    source: Iterator[_T], nbytes: Callable[[_T], int], *, most_bytes: int
) -> Iterator[Iterator[_T]]:
    """Give the items of an iterator, in order, which a thread takes from it meanwhile.

    It is one item ahead at least, whatever its size, and else as many as have ``most_bytes`` together. What the
    iterator raises is raised where its next item would come. The thread ends with the context.

    >>> with made_ahead(iter([1, 2, 3]), lambda item: 8, most_bytes=16) as items:
    ...     list(items)
    [1, 2, 3]
    """
    queue: deque[tuple[object, int]] = deque()
    changed = threading.Condition()
    held = 0
    is_closed = False

    def put(item: object, size: int) -> bool:
        nonlocal held
        with changed:
            changed.wait_for(lambda: is_closed or not held or held + size <= most_bytes)
            if is_closed:
                return False
            queue.append((item, size))
            held += size
            changed.notify_all()
            return True

    def make() -> None:
        try:
            for item in source:
                if not put(item, nbytes(item)):
                    return
        except BaseException as failure:
            put(_Failure(failure), 0)
        else:
            put(_END, 0)

    def taken() -> Iterator[_T]:
        nonlocal held
        while True:
            with changed:
                changed.wait_for(lambda: queue)
                item, size = queue.popleft()
                held -= size
                changed.notify_all()
            if item is _END:
                return
            if isinstance(item, _Failure):
                raise item.reason
            yield item  # type: ignore[misc]

    thread = threading.Thread(target=make, name="ucp-read-ahead", daemon=True)
    thread.start()
    try:
        yield taken()
    finally:
        with changed:
            is_closed = True
            changed.notify_all()
        thread.join()


class _Failure:
    """What the source has raised."""

    def __init__(self, reason: BaseException) -> None:
        self.reason = reason
