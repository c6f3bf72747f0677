"""Why no rule matches (SPEC-PATTERNS): the nearest ones, and what keeps each from matching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ucpformat.errors import UcpError, error

if TYPE_CHECKING:
    from ucpformat.patterns.glob import Glob

__all__ = ["Candidate", "unmatched"]

_NEAREST: Final = 3
_NAMES_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rule or an entry: what to call it, and the globs that would have had to match."""

    label: str
    names: tuple[Glob, ...]
    slots: tuple[Glob, ...] | None


def unmatched(candidates: Sequence[Candidate], missing: Sequence[tuple[str, str]], at: str) -> UcpError:
    """Return the refusal of the atoms and slots ``missing``, of which there is one at least."""
    name, slot = missing[0]
    ranked = sorted((_distance(candidate, name) for candidate in candidates), key=lambda found: -found[0])
    others = list(dict.fromkeys(atom for atom, _ in missing if atom != name))
    message = f"nothing matches the slot {slot!r} of {name!r}"
    if ranked:
        message += "; the nearest are " + "; ".join(reason for _, reason in ranked[:_NEAREST])
    if others:
        shown = ", ".join(map(repr, others[:_NAMES_SHOWN])) + (", ..." if len(others) > _NAMES_SHOWN else "")
        message += f"; nor do {len(others)} other atoms have a match: {shown}"
    return error("UCP-E-UNMATCHED", message + ". Add a rule, with null for what is to be left out", at=at)


def _distance(candidate: Candidate, name: str) -> tuple[int, str]:
    """Return how near a candidate comes to ``name``, and why it does not match."""
    for glob in candidate.names:
        if glob.match(name) is not None:
            specific = sum(map(len, glob.runs))
            if candidate.slots is None:
                return specific, f"{candidate.label}, {glob.text!r}: it has no atom of this index"
            slots = ", ".join(slot.text for slot in candidate.slots)
            return specific, f"{candidate.label}, which is for the slots {slots} alone"
    reasons = ((*glob.mismatch(name), glob.text) for glob in candidate.names)
    agreed, why, text = max(reasons, key=lambda found: found[0])
    return agreed, f"{candidate.label}, {text!r}: {why}"
