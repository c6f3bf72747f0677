"""At which steps of a logged run a full checkpoint is saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import Literal

__all__ = ["FullPace"]

_MOST_STEPS: Final = 1000
_LEAST_BYTES: Final = 1 << 24


class FullPace:
    """Says when a full checkpoint is due: every so many steps, or when the log has grown to the size of one.

    ``nbytes`` are those of all gradients; `saved` tells of each checkpoint.
    """

    def __init__(
        self, full_every: int | Literal["auto"] | None, nbytes: int, *, ranks: int, step: int
    ) -> None:
        self._full_every = full_every
        self._most_bytes = max(3 * nbytes, _LEAST_BYTES)
        self._ranks = ranks
        self._step = step
        self._written = 0

    def is_due(self, step: int, written: int) -> bool:
        """Return whether a checkpoint is due at a step, behind which ``written`` bytes of the log are there."""
        since = step - self._step
        if self._full_every is None:
            return False
        if self._full_every != "auto":
            return since >= self._full_every
        # All ranks have to come to the same answer: what one of them has written, another does not know.
        if self._ranks > 1:
            return since >= _MOST_STEPS
        return since >= _MOST_STEPS or written - self._written > self._most_bytes

    def saved(self, step: int, written: int) -> None:
        """Note that a checkpoint of a step is under way."""
        self._step, self._written = step, written
