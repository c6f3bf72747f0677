"""Strict I-JSON in and compact JSON out (SPEC section 3.1).

Documents are RFC 8259 JSON in UTF-8, restricted as RFC 7493 says and a little more: no byte order mark, no
duplicate member names, no lone surrogates, at most 64 levels of nesting, no number that overflows binary64,
no integer beyond ±(2**53 - 1). Numbers are values, not spellings: where the value is such an integer, `loads`
gives an `int` however it was written (``1``, ``1.0``, ``1e0``; ``-0`` is 0), since many languages and
JSON Schema cannot tell these apart.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import nullcontext
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ucpformat.errors import error
from ucpformat.gc_pause import paused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ucpformat.errors import UcpError

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_INTEGER",
    "JsonValue",
    "deeper_than_limit",
    "dumps_canonical",
    "equal",
    "loads",
    "pointer",
    "quoted",
]

JsonValue: TypeAlias = bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None

MAX_DEPTH: Final = 64
MAX_INTEGER: Final = 2**53 - 1
MAX_BYTES: Final = 1 << 28

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

# Deletes all but brackets, quotes and backslashes, and makes one kind of bracket of two.
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"\\')
_STRINGS: Final = re.compile(rb'(?:"[^"]*")+')

# Makes "d" of every digit and "s" of what may stand before a number, so that one search finds long integers.
_NUMBERS: Final = bytes(
    ord("d") if byte in b"0123456789" else ord("s") if byte in b" \t\r\n[:,-" else ord("x")
    for byte in range(256)
)
_LONG_INTEGER: Final = b"s" + b"d" * 16
_NO_DIGIT: Final = re.compile(rb"[^0-9]")
_DIGITS: Final = 600  # Python converts at least 640, whatever limit its user sets
_AFTER_NUMBERS: Final = b" \t\r\n,]}"
_SURROGATE_ESCAPES: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")

# Below this size the collector's share of the parsing time is too small to touch it.
_GC_PAUSE_BYTES: Final = 1 << 20


class _DuplicateNameError(Exception):
    """A member name occurs twice; where is found by a second, slower pass."""


class _NumberError(Exception):
    """A number outside the range that every language reads alike."""


class _Members(list[tuple[str, Any]]):
    """An object as the list of its members, duplicates included."""


def loads(data: bytes, *, at: str, limit: int = MAX_BYTES) -> JsonValue:
    """Parse the document ``data``, of at most ``limit`` bytes, that lies at the store key ``at``.

    Raises UCP-E-LIMIT: more than ``limit`` bytes or 64 levels; found before anything is built. Raises
    UCP-E-JSON: anything else this module's notes exclude.
    """
    if len(data) > limit:
        raise error("UCP-E-LIMIT", f"the document has {len(data)} bytes, over the limit of {limit}", at=at)
    if data.startswith(b"\xef\xbb\xbf"):
        raise error("UCP-E-JSON", "the document starts with a byte order mark; write UTF-8 without it", at=at)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise error("UCP-E-JSON", f"invalid UTF-8 at byte {problem.start}: {problem.reason}", at=at) from None
    if deeper_than_limit(data):
        raise error("UCP-E-LIMIT", f"the document nests deeper than {MAX_DEPTH} levels", at=at)
    # A 16-digit run is the rare case; without one no integer can be out of range, and C converts them all.
    parse_int = _long_integer if _has_long_integers(data) else int
    try:
        with paused if len(data) >= _GC_PAUSE_BYTES else nullcontext():
            value: JsonValue = json.loads(
                text,
                object_pairs_hook=_unique,
                parse_int=parse_int,
                parse_float=_number,
                parse_constant=_constant,
            )
    except _DuplicateNameError:
        raise _duplicate(text, at) from None
    except _NumberError as problem:
        raise error("UCP-E-JSON", str(problem), at=at) from None
    except json.JSONDecodeError as problem:
        raise _syntax(problem, at) from None
    if _SURROGATE_ESCAPES.search(data):
        _refuse_lone_surrogates(value, at)
    return value


def dumps_canonical(value: JsonValue) -> bytes:
    """Return compact UTF-8 JSON, members in the order given, no newline at the end.

    Floats are written in their shortest round-trip form; integral ones up to 2**53 - 1 read back as integers.

    Raises UCP-E-JSON: a NaN, an infinity, or a lone surrogate.
    """
    try:
        return _ENCODER.encode(value).encode("utf-8")
    except UnicodeEncodeError:
        raise error("UCP-E-JSON", "a string holds a lone surrogate, which UTF-8 cannot express") from None
    except ValueError as problem:
        raise error("UCP-E-JSON", f"the value is not JSON: {problem}") from None


def quoted(text: str) -> str:
    """Return ``text`` as a JSON string, as `dumps_canonical` writes it."""
    return encode_basestring(text)


def pointer(at: str, *parts: str | int) -> str:
    """Return ``at`` extended by the members and indices ``parts``: ``ucp.json#/atoms/3/slots/value``."""
    escaped = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
    return at + escaped if "#" in at or not escaped else f"{at}#{escaped}"


