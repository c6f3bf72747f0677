"""What is known of changes since the base of an increment without a look at its bytes (SPEC section 8.5).

Whoever saves may know: the application, which rows it has changed, or a saver, which still has its last snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from ucpformat.model.table import rows_of
from ucpformat.storage.increments.overwriting import has_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ucpformat.geometry import Box

__all__ = ["ComparedRows", "DeclaredRows", "KnownChanges"]


class KnownChanges(Protocol):
    """Tells which rows of boxes may differ from the checkpoint with the root digest ``base``.

    A save that is handed some asks each of them that has its base, before it compares a piece with the base: once for
    each piece, from any of its threads, several at a time. Rows that are said to be the same are not compared, so that
    a wrong answer loses them. It raises nothing: who does not know returns None, and the next one is asked.
    """

    base: str

    def rows(self, name: tuple[str, str], box: Box) -> NDArray[np.bool_] | None:
        """Return a truth value for each row of a box of a slot; one for all where rows are not told apart.

        None where nothing is known. Rows are those of `rows_of`.
        """
        ...


class DeclaredRows:
    """Rows that the application says it has changed: a truth value for each index of the first dimension of slots.

    >>> from ucpformat.geometry import Box
    >>> known = DeclaredRows("sha256:...", {("w", "value"): np.array([False, True, False])})
    >>> known.rows(("w", "value"), Box((1, 0), (2, 64)))
    array([ True, False])
    """

    def __init__(self, base: str, masks: Mapping[tuple[str, str], NDArray[np.bool_]]) -> None:
        self.base = base
        self._masks = masks

    def rows(self, name: tuple[str, str], box: Box) -> NDArray[np.bool_] | None:
        """Do as `KnownChanges.rows`."""
        mask = self._masks.get(name)
        if mask is None:
            return None
        found = mask[box.offset[0] : box.offset[0] + box.shape[0]]
        return np.repeat(found, rows_of(box)) if found.size == 1 else found


class ComparedRows:
    """Rows that a saver has found to differ from what it wrote last, box by box."""

    def __init__(self, base: str) -> None:
        self.base = base
        self._found: dict[tuple[tuple[str, str], Box], NDArray[np.bool_]] = {}

    def expect(self, name: tuple[str, str], box: Box, item_bytes: int) -> NDArray[np.bool_]:
        """Return the truth values of a box that is about to be compared, all of them true, for whoever compares it."""
        mask = np.ones(rows_of(box) if has_rows(box, item_bytes) else 1, np.bool_)
        self._found[name, box] = mask
        return mask

    def rows(self, name: tuple[str, str], box: Box) -> NDArray[np.bool_] | None:
        """Do as `KnownChanges.rows`."""
        return self._found.get((name, box))
