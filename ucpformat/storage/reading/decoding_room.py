"""Memory for chunks that are decoded or put together: as much as several threads share (SPEC section 19)."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DECODED_BYTES", "DecodingRoom"]

DECODED_BYTES: Final = 256 << 20
"""Of all chunks together that are decoded at a time, unless one alone has more."""


class DecodingRoom:
    """Lets so many bytes be taken at a time, or any number of them by one taker alone."""

    def __init__(self, nbytes: int = DECODED_BYTES) -> None:
        self._nbytes = nbytes
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def take(self, nbytes: int) -> Iterator[None]:
        """Have ``nbytes`` for as long as the context lasts; wait until they are there. Not to be nested."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + nbytes <= self._nbytes)
            self._taken += nbytes
        try:
            yield
        finally:
            with self._changed:
                self._taken -= nbytes
                self._changed.notify_all()
