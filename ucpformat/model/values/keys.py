"""Keys of sets and dictionaries (SPEC section 15.1): which values may be one, their text, and their order."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from ucpformat.jsonio import JsonValue

__all__ = ["canonical_text", "check_hashes", "check_pairs", "is_key"]

_MOST_OF_ONE_HASH: Final = 64

_LEAVES: Final = frozenset({"$float", "$int", "$bytes", "$complex"})


def is_key(value: JsonValue) -> bool:
    """Return whether a well-formed ``value`` is a key."""
    if type(value) is not dict:
        return type(value) is not list
    if len(value) != 1:
        return False
    ((tag, body),) = value.items()
    if tag in _LEAVES or tag == "$frozenset":
        return True
    if tag == "$tuple":
        return type(body) is list and all(map(is_key, body))
    return tag == "$object" and type(body) is dict and is_key(body.get("value"))


def check_hashes(keys: Iterable[Hashable]) -> None:
    """Refuse keys of which too many share a hash: a set or dictionary of n such keys takes n^2 comparisons.

    Python hashes numbers modulo 2^61-1, so that whoever writes a checkpoint can choose such keys.

    Raises:
        UcpError: ``UCP-E-LIMIT`` where more than 64 keys have one hash.
    """
    hashes = sorted(map(hash, keys))
    if any(first == last for first, last in zip(hashes, hashes[_MOST_OF_ONE_HASH:], strict=False)):
        message = f"more than {_MOST_OF_ONE_HASH} keys have one hash, which a dictionary cannot hold in reasonable time"
        raise error("UCP-E-LIMIT", message)


def check_pairs(content: JsonValue) -> None:
    """Check the keys of an encoded ``collections.OrderedDict``; what is no array of pairs is passed over.

    Raises:
        ValueError: where one is no key, or two have the same text, as two NaNs do, which Python takes for different.
    """
    if type(content) is not list or any(type(pair) is not list or len(pair) != 2 for pair in content):
        return
    keys = [pair[0] for pair in content if type(pair) is list]
    if not all(map(is_key, keys)):
        raise ValueError("a key of the OrderedDict cannot be one")
    if len({canonical_text(key) for key in keys}) < len(keys):
        raise ValueError("two keys of the OrderedDict have the same encoding")


def canonical_text(value: JsonValue) -> bytes:
    """Return the RFC 8785 text of a tagged value, by whose bytes sets are ordered."""
    return _text(value).encode("utf-8")


def _text(value: JsonValue) -> str:
    if type(value) is dict:
        members = sorted(value.items(), key=lambda member: member[0].encode("utf-16-be"))
        return "{" + ",".join(f"{_text(name)}:{_text(item)}" for name, item in members) + "}"
    if type(value) is list:
        return "[" + ",".join(map(_text, value)) + "]"
    if type(value) is float:
        return _number_text(value)
    return json.dumps(value, ensure_ascii=False)


def _number_text(number: float) -> str:
    """Spell a non-integral number as ECMAScript does: no exponent from 1e-6 on, none with leading zeros."""
    text = repr(number)
    if "e" not in text:
        return text
    if abs(number) >= 1e-6:
        return format(Decimal(text), "f")
    digits, exponent = text.split("e-")
    return f"{digits}e-{int(exponent)}"
