"""What does not fit between a state and a checkpoint, as a user reads it: all of it at once, each with a way out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ucpformat.frameworks.live.matching import Match

__all__ = ["of_match", "of_unexpected"]

_MAX_LISTED: Final = 20
_MAX_COMPARED: Final = 5000
_ALIKE: Final = 0.85
_NUMBERED: Final = re.compile(r"(?:^|\.)state\.\d+\.")
_NAMED: Final = re.compile(r"(?:^|\.)state\.(?!\d+\.)")


def of_match(match: Match) -> str | None:
    """What is missing or differs, or None."""
    problems = [
        f"{name}: {text}" if source is None else f"{name}: missing{_instead(source, name, match)}"
        for name, text, source in match.problems
    ]
    return _listed("does not fit the checkpoint", problems) if problems else None


def of_unexpected(names: Sequence[str]) -> str:
    """What the checkpoint has beyond a state."""
    remedy = "ask for a part with only=, or give strict=False"
    return _listed(f"lacks what the checkpoint has ({remedy})", [f"{name}: unexpected" for name in names])


def _listed(what: str, problems: Sequence[str]) -> str:
    shown = list(problems[:_MAX_LISTED])
    if len(problems) > _MAX_LISTED:
        shown.append(f"and {len(problems) - _MAX_LISTED} more")
    between = " " if len(shown) == 1 else "\n  "
    return between.join([f"the state {what}; nothing was changed:", *shown])


def _instead(source: str, name: str, match: Match) -> str:
    as_what = f" (as {source!r})" if source != name else ""
    if _NUMBERED.search(source) and any(map(_NAMED.search, match.stored)):
        return (
            f"{as_what}; the state numbers the parameters of an optimizer, the checkpoint names them: "
            "give the module and the optimizer themselves, or get_state_dict's form"
        )
    found = _near(source, match.unexpected, match.stored)
    return f"{as_what}; the checkpoint has {found!r}, which rename= would take" if found else as_what


def _near(source: str, unexpected: Sequence[str], stored: Collection[str]) -> str | None:
    """The name that was probably meant: one component more, less or other at the front, or nearly the same."""
    steps = source.split(".")
    for place in range(len(steps)):
        without = ".".join(steps[:place] + steps[place + 1 :])
        if without in stored:
            return without
    for other in unexpected[:_MAX_COMPARED]:
        theirs = other.split(".")
        if len(theirs) == len(steps) and theirs[1:] == steps[1:]:
            return other
        if len(theirs) == len(steps) + 1 and any(
            theirs[:place] + theirs[place + 1 :] == steps for place in range(len(theirs))
        ):
            return other
    close = difflib.get_close_matches(source, unexpected[:_MAX_COMPARED], 1, _ALIKE)
    return close[0] if close else None
