"""Values of each rank's own in a state: random number generators, data cursors (SPEC section 15.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ucpformat.distributed.local_state import OwnValue
from ucpformat.errors import error
from ucpformat.model.values import ON_RESIZE, OnResize, PerRankValues, encode

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.values import Extend

__all__ = ["Ask", "AskEach", "PerRank", "encoded_own", "own_value", "require_rule"]

_RANK = "rank"


@dataclass(frozen=True, slots=True)
class PerRank:
    """A value that differs from rank to rank, in a state that is saved or loaded.

    It differs along ``axis``: this process is at ``position`` of ``size``; without them, at its place in the group.
    Processes at one position have the same value. ``on_resize`` says what a job with another ``size`` gets: nothing
    (``refuse``: it has to ask for something), the entry of the same position where there is one (``keep``), its even
    share of the sum of all counters (``resplit``), or a `NewSeed` that no other position gets (``reseed``).

    >>> state = {"seed": ucp.PerRank(17, "reseed")}
    >>> report = ucp.save("run.ucp", state)
    >>> ucp.load("run.ucp", state)["seed"]  # the same number of ranks: each its own
    17
    """

    value: object
    on_resize: OnResize = "refuse"
    axis: str = _RANK
    position: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        if self.on_resize not in ON_RESIZE:
            raise ValueError(f"on_resize is one of {', '.join(ON_RESIZE)}, not {self.on_resize!r}")
        if self.axis != _RANK and self.size is None:
            raise ValueError(f"where along {self.axis!r} is this process? give position and size")
        if (self.position is None) != (self.size is None):
            raise ValueError("position and size go together")
        if self.position is not None and self.size is not None and not 0 <= self.position < self.size:
            raise ValueError(f"there is no position {self.position} of {self.size}")


Ask = OnResize | Callable[[Any, int, int], object]
"""A rule, or a function of what is stored (`PerRankValues`, or one value for all), the position and the size."""
AskEach = Ask | Mapping[str, Ask] | None
"""One for all, or by dotted path."""


def require_rule(ask: Ask | None, *, at: str) -> None:
    """Refuse what is neither a rule nor a function, by ``UCP-E-MISMATCH``."""
    if not (ask is None or callable(ask) or ask in ON_RESIZE):
        message = f"per_rank= takes {', '.join(ON_RESIZE)} or a function, not {ask!r}"
        raise error("UCP-E-MISMATCH", message, at=at)


def encoded_own(leaf: PerRank, *, at: str, extend: Extend) -> tuple[JsonValue, OwnValue]:
    """Return what is alike on all ranks, a value without entries, and this rank's own."""
    whole = encode(PerRankValues((leaf.value,), leaf.on_resize, leaf.axis), at=at, extend=extend)
    content: Any = whole["$object"]["value"]  # type: ignore[index, call-overload]
    (entry,) = content["entries"]
    content["entries"] = []
    return whole, OwnValue(entry, leaf.position, leaf.size)


def own_value(
    stored: object, encoded: JsonValue, leaf: object, ask: Ask | None, standing: tuple[int, int], *, at: str
) -> object:
    """Return what this process gets of a value that differs from rank to rank, in the checkpoint or in the state.

    ``encoded`` is ``stored`` as it is in the checkpoint, ``standing`` the position in the group, and its size.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for what nobody may have unasked.
    """
    axis = leaf.axis if isinstance(leaf, PerRank) else _RANK
    position, size = standing
    if isinstance(leaf, PerRank) and leaf.position is not None and leaf.size is not None:
        position, size = leaf.position, leaf.size
    if callable(ask):
        return ask(stored, position, size)
    if not isinstance(stored, PerRankValues):
        message = "the checkpoint has one value for all ranks, the state one for each: say by per_rank= what each gets"
        raise error("UCP-E-MISMATCH", message, at=at)
    if ask is not None:
        if ask == "resplit" and not all(type(entry) is int and entry >= 0 for entry in stored.entries):
            raise error("UCP-E-MISMATCH", "its entries are no counters: they cannot be resplit", at=at)
        stored = replace(stored, on_resize=ask)
    if stored.axis != axis:
        message = (
            f"it was saved along {stored.axis!r}, the state has it along {axis!r}: "
            "wrap it as PerRank with that axis, or say by per_rank= what each gets"
        )
        raise error("UCP-E-MISMATCH", message, at=at)
    content: Any = encoded
    return stored.at(position, size, content["$object"]["value"]["entries"], at=at)
