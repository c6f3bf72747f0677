"""A JSON parser that accepts what SPEC section 3.1 does, written by hand and recursively."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any, Final

from ucp_conformance.oracle.problem import RefusalError, pointer

__all__ = ["LARGEST", "Json", "canonical", "parse", "same"]

Json = Any
LARGEST: Final = 2**53 - 1
_DEPTH: Final = 64
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPES: Final = {
    '"': '"',
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
}
_WORDS: Final = (("true", True), ("false", False), ("null", None))


def parse(data: bytes, *, at: str, limit: int) -> Json:
    """Return the value of the document ``data`` at the store key ``at``; refuses with UCP-E-JSON or UCP-E-LIMIT."""
    if len(data) > limit:
        raise RefusalError("UCP-E-LIMIT", at, f"{len(data)} bytes")
    if data.startswith(b"\xef\xbb\xbf"):
        raise RefusalError("UCP-E-JSON", at, "byte order mark")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as wrong:
        raise RefusalError("UCP-E-JSON", at, f"UTF-8: {wrong.reason}") from None
    return _Parser(text, at).document()


class _Parser:
    def __init__(self, text: str, at: str) -> None:
        self.text = text
        self.place = 0
        self.key = at

    def document(self) -> Json:
        value = self.value(self.key, 0)
        self.space()
        if self.place != len(self.text):
            raise self.wrong("something follows the value")
        return value

    def wrong(self, why: str, at: str | None = None) -> RefusalError:
        return RefusalError("UCP-E-JSON", at or self.key, f"{why} (character {self.place})")

    def space(self) -> None:
        found = _SPACE.match(self.text, self.place)
        self.place = found.end() if found else self.place

    def peek(self) -> str:
        self.space()
        return self.text[self.place : self.place + 1]

    def take(self, sign: str) -> None:
        if self.peek() != sign:
            raise self.wrong(f"{sign!r} is missing")
        self.place += 1

    def value(self, at: str, depth: int) -> Json:
        first = self.peek()
        if first in ("{", "["):
            if depth == _DEPTH:
                raise RefusalError("UCP-E-LIMIT", self.key, "nests too deep")
            return self.members(at, depth + 1) if first == "{" else self.items(at, depth + 1)
        if first == '"':
            return self.string(at)
        for word, meaning in _WORDS:
            if self.text.startswith(word, self.place):
                self.place += len(word)
                return meaning
        return self.number(at)

    def members(self, at: str, depth: int) -> dict[str, Json]:
        found: dict[str, Json] = {}
        self.take("{")
        if self.peek() == "}":
            self.place += 1
            return found
        while True:
            self.space()
            name = self.string(at)
            if name in found:
                raise self.wrong(f"the name {name!r} occurs twice", pointer(at, name))
            self.take(":")
            found[name] = self.value(pointer(at, name), depth)
            if self.peek() == ",":
                self.place += 1
                continue
            self.take("}")
            return found

    def items(self, at: str, depth: int) -> list[Json]:
        found: list[Json] = []
        self.take("[")
        if self.peek() == "]":
            self.place += 1
            return found
        while True:
            found.append(self.value(pointer(at, len(found)), depth))
            if self.peek() == ",":
                self.place += 1
                continue
            self.take("]")
            return found

    def string(self, at: str) -> str:
        self.take('"')
        parts: list[str] = []
        while True:
            run = _PLAIN.match(self.text, self.place)
            if run is not None:
                parts.append(run[0])
                self.place = run.end()
            sign = self.text[self.place : self.place + 1]
            self.place += 1
            if sign == '"':
                text = "".join(parts)
                # Escaped halves of a pair stand side by side; joining them leaves the lonely ones.
                joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
                if joined.count("�") != text.count("�"):
                    raise self.wrong("unpaired surrogate", at)
                return joined
            if sign != "\\":
                raise self.wrong("a string does not end, or holds a control character")
            parts.append(self.escape())

    def escape(self) -> str:
        sign = self.text[self.place : self.place + 1]
        self.place += 1
        if sign in _ESCAPES:
            return _ESCAPES[sign]
        digits = self.text[self.place : self.place + 4]
        if sign != "u" or not re.fullmatch("[0-9A-Fa-f]{4}", digits):
            raise self.wrong("an escape that JSON does not know")
        self.place += 4
        return chr(int(digits, 16))

    def number(self, at: str) -> int | float:
        found = _NUMBER.match(self.text, self.place)
        if found is None or not found[0]:
            raise self.wrong("no JSON value")
        self.place = found.end()
        value = float(found[0]) if len(found[0]) < 400 else _long(found[0])
        if not math.isfinite(value):
            raise self.wrong("the number overflows binary64", at)
        if found[1] is None and found[2] is None and (len(found[0]) > 17 or abs(int(found[0])) > LARGEST):
            raise self.wrong("the integer is beyond 2^53-1", at)
        return int(value) if value.is_integer() and abs(value) <= LARGEST else value


def _long(text: str) -> float:
    _mantissa, _, exponent = text.lower().partition("e")
    if exponent and len(exponent) > 6:
        return math.inf
    try:
        return float(Fraction(text)) if not exponent else float(text)
    except OverflowError:
        return math.inf


def same(a: Json, b: Json) -> bool:
    """Return whether two values are the same JSON; numbers by value, booleans apart, order of members ignored."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[name]) for name, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(one, other) for one, other in zip(a, b, strict=True))
    return (type(a) in (int, float) and type(b) in (int, float) and a == b) or (type(a) is type(b) and a == b)


def canonical(value: Json) -> str:
    """Return the text of RFC 8785; strings of Unicode text, numbers of binary64."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int | float):
        return ecmascript_number(value)
    if isinstance(value, list):
        return "[" + ",".join(canonical(item) for item in value) + "]"
    names = sorted(value, key=lambda name: name.encode("utf-16-be"))
    return "{" + ",".join(f"{_quoted(name)}:{canonical(value[name])}" for name in names) + "}"


def _quoted(text: str) -> str:
    short = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    signs = (short.get(sign) or (f"\\u{ord(sign):04x}" if sign < " " else sign) for sign in text)
    return '"' + "".join(signs) + '"'


def ecmascript_number(value: float) -> str:
    """Return the number as Number::toString of ECMAScript, from the shortest digits that read back."""
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    digits, exponent = f"{abs(float(value))!r}", 0
    if "e" in digits:
        digits, _, power = digits.partition("e")
        exponent = int(power)
    whole, _, fraction = digits.partition(".")
    fraction = "" if fraction == "0" else fraction
    stripped = (whole + fraction).lstrip("0")
    # The value is 0.<stripped> times ten to the n.
    point = len(whole) + exponent - (len(whole + fraction) - len(stripped))
    stripped = stripped.rstrip("0")
    count = len(stripped)
    if count <= point <= 21:
        return sign + stripped + "0" * (point - count)
    if 0 < point <= 21:
        return sign + stripped[:point] + "." + stripped[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + stripped
    power = f"e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return sign + stripped[0] + ("." + stripped[1:] if count > 1 else "") + power
