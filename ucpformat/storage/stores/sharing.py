"""What one checkpoint has and another may have as well, without writing it again (SPEC section 8.5)."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Sharable"]


class Sharable(Protocol):
    """An object of the base of an increment, to be compared, and then shared by `Store.share`.

    `Objects.sharable` provides it: an open file to be linked, or what a listing says of an object to be copied. While
    that context lasts, an increment calls `read` and `has` from any of its threads, as often as it has something to
    compare, and may hand it to `Store.share`. Behind the context it is closed, and not to be used.
    """

    @property
    def nbytes(self) -> int:
        """Its length."""
        ...

    @property
    def mark(self) -> str | None:
        """What tells an object from others that have its key at other times; None for an open file, which is itself.

        What has a mark is far: every look at its bytes is a request.
        """
        ...

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from ``start`` on; raises OSError or `UcpError` where they cannot be read."""
        ...

    def has(self, data: memoryview, start: int) -> bool:
        """Say whether the bytes from ``start`` on are ``data``; raises as `read`."""
        ...
