"""What does not fit between a state and a checkpoint, as a user reads it: all of it at once, each with a way out."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from ucpformat.state_dict.load_options import fronts, near

if TYPE_CHECKING:
    from ucpformat.state_dict.matching import Match, Missing

__all__ = ["of_match", "of_missing", "of_unexpected"]

_MAX_LISTED: Final = 20
_MAX_COMPARED: Final = 5000
_ALIKE: Final = 0.85
_NUMBERED: Final = re.compile(r"(?:^|\.)state\.\d+\.")
_NAMED: Final = re.compile(r"(?:^|\.)state\.(?!\d+\.)")


def of_match(match: Match, *, strict: bool) -> str | None:
    """Return what differs, and what is missing where ``strict``; or None."""
    problems = [f"{name}: {text}" for name, text in match.problems]
    if strict:
        problems += _missing(match)
    return _listed("does not fit the checkpoint", problems) if problems else None


def of_missing(match: Match) -> str:
    """Return what is missing, where that is everything."""
    return _listed("has nothing that the checkpoint has", _missing(match))


def _missing(match: Match) -> list[str]:
    """Return a line for each; what was meant is looked for only where it will be listed."""
    return [
        f"{one.name}: missing{_instead(one, match) if number < _MAX_LISTED else ''}"
        for number, one in enumerate(match.missing)
    ]


def of_unexpected(names: Sequence[str]) -> str:
    """Return what the checkpoint has beyond a state."""
    remedy = "ask for a part with only=, or give strict=False"
    return _listed(f"lacks what the checkpoint has ({remedy})", [f"{name}: unexpected" for name in names])


def _listed(what: str, problems: Sequence[str]) -> str:
    shown = list(problems[:_MAX_LISTED])
    if len(problems) > _MAX_LISTED:
        shown.append(f"and {len(problems) - _MAX_LISTED} more")
    between = " " if len(shown) == 1 else "\n  "
    return between.join([f"the state {what}; nothing was changed:", *shown])


def _instead(one: Missing, match: Match) -> str:
    if one.refusal:
        return f"; {one.refusal}"
    as_what = f" (as {one.source!r})" if one.source != one.name else ""
    if _NUMBERED.search(one.source) and any(map(_NAMED.search, match.slots)):
        return (
            f"{as_what}; the state numbers the parameters of an optimizer, the checkpoint names them: "
            "give the module and the optimizer themselves, or get_state_dict's form"
        )
    stored = match.slots | match.stored_values
    below = sorted(name for name in stored if name.startswith(f"{one.source}."))
    if below:
        return f"{as_what}; the checkpoint has a dict here, with {below[0]!r}: give one with the same keys"
    above = [front for front in fronts([one.source]) if front in stored]
    if above:
        return f"{as_what}; the checkpoint has no dict but one value here, {above[0]!r}"
    found = _near(one.source, match.unexpected, match.slots if one.is_tensor else match.stored_values)
    if found is None:
        return as_what
    key, name = _differing_fronts(one.name, found)
    return f"{as_what}; the checkpoint has {found!r}: rename={{{key!r}: {name!r}}} takes it"


def _differing_fronts(name: str, other: str) -> tuple[str, str]:
    """Return both names without the components at the end that they have in common; at least one component each."""
    steps, others = name.split("."), other.split(".")
    while len(steps) > 1 and len(others) > 1 and steps[-1] == others[-1]:
        steps.pop()
        others.pop()
    return ".".join(steps), ".".join(others)


def _near(source: str, unexpected: Sequence[str], stored: Collection[str]) -> str | None:
    """Return the name in ``stored`` that was probably meant: one component more, less or other in front, or alike."""
    steps = source.split(".")
    for place in range(len(steps) - 1):
        without = ".".join(steps[:place] + steps[place + 1 :])
        if without in stored:
            return without
    others = [name for name in unexpected if name in stored]
    for other in others[:_MAX_COMPARED]:
        theirs = other.split(".")
        if len(steps) > 1 and len(theirs) == len(steps) and theirs[1:] == steps[1:]:
            return other
        if len(theirs) == len(steps) + 1 and any(
            theirs[:place] + theirs[place + 1 :] == steps for place in range(len(steps))
        ):
            return other
    return near(source, others, alike=_ALIKE) or None