def equal(a: JsonValue, b: JsonValue) -> bool:
    """Return whether two values are the same JSON: ``1``, ``1.0`` and ``True`` differ, member order is ignored."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(item, b[name]) for name, item in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def deeper_than_limit(data: bytes) -> bool:
    """Return whether brackets nest deeper than the limit, by whole-buffer passes instead of a walk.

    In a document that is not JSON the answer may be either; it is bounded all the same, since what the parser
    can descend into is what was peeled off here plus what was left.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = data.translate(_BRACKETS, _NOT_STRUCTURE)
    pairs = structure.replace(b'""', b"")
    # Where no string holds a bracket, every string has become an adjacent pair of quotes.
    structure = _STRINGS.sub(b"", structure) if b'"' in pairs else pairs
    for _ in range(MAX_DEPTH):
        peeled = structure.replace(b"[]", b"")
        if len(peeled) == len(structure):
            return structure.count(b"[") > MAX_DEPTH
        structure = peeled
    return bool(structure)


def _has_long_integers(data: bytes) -> bool:
    """Return whether an integer may be too long; False where there is none, and all that look so are within texts."""
    if data[:16].isdigit():
        return True  # the whole document is one number, which has nothing before it
    marks = data.translate(_NUMBERS)
    found = marks.find(_LONG_INTEGER)
    while found >= 0:
        end = _NO_DIGIT.search(data, found + 1)
        # What so many digits begin is a number to the parser until it sees more, and Python refuses its length.
        if end is None or end[0] in _AFTER_NUMBERS or end.start() - found > _DIGITS:
            return True
        found = marks.find(_LONG_INTEGER, end.start())
    return False


def _unique(members: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    value = dict(members)
    if len(value) != len(members):
        raise _DuplicateNameError
    return value


def _long_integer(text: str) -> int:
    # The length first: converting a million digits takes time, and more than 4300 raise.
    if len(text) > 17 or abs(value := int(text)) > MAX_INTEGER:
        raise _NumberError(f"the integer {_short(text)} is beyond ±(2**53 - 1)")
    return value


def _number(text: str) -> float | int:
    value = float(text)
    if not math.isfinite(value):
        raise _NumberError(f"the number {_short(text)} overflows binary64")
    return int(value) if value.is_integer() and abs(value) <= MAX_INTEGER else value


def _constant(text: str) -> float:
    raise _NumberError(f"{text} is not JSON")


def _short(text: str) -> str:
    return text if len(text) <= 32 else f"{text[:24]}... ({len(text)} characters)"


def _syntax(problem: json.JSONDecodeError, at: str) -> UcpError:
    byte = len(problem.doc[: problem.pos].encode("utf-8"))
    where = f"line {problem.lineno}, byte {byte}"
    return error("UCP-E-JSON", f"{where}: {problem.msg}; mend it, or restore it from a copy", at=at)


def _duplicate(text: str, at: str) -> UcpError:
    """Build the error for the first duplicate name, in the order in which a reader meets them."""
    try:
        value = json.loads(text, object_pairs_hook=_Members, parse_int=str, parse_float=str)
    except json.JSONDecodeError as problem:
        return _syntax(problem, at)
    parts = _find_duplicate(value)
    if parts is None:
        raise AssertionError("the first pass saw a duplicate name that the second does not see")
    return error(
        "UCP-E-JSON", f"the member name {parts[-1]!r} occurs twice in one object", at=pointer(at, *parts)
    )


def _find_duplicate(value: object) -> list[str | int] | None:
    """Return the path to a member whose name its object has already."""
    items: Iterator[tuple[str | int, object]]
    if isinstance(value, _Members):
        seen: set[str] = set()
        for name, _ in value:
            if name in seen:
                return [name]
            seen.add(name)
        items = iter(value)
    elif isinstance(value, list):
        items = iter(enumerate(value))
    else:
        return None
    for part, item in items:
        below = _find_duplicate(item)
        if below is not None:
            return [part, *below]
    return None


def _refuse_lone_surrogates(value: JsonValue, at: str) -> None:
    found = _lone_surrogate(value)
    if found is not None:
        path, what = found
        raise error(
            "UCP-E-JSON", f"{what} holds a lone surrogate, which is not Unicode text", at=pointer(at, *path)
        )


def _lone_surrogate(value: JsonValue) -> tuple[list[str | int], str] | None:
    """Return the path to the first text with a lone surrogate, and what that is.

    The path is made on the way back: names may be as long as the document, and elements as many.
    """
    items: Iterable[tuple[str | int, JsonValue]]
    if isinstance(value, str):
        return ([], "a string") if _LONE_SURROGATE.search(value) else None
    if isinstance(value, dict):
        for name in value:
            if _LONE_SURROGATE.search(name):
                return [], f"the member name {_short(name)!r}"
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return None
    for part, item in items:
        below = _lone_surrogate(item)
        if below is not None:
            return [part, *below[0]], below[1]
    return None
