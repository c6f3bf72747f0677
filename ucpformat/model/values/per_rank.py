"""Values of each rank's own, and who gets which in a job of another size (SPEC section 15.2)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from ucpformat.errors import error
from ucpformat.model.values.keys import canonical_text

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["ON_RESIZE", "NewSeed", "OnResize", "PerRankValues", "new_seed"]

OnResize = Literal["refuse", "keep", "resplit", "reseed"]
ON_RESIZE: Final[tuple[OnResize, ...]] = ("refuse", "keep", "resplit", "reseed")
_POSITIONS_OF_SEEDS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class NewSeed:
    """A seed in the place of a state of a random number generator that nobody may have twice; below 2^63.

    >>> ucp.PerRankValues((11, 12), "reseed").at(0, 3, [11, 12])
    NewSeed(seed=...)
    """

    seed: int


@dataclass(frozen=True, slots=True)
class PerRankValues:
    """All entries of a value that differs along ``axis``, by position, and what a job of another size gets.

    >>> samples = ucp.PerRankValues((30, 34), "resplit")
    >>> [samples.at(position, 3, [30, 34]) for position in range(3)]  # three ranks go on where two stopped
    [22, 21, 21]
    """

    entries: tuple[object, ...]
    on_resize: OnResize = "refuse"
    axis: str = "rank"

    def at(self, position: int, size: int, encoded: JsonValue, *, at: str = "") -> object:
        """Return what ``position`` of ``size`` gets; ``encoded`` are the entries as they are stored.

        Raises:
            MismatchError: ``UCP-E-MISMATCH`` where that is nothing (UCP-R-025).

        >>> ucp.PerRankValues(("a", "b"), "keep").at(1, 4, ["a", "b"])
        'b'
        """
        count = len(self.entries)
        if size == count or (self.on_resize == "keep" and position < count):
            return self.entries[position]
        if self.on_resize == "resplit":
            counters: Any = self.entries
            share, rest = divmod(sum(counters), size)
            return share + (position < rest)
        if self.on_resize == "reseed" and size <= _POSITIONS_OF_SEEDS:
            return NewSeed(new_seed(position, size, encoded))
        raise error(
            "UCP-E-MISMATCH",
            f"it was saved for {count} positions of {self.axis!r} with on_resize={self.on_resize!r}, and there is "
            f"nothing for position {position} of {size}: say what it begins with by per_rank=",
            at=at,
        )


def new_seed(position: int, size: int, encoded: JsonValue) -> int:
    """Return the seed of ``position`` of ``size``, from all stored entries: never that of another position."""
    digest = hashlib.sha256(canonical_text([size, encoded])).digest()
    drawn = int.from_bytes(digest[:8], "big") % (1 << 63)
    return drawn - drawn % _POSITIONS_OF_SEEDS + position
