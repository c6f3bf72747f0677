"""Findings of the oracle, and the order of codes (SPEC section 18)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Problem", "RefusalError", "pointer"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A code of the registry, the place, and why."""

    code: str
    at: str
    why: str = ""


class RefusalError(Exception):
    """What ends a procedure; holds the problem."""

    def __init__(self, code: str, at: str = "", why: str = "") -> None:
        super().__init__(f"{code} at {at}: {why}")
        self.problem = Problem(code, at, why)


def pointer(at: str, *parts: str | int) -> str:
    """Return ``at`` extended by members and indices: a store key, ``#``, and an RFC 6901 pointer."""
    tail = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
    return at if not tail else (at + tail if "#" in at else f"{at}#{tail}")
