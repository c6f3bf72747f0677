"""The roll call of several ranks: each says in each step how its replica is, and hears in the next what all have said.

A rank that comes to its next step has the gradients of all others, which have made the step before: what they have said
there has arrived, and nobody waits. So all ranks know of a loss at one step, without a clock and without a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RollCall", "Standing"]

_FINAL: Final = 1 << 24


class Standing(NamedTuple):
    """How the replicas of all ranks are, or that of one: the greatest of `to_int` counts.

    Attributes:
        is_lost: whether one is gone, so that all are to be replaced.
        rank: whose replica was the cause, the last one of several; None where nobody knows.
        is_final: whether it is not to be replaced.
    """

    is_lost: bool = False
    rank: int | None = None
    is_final: bool = False

    def to_int(self) -> int:
        """Return what `from_int` reads."""
        rank = 0 if self.rank is None else self.rank + 1
        return int(self.is_lost) * (1 + rank) + int(self.is_final) * _FINAL

    @classmethod
    def from_int(cls, number: int) -> Standing:
        """Read what `to_int` has made.

        >>> Standing.from_int(Standing(is_lost=True, rank=3).to_int())
        Standing(is_lost=True, rank=3, is_final=False)
        """
        is_final, rest = divmod(number, _FINAL)
        return cls(rest > 0, rest - 2 if rest > 1 else None, bool(is_final))


class _Group(Protocol):
    """What `RollCall` asks of a group."""

    def greatest(self, number: int) -> Callable[[], int]:
        """Begin to find the greatest number of all ranks; what is returned waits for it."""
        ...


class RollCall:
    """Tells all ranks of a group, a step later, how the replicas of all of them are.

    Raises:
        StoreError: ``UCP-E-RANK``, from any method, where another rank is gone.
    """

    def __init__(self, group: _Group) -> None:
        self._group = group
        self._pending: Callable[[], int] | None = None

    def say(self, mine: Standing) -> None:
        """Say how this rank's replica is; does not wait."""
        self._pending = self._group.greatest(mine.to_int())

    def heard(self) -> Standing:
        """Return what all ranks have said last, once; all is well where they have said nothing since."""
        pending, self._pending = self._pending, None
        return Standing() if pending is None else Standing.from_int(pending())

    def asked(self, mine: Standing) -> Standing:
        """Say how this rank's replica is, and wait for all others."""
        self.say(mine)
        return self.heard()
