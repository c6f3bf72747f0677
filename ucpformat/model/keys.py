"""Keys that a document records (SPEC 8, 9): each in its room, and all different after folding case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ucpformat.errors import Problem, UcpError
from ucpformat.model.names import (
    CLAIM_KEY,
    RESERVED_COMPONENTS,
    check_component,
    check_key,
    check_name,
    is_component,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["case_problems", "component_problems", "key_problems", "name_problems"]


def _findings(check: Callable[[str, str], None], text: str, at: str) -> Iterator[Problem]:
    try:
        check(text, at)
    except UcpError as refusal:
        yield refusal.problem()


def component_problems(text: str, at: str) -> Iterator[Problem]:
    """``UCP-E-KEY`` where ``text`` cannot be an atom's key or a slot's name (UCP-D-010, UCP-D-016)."""
    if not is_component(text):
        yield from _findings(check_component, text, at)
    if text.lower() in RESERVED_COMPONENTS:
        yield Problem("UCP-E-KEY", at, f"{text!r} is the name of Zarr's metadata documents; choose another")


def name_problems(text: str, at: str) -> Iterator[Problem]:
    """``UCP-E-NAME`` where ``text`` cannot name an atom (UCP-D-023)."""
    return _findings(check_name, text, at)


def key_problems(key: str, room: str, at: str) -> Iterator[Problem]:
    """``UCP-E-KEY`` where ``key`` is not a key in ``room``, such as ``index/`` (UCP-D-010, UCP-D-014, UCP-D-013)."""
    yield from _findings(check_key, key, at)
    if not key.startswith(room):
        yield Problem("UCP-E-KEY", at, f"the key {key[:80]!r} must begin with {room!r}")
    if key.lower() == CLAIM_KEY:
        yield Problem("UCP-E-KEY", at, f"{key!r} is the key of a writer's claim; choose another")


def case_problems(keys: Iterable[tuple[str, str]]) -> Iterator[Problem]:
    """``UCP-E-KEY`` for ``(key, at)`` whose key is an earlier one, if in other case (UCP-D-011, UCP-D-012)."""
    seen: dict[str, str] = {}
    for key, at in keys:
        other = seen.setdefault(key.lower(), at)
        if other != at:
            yield Problem("UCP-E-KEY", at, f"{key[:80]!r} is used at {other} already, if in other case")
