"""Values of settings, which the command line has as text."""

from __future__ import annotations

from ucpformat.errors import error

__all__ = ["named_integers"]


def named_integers(text: str, *, at: str) -> dict[str, int]:
    """``a=1,b=2`` as a dict. Raises ``UCP-E-PATTERN`` for anything else."""
    found = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if not value.isdecimal() or not value.isascii() or len(value) > 15:
            raise error("UCP-E-PATTERN", f"{part!r} is not NAME=INTEGER", at=at)
        found[name.strip()] = int(value)
    return found
