"""Strict readers of JSON members (SPEC 10): what the schemas say, by hand, as `open` cannot wait for those.

Every reader raises ``UCP-E-SCHEMA`` at the place of the offending value. That ``1.0`` is the integer 1 is
`ucpformat.jsonio`'s business: here an integer is an ``int``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ucpformat.errors import REGISTRY, Problem, UcpError, error
from ucpformat.jsonio import MAX_INTEGER, pointer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ucpformat.jsonio import JsonValue

__all__ = [
    "array",
    "below",
    "boolean",
    "choice",
    "integer",
    "integers",
    "members",
    "object_",
    "raise_first",
    "relocated",
    "string",
    "wrong_type",
]

_PRECEDENCE: Final = {code: rank for rank, code in enumerate(REGISTRY)}
_TYPE_NAMES: Final = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
}


def raise_first(problems: Iterable[Problem]) -> None:
    """Raise the problem whose code takes precedence (SPEC 18); among equals, the first one found."""
    first = min(problems, key=lambda problem: _PRECEDENCE[problem.code], default=None)
    if first is not None:
        raise error(first.code, first.message, at=first.at)


def relocated(refusal: UcpError, at: str) -> UcpError:
    """Return ``refusal``, raised with a place relative to ``at``, with its whole place.

    Readers of the 100,000 atoms of a large part raise relative places, so that a place is put together only
    when something is wrong.
    """
    return error(refusal.code, refusal.message, at=_joined(at, refusal.at))


def below(problems: Iterable[Problem], at: str) -> Iterator[Problem]:
    """Yield ``problems`` whose places are relative to ``at``, with their whole places."""
    for problem in problems:
        yield Problem(problem.code, _joined(at, problem.at), problem.message)


def _joined(at: str, rest: str) -> str:
    rest = rest.removeprefix("#")
    return at + rest if "#" in at or not rest else f"{at}#{rest}"


def wrong_type(value: JsonValue, expected: str, at: str) -> UcpError:
    """Return the refusal of a value whose JSON type is not ``expected``."""
    found = "null" if value is None else _TYPE_NAMES.get(type(value), "an object")
    return error("UCP-E-SCHEMA", f"{expected} is expected here, not {found}", at=at)


def object_(value: JsonValue, at: str) -> dict[str, JsonValue]:
    """Return ``value`` as an object with any members."""
    if type(value) is not dict:
        raise wrong_type(value, "an object", at)
    return value


def members(
    value: JsonValue, required: frozenset[str], optional: frozenset[str], at: str
) -> dict[str, JsonValue]:
    """Return ``value`` as a closed object: every required member, and none that is neither required nor optional."""
    if type(value) is not dict:
        raise wrong_type(value, "an object", at)
    # A loop takes a third of the time of set operations on so few names.
    found, strange = 0, None
    for name in value:
        if name in required:
            found += 1
        elif strange is None and name not in optional:
            strange = name
    if found < len(required):
        missing = ", ".join(sorted(required - value.keys()))
        raise error("UCP-E-SCHEMA", f"required members are missing: {missing}", at=at)
    if strange is not None:
        raise error("UCP-E-SCHEMA", f"this object has no member {strange!r}", at=pointer(at, strange))
    return value


def array(value: JsonValue, at: str, *, least: int = 0) -> list[JsonValue]:
    """Return ``value`` as an array of at least ``least`` items."""
    if type(value) is not list:
        raise wrong_type(value, "an array", at)
    if len(value) < least:
        raise error("UCP-E-SCHEMA", f"at least {least} items are needed, not {len(value)}", at=at)
    return value


def string(value: JsonValue, at: str) -> str:
    """Return ``value`` as a string of any content."""
    if type(value) is not str:
        raise wrong_type(value, "a string", at)
    return value


def boolean(value: JsonValue, at: str) -> bool:
    """Return ``value`` as a boolean."""
    if type(value) is not bool:
        raise wrong_type(value, "a boolean", at)
    return value


def integer(value: JsonValue, at: str, *, least: int = 0, most: int = MAX_INTEGER) -> int:
    """Return ``value`` as an integer in ``[least, most]``."""
    if type(value) is not int:
        raise wrong_type(value, "an integer", at)
    if not least <= value <= most:
        raise error("UCP-E-SCHEMA", f"the integer must lie in [{least}, {most}], not be {value}", at=at)
    return value


def integers(value: JsonValue, at: str, *, least: int = 0, items: int = 0) -> tuple[int, ...]:
    """Return ``value`` as an array of at least ``items`` integers, each at least ``least``."""
    if type(value) is not list:
        raise wrong_type(value, "an array", at)
    for index, item in enumerate(value):
        if type(item) is not int or not least <= item <= MAX_INTEGER:
            integer(item, pointer(at, index), least=least)
    if len(value) < items:
        array(value, at, least=items)
    return tuple(value)  # type: ignore[arg-type]  # each item was just seen to be an int


def choice(value: JsonValue, choices: tuple[str, ...], at: str) -> str:
    """Return ``value`` as one of ``choices``."""
    if type(value) is not str:
        raise wrong_type(value, "a string", at)
    if value not in choices:
        raise error("UCP-E-SCHEMA", f"one of {', '.join(choices)} is expected here, not {value!r}", at=at)
    return value
