"""What one save leaves to the next: a result that is the same as long as what it follows from is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Kept"]

_T = TypeVar("_T")


class Kept(Generic[_T]):
    """The last result, with the key of what it follows from. Give keys without tensors, so that none is kept alive."""

    def __init__(self) -> None:
        self._last: tuple[object, _T] | None = None

    def of(self, key: object, make: Callable[[], _T]) -> _T:
        """Return the last result if it is that of ``key``, else what ``make`` returns, whose errors pass."""
        if self._last is None or self._last[0] != key:
            self._last = None  # never two at once
            self._last = key, make()
        return self._last[1]
