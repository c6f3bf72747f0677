"""Tagged values (SPEC 15.1): what the schema cannot say of the one canonical encoding."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any, Final

from ucp_conformance.oracle.bytes_of import ITEM_BYTES, unused_bits
from ucp_conformance.oracle.problem import RefusalError, pointer
from ucp_conformance.oracle.strict_json import LARGEST, canonical
from ucp_conformance.resources import schema_validator

__all__ = ["NO_VALUE", "check_value"]

_DEPTH: Final = 56
NO_VALUE: Final = "no tagged value"
"""Why a value is refused that breaks the schema."""


def check_value(value: Any, at: str) -> None:
    """Refuse what is not the canonical encoding, with UCP-E-VALUE."""
    if _depth(value) > _DEPTH:
        raise RefusalError("UCP-E-LIMIT", at, "nests too deep")
    if not schema_validator("value").is_valid(value):
        raise RefusalError("UCP-E-VALUE", at, NO_VALUE)
    try:
        _check(value, at)
    except ValueError as wrong:
        raise RefusalError("UCP-E-VALUE", at, str(wrong)) from None


def _depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(_depth, inside), default=0)


def _check(value: Any, at: str) -> None:
    if isinstance(value, list):
        for number, item in enumerate(value):
            _check(item, pointer(at, number))
    elif isinstance(value, dict):
        tag = next(iter(value), "")
        if tag.startswith("$"):
            _tag(tag, value[tag], pointer(at, tag))
        else:
            for name, item in value.items():
                _check(item, pointer(at, name))


def _tag(tag: str, body: Any, at: str) -> None:
    match tag:
        case "$float":
            if _float_text(float(body)) != body:
                raise ValueError(f"{body!r} is not the shortest text of its number")
        case "$complex" | "$tuple":
            _check(body, at)
        case "$set" | "$frozenset":
            _check(body, at)
            texts = [canonical(item).encode() for item in body]
            if texts != sorted(set(texts)):
                raise ValueError("elements are not in order of their texts")
            _distinct(body)
        case "$dict":
            for number, (key, item) in enumerate(body):
                _check(key, pointer(at, number, 0))
                _check(item, pointer(at, number, 1))
            _distinct([key for key, _ in body])
        case "$array" | "$tensor":
            _body(body)
        case "$object":
            _check(body["value"], pointer(at, "value"))
            _object(body["type"], body["value"])
        case _:
            pass


def _float_text(number: float) -> str:
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    if not number.is_integer():
        raise ValueError("a number that is not integral stands for itself")
    sign = "-" if math.copysign(1, number) < 0 else ""
    mantissa, _, power = f"{abs(number)!r}".partition("e")
    digits = mantissa.replace(".", "").rstrip("0") or "0"
    exponent = int(power) if power else len(mantissa.partition(".")[0]) - 1
    if exponent < 16:
        return f"{sign}{digits.ljust(exponent + 1, '0')}.0"
    return f"{sign}{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e+{exponent}"


def _distinct(keys: list[Any]) -> None:
    for equality in (_equality, canonical):
        seen: set[Any] = set()
        for key in keys:
            mine = equality(key)
            if mine in seen:
                raise ValueError("two keys are equal")
            seen.add(mine)


def _equality(key: Any) -> Any:
    """Return something hashable that is equal for equal keys."""
    if isinstance(key, bool | int | float):
        return "number", _number(key)
    if isinstance(key, dict):
        ((tag, body),) = key.items()
        match tag:
            case "$float" | "$int":
                return "number", _number(key)
            case "$complex":
                real, imaginary = map(_number, body)
                return ("number", real) if imaginary == 0 else ("complex", real, imaginary)
            case "$tuple":
                return "tuple", tuple(map(_equality, body))
            case "$frozenset":
                return "set", frozenset(map(_equality, body))
            case _:
                pass
    return "text", canonical(key)


def _number(value: Any) -> Any:
    if isinstance(value, dict):
        ((tag, body),) = value.items()
        if tag == "$int":
            number = 0
            for digit in body.lstrip("-"):
                number = 10 * number + int(digit)
            return -number if body.startswith("-") else number
        return "nan" if body == "nan" else float(body)
    return value


def _body(body: dict[str, Any]) -> None:
    item = ITEM_BYTES.get(body["dtype"])
    if item is None:
        raise ValueError(f"no data type {body['dtype']!r}")
    if math.prod(max(1, extent) for extent in body["shape"]) * item > LARGEST:
        raise ValueError("too large")
    data = base64.b64decode(body["data"])
    if len(data) != math.prod(body["shape"]) * item:
        raise ValueError("the data have another length")
    if any(byte & unused_bits(body["dtype"]) for byte in data):
        raise ValueError("unused bits are set")


def _object(kind: str, value: Any) -> None:
    if kind == "collections.OrderedDict":
        if not isinstance(value, list) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in value
        ):
            raise ValueError("an ordered dictionary is a list of pairs")
        keys = [key for key, _ in value]
        if not all(map(_is_key, keys)):
            raise ValueError("what cannot be a key is one")
        _distinct(keys)
    elif kind.startswith("datetime."):
        _moment(kind.removeprefix("datetime."), value)
    elif kind == "numpy.scalar":
        parts = value.get("$tuple") if isinstance(value, dict) else None
        if not isinstance(parts, list) or len(parts) != 2 or not isinstance(parts[1], dict):
            raise ValueError("a scalar is a tuple of data type and bytes")
        if set(parts[1]) != {"$bytes"} or not isinstance(parts[0], str):
            raise ValueError("a scalar is a tuple of data type and bytes")
        _body({"dtype": parts[0], "shape": [], "data": parts[1]["$bytes"]})
    elif kind == "ucp.PerRank":
        _per_rank(value)
    elif kind in _PATHS and not isinstance(value, str):
        raise ValueError("a path is a string")


def _per_rank(value: Any) -> None:
    if not isinstance(value, dict) or sorted(value) != ["axis", "entries", "on_resize"]:
        raise ValueError("a value per rank has other members")
    axis, entries, rule = value["axis"], value["entries"], value["on_resize"]
    if not isinstance(axis, str) or axis == "" or not isinstance(entries, list) or len(entries) == 0:
        raise ValueError("a value per rank has an axis and at least one entry")
    if rule not in ("refuse", "keep", "resplit", "reseed"):
        raise ValueError("no such rule for another size")
    if rule == "resplit":
        for entry in entries:
            is_counter = type(entry) is int or (isinstance(entry, dict) and "$int" in entry)
            if not is_counter or _number(entry) < 0:
                raise ValueError("what is split anew is a counter")


_PATHS: Final = {f"pathlib.{pure}{name}Path" for pure in ("", "Pure") for name in ("Posix", "Windows")}
_CLOCK: Final = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?([+-][0-9]{2}:[0-9]{2})?"


def _moment(kind: str, value: Any) -> None:
    if kind == "timedelta":
        parts = value.get("$tuple") if isinstance(value, dict) else None
        if not isinstance(parts, list) or [type(part) for part in parts] != [int, int, int]:
            raise ValueError("a timedelta is a tuple of three integers")
        if not (0 <= parts[1] < 86400 and 0 <= parts[2] < 10**6 and abs(parts[0]) < 10**9):
            raise ValueError("a timedelta out of its ranges")
        return
    forms = {"datetime": rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T{_CLOCK}", "date": r"[0-9-]{10}", "time": _CLOCK}
    if kind not in forms:
        return
    if not isinstance(value, str) or not re.fullmatch(forms[kind], value):
        raise ValueError(f"not the text of a {kind}")
    if value.endswith("-00:00") or ".000000" in value:
        raise ValueError("not the canonical text")
    readers: dict[str, type[datetime | date | time]] = {"datetime": datetime, "date": date, "time": time}
    if readers[kind].fromisoformat(value).isoformat() != value:
        raise ValueError("not the canonical text")


def _is_key(value: Any) -> bool:
    if isinstance(value, dict):
        if len(value) != 1:
            return False
        ((tag, body),) = value.items()
        if tag == "$tuple":
            return all(map(_is_key, body))
        if tag == "$object":
            return _is_key(body["value"])
        return tag in {"$float", "$int", "$bytes", "$complex", "$frozenset"}
    return not isinstance(value, list)


def values_of(state: dict[str, Any], at: str) -> Iterator[tuple[str, Any]]:
    """Yield every tagged value of a state document, after its place."""
    for name, value in state["values"].items():
        yield pointer(at, "values", name), value
    for name, optimizer in state["optimizers"].items():
        for number, group in enumerate(optimizer["groups"]):
            for option, value in group["options"].items():
                yield pointer(at, "optimizers", name, "groups", number, "options", option), value
